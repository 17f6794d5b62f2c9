#!/usr/bin/env bash
# run.sh COMMAND CASE.sh: runs a case in an empty folder and compares what it prints with CASE.out. In a case, `run ARGUMENTS`
# shows the command line, what `draftwood ARGUMENTS` prints, and its exit status. What differs from run to run is replaced first.
# DRAFTWOOD_CLI_UPDATE=1 writes CASE.out anew.
set -uo pipefail
draftwood=$(realpath "$1")
script=$(realpath "$2")
expected=${script%.sh}.out
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HOME=$folder DRAFTWOOD_CACHE_DIR=$folder/cache LC_ALL=C
unset XDG_CACHE_HOME DRAFTWOOD_TEMPLATES

run() {
  echo "\$ draftwood $*"
  "$draftwood" "$@"
  echo "[exit $?]"
}

actual=$(cd "$folder" && . "$script" 2>&1)
actual=$(sed -E -e "s|$folder|DIR|g" -e 's/\b[0-9a-f]{64}\b/KEY/g' -e 's/\b[0-9.]+ (ms|s)\b/TIME/g' \
  -e 's/\bnvrtc [0-9]+\.[0-9]+\.[0-9]+/nvrtc VERSION/g' <<<"$actual")

if [ -n "${DRAFTWOOD_CLI_UPDATE:-}" ]; then printf '%s\n' "$actual" >"$expected"; fi
diff -u "$expected" - <<<"$actual"
