#!/usr/bin/env bash
# run.sh COMMAND CASE.sh: runs a case in an empty folder with `draftwood` on the path and compares what it prints, and its exit
# status in a last line, with CASE.out. Whatever changes from run to run is replaced first; see the list below.
# DRAFTWOOD_CLI_UPDATE=1 writes CASE.out anew.
set -uo pipefail
command=$(realpath "$1")
script=$(realpath "$2")
expected=${script%.sh}.out
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir "$folder/bin" "$folder/work"
ln -s "$command" "$folder/bin/draftwood"
export PATH=$folder/bin:$PATH HOME=$folder/work DRAFTWOOD_CACHE_DIR=$folder/work/cache LC_ALL=C
unset XDG_CACHE_HOME DRAFTWOOD_TEMPLATES

actual=$(
  cd "$folder/work" || exit 1
  bash "$script" 2>&1
  echo "exit $?"
)
actual=$(sed -E \
  -e "s|$folder/work|DIR|g" \
  -e 's/\b[0-9a-f]{64}\b/KEY/g' \
  -e 's/\b[0-9]+\.[0-9]+ ?ms\b/TIME/g' \
  -e 's/\bnvrtc [0-9]+\.[0-9]+\.[0-9]+/nvrtc VERSION/g' <<<"$actual")

if [ -n "${DRAFTWOOD_CLI_UPDATE:-}" ]; then
  printf '%s\n' "$actual" >"$expected"
fi
diff -u "$expected" - <<<"$actual"
