#!/usr/bin/env bash
# random_fault.sh COMMAND TEMPLATES DEVICE [OPTION...]: kernels that hide each request's last draft have to fail some of the random
# calls; what is printed as the smallest case is the smallest there is, fails too, and passes on the templates as they are.
set -euo pipefail
command=$1 templates=$2 device=$3
shift 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp -r "$templates" "$folder/templates"
sed -i 's/\(int draft_count(.*return r.total - r.prefix\);/\1 - 1;/' "$folder/templates/request.cuh"
if cmp -s "$templates/request.cuh" "$folder/templates/request.cuh"; then echo "the fault found no place"; exit 1; fi

code=0
DRAFTWOOD_TEMPLATES=$folder/templates "$command" verify --random 40 --per-shape 20 --device "$device" --failures 1 "$@" \
  >"$folder/out" || code=$?
cat "$folder/out"
[ $code = 1 ]
grep -q '^FAILED case' "$folder/out"
grep -q 'out\[request' "$folder/out"
grep -q '^smallest of [0-9]* tries' "$folder/out"
spec=$(sed -n "s/^  draftwood verify .*--spec '\(.*\)'$/\1/p" "$folder/out")

# One draft of one head in one request, and no feature.
echo "$spec" | grep -qE '^mla:h=1,t=1,.*page=1,q=bf16,kv=bf16,target=[^ ]* [^ ]*,checked=0 batch=1(,seed=[0-9]*)?,prefix=0$' ||
  { echo "not small: $spec"; exit 1; }

code=0
DRAFTWOOD_TEMPLATES=$folder/templates "$command" verify --random 1 --device "$device" --spec "$spec" >"$folder/again" || code=$?
[ $code = 1 ] && grep -q '^FAILED' "$folder/again"
"$command" verify --random 1 --device "$device" --spec "$spec"
