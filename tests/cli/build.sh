# label: quick;nvrtc
# The resource table (numbers differ between compilers), its JSON, and an entry of the cache by its key.
request=(kimi-k2.6-tp8 --widths 1,2 --target sm_90,sm_120 --limits sm_120 --variant family=reference)
run build "${request[@]}" --jobs 2 | sed -E 's/( dw_[a-z_]+) [ 0-9]+/\1 NUMBERS /'
run build "${request[@]}" | tail -n 2
run build "${request[@]}" --json | grep -e '"cache"' -e '"compiled"' -e '"from_cache"' -e '"failed"' -e exit
key=$("$draftwood" cache ls --json | grep -m 1 -o '"build_key": "[0-9a-f]*' | grep -o '[0-9a-f]*$')
run cache inspect "${key:0:12}" | grep -c -e '^shape' -e '^variant' -e '^target'
run cache inspect 000000000000
run build kimi-k2.6-tp8 --widths 1 --variant family=reference --verify host | tail -n 2
run build kimi-k2.6-tp8 --widths 1 --target sm_80,sm_86,sm_89,sm_90,sm_100,sm_103,sm_120,sm_121 | tail -n 2
