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
