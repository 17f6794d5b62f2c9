# label: quick nvrtc
# Compiles, then hits; what is damaged is compiled again.
request=(kimi-k2.6-tp8 --widths 1,9)
run build "${request[@]}" | tail -n 2
run build "${request[@]}" | tail -n 2
run cache stats | grep -v bytes
for file in cache/v1/obj/*/*; do
  echo damage >"$file"
done
run build "${request[@]}" | tail -n 2
run cache clear
run cache stats
run build "${request[@]}" | tail -n 2
# Nothing is an hour old; then everything is.
run cache trim --limit 0 | sed 's/, [0-9]* bytes/, N bytes/'
touch -d '2 hours ago' cache/v1/*/*/*
run cache trim --limit 0 --dry-run | sed 's/, [0-9]* bytes/, N bytes/'
run cache trim --limit 0 --json | sed 's/_bytes": [0-9]*/_bytes": N/g'
run cache trim --limit 12Q
run cache ls
