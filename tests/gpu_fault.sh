#!/usr/bin/env bash
# gpu_fault.sh COMMAND TEMPLATES: a kernel that hides each request's last draft has to fail the suite.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$2" "$folder/templates"
sed -i 's/\(int draft_count(.*return r.total - r.prefix\);/\1 - 1;/' "$folder/templates/request.cuh"
if cmp -s "$2/request.cuh" "$folder/templates/request.cuh"; then echo "the fault found no place"; exit 1; fi
code=0
DRAFTWOOD_TEMPLATES=$folder/templates "$1" verify --device gpu --suite --quick --small --cases 1 --seed 1 \
  >"$folder/out" || code=$?
cat "$folder/out"
[ $code = 1 ] && grep -q '^FAILED seed 1' "$folder/out" && grep -q 'at eager: out' "$folder/out"
