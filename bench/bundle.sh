#!/usr/bin/env bash
# bundle.sh OUT [PLAN]: a folder that runs on another x86-64 Linux machine with a GPU and nothing of ours installed: the command
# with the libraries it needs beside it, and a cache with every cubin that PLAN (bench/plan.txt) asks for, so that nothing is
# compiled there; none with /dev/null for PLAN. TARGET=90 names the device class. Start it as OUT/draftwood, or run the whole plan with OUT/run RESULTS.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:?usage: bench/bundle.sh OUT [PLAN]}
plan=$(realpath "${2:-bench/plan.txt}")
target=${TARGET:-90}
jobs=$(nproc)
unset DRAFTWOOD_CACHE_DIR DRAFTWOOD_DRIVER
mkdir -p build "$out/lib" "$out/cache"
out=$(realpath "$out")
chmod -R go-w "$out"

# DT_RPATH, not DT_RUNPATH: it also counts for what the libraries themselves need.
cmake -S . -B build/bundle -G Ninja -DCMAKE_BUILD_TYPE=Release -DDRAFTWOOD_TESTS=OFF \
  -DCMAKE_EXE_LINKER_FLAGS='-Wl,--disable-new-dtags,-rpath,\$ORIGIN' \
  -DCMAKE_SHARED_LINKER_FLAGS='-Wl,--disable-new-dtags,-rpath,\$ORIGIN' >build/configure-bundle.log
# The target draftwood is hidden by the command of that name.
cmake --build build/bundle --target draftwood_cli libdraftwood.so.0
cp build/bundle/draftwood "$out/lib/draftwood"
cp -L build/bundle/libdraftwood.so.0 "$out/lib/"
mkdir -p "$out/peers"
cp bench/peers/*.py src/draftwood.h src/draftwood_companions.h "$out/peers/"

# All but the C library, which belongs to its machine.
ldd build/bundle/draftwood | awk '$2 == "=>" { print $3 }' | while read -r library; do
  case $(basename "$library") in
  libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | ld-linux*) ;;
  *) cp -L "$library" "$out/lib/" ;;
  esac
done
lua=$({ ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | awk '/liblua5\.4\.so\.0 / { found = $NF } END { print found }')
cp -L "${lua:?liblua5.4.so.0 was not found}" "$out/lib/liblua5.4.so.0"

commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain --untracked-files=no -- src gen cache runtime templates)" ] || commit=$commit-changed
cat >"$out/draftwood" <<END
#!/bin/sh
here=\$(cd "\$(dirname "\$0")" && pwd)
export DRAFTWOOD_LUA="\$here/lib/liblua5.4.so.0" DRAFTWOOD_COMMIT=$commit
export DRAFTWOOD_CACHE_DIR="\${DRAFTWOOD_CACHE_DIR:-\$here/cache}"
exec "\$here/lib/draftwood" "\$@"
END
{
  grep -v '^exec' "$out/draftwood"
  echo 'exec python3 "$here/peers/peers.py" --library "$here/lib/libdraftwood.so.0" "$@"'
} >"$out/peers.sh"
cat >"$out/run" <<'END'
#!/bin/sh
# run RESULTS: the whole plan, measurements to RESULTS/results.jsonl, all output to RESULTS/log.txt. Exit 1 if a line failed.
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run RESULTS}
mkdir -p "$results"
chmod -R go-w "$here/cache" 2>/dev/null  # a cache that others may write to is not trusted
grep -v '^ *\(#\|$\)' "$here/plan.txt" | {
  failed=0
  while read -r line; do
    case $line in bench*) line="$line --record $results/results.jsonl" ;; esac
    echo "== $line"
    case $line in
    peers*) eval "$here/peers.sh ${line#peers} --record $results/results.jsonl" ;;
    *) eval "$here/draftwood $line" ;;
    esac </dev/null 2>&1 || { echo "== exit $?"; failed=1; }
  done
  exit $failed
} >"$results/log.txt" 2>&1
code=$?
tail -n 60 "$results/log.txt"
exit $code
END
chmod 755 "$out/draftwood" "$out/peers.sh" "$out/run"
cp "$plan" "$out/plan.txt"

# Cubins. A suite's cases are shared out, since each builds in order.
build() { "$out/draftwood" "$@" --build-only >/dev/null; }
export -f build
export out
[ ! -s "$out/plan.txt" ] || {
  grep '^bench' "$plan"
  if grep -q -- '--suite --quick' "$plan"; then echo "verify --suite --quick --target $target"; fi
  if grep -v -- '--quick' "$plan" | grep -- '--suite' >/dev/null; then
    for i in 0 1 2 3 4 5 6; do echo "verify --suite --target $target --seed $((39 * i)) --cases 39"; done
  fi
} | xargs -P "$jobs" -d '\n' -I LINE bash -c 'eval "build LINE"'
"$out/draftwood" cache stats
du -sh "$out" | sed 's/\t.*/ in all/'
