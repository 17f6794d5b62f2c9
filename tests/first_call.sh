#!/usr/bin/env bash
# first_call.sh FIRST_CALL DRAFTWOOD: a process that finds nothing, one that finds its kernel in the cache, one with a bundle alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DRAFTWOOD_CACHE_DIR=$folder/cache
"$1"
"$1" | tee "$folder/warm"
grep -q '^cache: .* 0 compiles$' "$folder/warm"
target=$("$2" cache ls --json | grep -m 1 -o '"target": "sm_[0-9]*' | grep -o '[0-9]*$')
variant=$("$2" cache ls --json | grep -m 1 -o '"variant": "[^"]*' | sed 's/.*"//')
"$2" bundle build "mla:h=8,t=9,page=64,target=sm_$target,limits=sm_120" --variant "$variant" --output "$folder/one.dwb" >/dev/null
"$1" "$folder/one.dwb" | tee "$folder/bundle"
grep -q '^bundle: .* 0 compiles$' "$folder/bundle"
