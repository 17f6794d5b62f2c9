# Rows against the oracle on the CPU: a kernel that is right, then one that does nothing.
request=(kimi-k2.6-tp8,t=3 --variant family=reference --lengths 0,17 --seed 5)
numbers() { sed -E -e 's/relative error of all [^,]*/relative error of all E/' -e 's/[0-9.]+ % of/SHARE of/'; }
run verify "${request[@]}" --order random | grep -v -e '^  ' | numbers
run verify "${request[@]}" --mask bits --addressing table --prefix-only --batch 3 | tail -n 2 | numbers
for parts in "--mask bytes --mask-shared --strided --q-rope" "--mask bytes-full --kv-rope --sinks" \
  "--mask bias --window 9 --positions --soft-cap 2.5" "--drafts-elsewhere --addressing table --batch 4"; do
  run verify "${request[@]}" $parts | tail -n 2 | numbers
done
run verify kimi-k2.6-tp8,t=3 --variant family=reference,checked=1 --lengths 0,17 --seed 5 | tail -n 2 | numbers
run verify "${request[@]}" --json | grep -e '"rows"' -e '"failed"' -e '"device"' -e exit
DRAFTWOOD_DRIVER=/nowhere/libcuda.so run verify "${request[@]}" --device gpu 2>&1 | grep -o -e SKIP -e 'exit .'

cp -r "$(dirname "$script")/../../templates" .
grep -E '^@ (param\.|local formats)' templates/verify.cu.lua >kept
cat kept - >templates/verify.cu.lua <<'END'
#include "types.cuh"
#include "ptx.cuh"
#include "params.h"
extern "C" __global__ void dw_verify(const __grid_constant__ dw_params p) {}
#ifndef __CUDACC__
extern "C" void dw_verify__host(const void *p) { dw_verify(*(const dw_params *)p); }
#endif
END
DRAFTWOOD_TEMPLATES=templates run verify "${request[@]}" | grep -e wrong, -e exit | numbers
