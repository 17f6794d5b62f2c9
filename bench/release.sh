#!/usr/bin/env bash
# release.sh DRAFTWOOD FOLDER SECONDS [OPTION...]: the release bundle (draftwood bundle build --release, with more options of it), built
# twice, in FOLDER/a and FOLDER/b, each by as many processes as there are cores (WORKERS) with a cache of its own, merged and compared.
# After SECONDS it stops and exits 75: run it again, and it goes on where it was. The last lines are records for bench/results; worker_minutes are those of the last pass.
set -euo pipefail
usage="usage: release.sh DRAFTWOOD FOLDER SECONDS [OPTION...]"
draftwood=$(realpath "${1:?$usage}")
folder=${2:?$usage}
deadline=$((SECONDS + ${3:?$usage}))
shift 3
workers=${WORKERS:-$(nproc)}
unset DRAFTWOOD_BUNDLES
export DRAFTWOOD_CACHE_LIMIT=4G
mkdir -p "$folder"
cd "$folder"

# worker FOLDER I: a shard, unless an earlier run has made it. Its report has time and memory.
worker() {
  [ ! -s "$1/report-$2.json" ] || return 0
  DRAFTWOOD_CACHE_DIR=$PWD/$1/cache timeout -k 5 $((deadline > SECONDS ? deadline - SECONDS : 1)) \
    "$draftwood" bundle build --release "${@:3}" --shard "$2/$workers" --jobs 1 --json --output "$1/part-$2.dwb" \
    >"$1/new-$2.json" 2>"$1/log-$2" && mv "$1/new-$2.json" "$1/report-$2.json"
}

build() {
  local i code=0 pids=() begin=$SECONDS
  mkdir -p "$1/cache"
  chmod 700 "$1/cache"
  for ((i = 0; i < workers; i++)); do
    worker "$1" "$i" "${@:2}" &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || code=$?; done
  echo $((SECONDS - begin)) >>"$1/seconds"
  if [ $code = 124 ] || [ $code = 137 ]; then
    echo "$1: $(find "$1/cache" -path '*/obj/*' -type f | wc -l) kernels so far; run it again to go on"
    exit 75
  fi
  [ $code = 0 ] || { cat "$1"/log-*; exit 1; }
  "$draftwood" bundle merge "$1"/part-*.dwb --output "$1/release.dwb"
}

# field NAME: of all workers' reports, a number a line.
field() { sed -n "s/^ *\"$1\": \([0-9]*\).*/\1/p" "$2"/report-*.json; }
most() { sort -n | tail -n 1; }

for one in a b; do [ -s $one/release.dwb ] || build $one "$@"; done
cat a/log-0
cmp a/release.dwb b/release.dwb || { echo "FAILED: the two have other bytes"; exit 1; }
"$draftwood" bundle verify a/release.dwb | tail -n 1
entries=$("$draftwood" bundle ls a/release.dwb | sed -n 's/^entries *//p')
for one in a b; do
  printf '{"command":"bundle build --release%s","date":"%s","commit":"%s","nvrtc":"%s","folder":"%s","entries":%d,"bytes":%d,' \
    "${*:+ $*}" "$(date -u +%F)" "${DRAFTWOOD_COMMIT:-$("$draftwood" version | head -n 1)}" \
    "$("$draftwood" doctor | sed -n 's/^NVRTC *\(nvrtc [0-9.]*\).*/\1/p')" $one "$entries" "$(stat -c %s $one/release.dwb)"
  printf '"workers":%d,"passes":%d,"wall_minutes":%.1f,"worker_minutes":%.1f,"worker_mib_most":%d,"left_out":%d,"sha256":"%s"}\n' \
    "$workers" "$(wc -l <$one/seconds)" "$(awk '{ sum += $1 } END { print sum / 60 }' $one/seconds)" "$(field ms $one | awk '{ s += $1 } END { print s / 6e4 }')" \
    $(($(field memory_bytes $one | most) / 1048576)) "$(field left_out $one | most)" "$(sha256sum <$one/release.dwb | cut -c -64)"
done
