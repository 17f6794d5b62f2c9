#!/usr/bin/env bash
# run.sh BUILD-DIR SECONDS [NEW-CORPUS]: each fuzz target from its corpus on for its share of SECONDS, with libFuzzer. What it finds
# beside the corpus goes to NEW-CORPUS, else it is thrown away; inputs that fail are left in the current folder and named.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$1 seconds=$2 new=${3:-}
targets=(entry manifest bundle record cubin tune)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for target in "${targets[@]}"; do
  found=${new:-$folder}/$target
  mkdir -p "$found"
  "$build/fuzz_$target" -max_total_time=$((seconds / ${#targets[@]})) -max_len=65536 -timeout=30 -rss_limit_mb=2048 \
    -artifact_prefix="$target-" -verbosity=1 "$found" "$here/../data/fuzz/$target" >"$folder/$target.log" 2>&1 ||
    { tail -n 40 "$folder/$target.log"; echo "FAILED fuzz_$target"; exit 1; }
  echo "fuzz_$target: $(grep -o '^Done .*' "$folder/$target.log"), $(grep -oE 'cov: [0-9]+ ft: [0-9]+' "$folder/$target.log" | tail -n 1)"
done
