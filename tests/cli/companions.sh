# label: quick;nvrtc
# The companion kernels: built once, found again; one check on the CPU; mistakes.
run gen --companions | grep -e '^// draftwood' -e 'extern "C" __global__' | sed 's/(const.*//'
run build --companions --target sm_90,sm_120 | sed -E 's/( dw_[a-z_]+) [ 0-9]+/\1 NUMBERS /'
run build --companions --target sm_90 | grep -c hit
run build --companions --json | grep -e '"cache"' -e '"target"' -e exit
run build --companions --target sm_90,sm_77 2>&1 | grep -e draftwood: -e exit
run cache ls | grep -o -e 'sm_[0-9]* *companions$' | sort
run build --companions kimi-k2.6-tp8
run verify --companions --check d08 --seed 5
run verify --companions --check d99 --seed 5
run verify --companions --rounds 0
DRAFTWOOD_DRIVER=/nowhere/libcuda.so run verify --companions --device gpu 2>&1 | grep -o -e SKIP -e 'exit .'
DRAFTWOOD_DRIVER=/nowhere/libcuda.so run bench --companions 2>&1 | grep -o -e 'exit .'
run bench --companions --build-only --target 90 | sed -E 's/[0-9]+ were there/SOME were there/'
