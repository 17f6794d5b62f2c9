#!/usr/bin/env bash
# run.sh CUBIN-TOOL: the instructions that the kernels are meant to be made of. Needs nvdisasm on the path; exit 77 without.
set -euo pipefail
command -v nvdisasm >/dev/null || { echo "SKIP: no nvdisasm"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
result=0
expect() {  # expect NAME yes|no PATTERN
  local count
  count=$(grep -cE "$3" "$folder/text" || true)
  printf '  %-38s %6d\n' "$1" "$count"
  if { [ "$2" = yes ] && ((count == 0)); } || { [ "$2" = no ] && ((count > 0)); }; then
    echo "  wrong: wanted $2 $1"
    result=1
  fi
}
for shape in kimi-k2.6-tp8,t={1,4,9,17} kimi-k2.6-tp8,t=9,target=sm_90,limits=sm_120; do
  echo "$shape"
  "$1" "$shape" "$folder/cubin"
  nvdisasm -c "$folder/cubin" >"$folder/text"
  expect "tensor-core multiplies (HMMA)" yes '\bHMMA\b'
  expect "matrix loads (LDSM)" yes '\bLDSM\b'
  expect "asynchronous copies (LDGSTS, UBLKCP)" yes '\b(LDGSTS|UBLKCP)\b'
  expect "local memory (LDL, STL)" no '\b(LDL|STL)\b'
done
exit $result
