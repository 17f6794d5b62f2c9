#!/usr/bin/env bash
# soft_tune.sh COMMAND: draftwood tune from end to end on a GPU made of software (DRAFTWOOD_DRIVER): a worker compiles, checks and times; a
# resumed run measures nothing anew; all GPUs of a machine share the problems, and contexts go by the plan.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export SOFT_GPU_L2=16384  # a few calls a graph
list=(--lengths 40 --effort quick --budget 120s --threads 2)
one_shape=mla:h=4,t=2 other_shape=mla:h=2,t=2,qk=96,v=64  # with a dozen candidates, and with one
"$1" tune $one_shape "${list[@]}" --batches 1 --folder "$folder/one" | tee "$folder/out"
one=("$folder"/one/*)
grep -q '"verdict":"sound"' "${one[0]}/records.jsonl"
[ "$(grep -c '"l2":"cold"' "${one[0]}/records.jsonl")" -ge 5 ]
if grep -E '"verdict":"(wrong|crashed|hung|unbuilt)"' "${one[0]}/records.jsonl"; then exit 1; fi
[ "$(sed -n 's/^digest //p' "$folder/out")" = "$("$1" plan digest "${one[0]}/plan.jsonl")" ]

lines=$(wc -l <"${one[0]}/journal-0-of-1.txt")
"$1" tune $one_shape "${list[@]}" --batches 1 --folder "$folder/one" --resume --quiet
[ "$(wc -l <"${one[0]}/journal-0-of-1.txt")" = "$lines" ] || { echo "a resumed run measured again"; exit 1; }

export SOFT_GPU_COUNT=2
"$1" tune $other_shape "${list[@]}" --batches 1,2 --gpu all --folder "$folder/all" --json | tee "$folder/rows"
all=("$folder"/all/*)
[ ${#all[@]} = 1 ]
[ -s "${all[0]}/journal-0-of-2.txt" ]
[ -s "${all[0]}/journal-1-of-2.txt" ]
[ "$(grep -c '"variant":"family' "$folder/rows")" = 2 ]
[ "$(grep -c '"kv_len":42' "${all[0]}/plan.jsonl")" = 2 ]
if SOFT_GPU_COUNT=2 "$1" tune $other_shape "${list[@]}" --batches 1 --gpu 2 --folder "$folder/no"; then echo "a third GPU of two"; exit 1; fi
