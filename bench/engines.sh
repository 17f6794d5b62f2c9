#!/usr/bin/env bash
# engines.sh OUT [SGLANG]: a folder that runs the engines' side on another x86-64 Linux machine with GPUs, torch, transformers and NVRTC,
# where nothing of ours is installed: the wheel, the checks and their recorded data, bench/engines.py. Start it there as
# python3 OUT/engines.py RESULTS.json. SGLANG: the folder sglang/kernels/ops/attention of an installed SGLang, whose Triton kernels then
# run beside ours. BUILD names the build folder (build/release).
set -euo pipefail
out=$(realpath -m "${1:?usage: bench/engines.sh OUT [SGLANG]}")
sglang=${2:+$(realpath "$2")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${BUILD:-build/release}
cmake --build "$build" --target wheel >"$build/wheel.log" || { cat "$build/wheel.log"; exit 1; }
rm -rf "$out"
mkdir -p "$out/data"
cp "$build"/wheel/draftwood-*.whl bench/engines.py runtime/examples/tree_decoder.py "$out/"
cp runtime/python/tests/{gpu_engines,check_transformers,test_workers,support}.py "$out/"
cp runtime/python/tests/data/*.json "$out/data/"
if [ -n "$sglang" ]; then
  mkdir "$out/sglang"
  cp "$sglang"/{extend_attention,decode_attention,score_mod,dcp_kernels}.py "$out/sglang/"
fi
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain -- src gen cache runtime templates bench/engines.py)" ] || commit=$commit-changed
echo "$commit" >"$out/commit.txt"
du -sh "$out"
