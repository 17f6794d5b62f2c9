#!/usr/bin/env bash
# bundle_fleet.sh DRAFTWOOD WAY: bundles made by many and used where there is nothing else. Exit 77 is a skip, with its reason.
#
#   mpi, pmi, slurm  three processes at once, told apart by the variables of MPI or of a Slurm array; merged, their bundles are
#                    the bytes of one that was built whole
#   mpirun           the same, started by mpirun
#   liar             metadata that would speak to the terminal: not shown, not taken for a name, and found wrong
#   release          bench/release.sh: the release bundle, here a few kernels of it, built twice, interrupted in between
#   chroot           a root folder with the command, its libraries and a bundle: no compiler, no NVRTC, no Lua, nothing that can be
#                    written, another user, no network
#   network          the library has no function of one, and starts no program
#   nfs              a bundle that a network filesystem holds, by what statfs says, and nobody may write there
#   fatbin           fatbins by the toolkit's fatbinary, or an error that names it
#   strace           with a complete bundle, no file is opened for writing or made, and neither compiler nor Lua is looked for
set -euo pipefail
draftwood=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
way=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder"
unset DRAFTWOOD_BUNDLES XDG_CACHE_HOME
list=(kimi-k2.6-tp8,page=64 --widths 1,2,3 --variant family=reference --target sm_120,sm_90)

skip() { echo "SKIP $way: $*"; exit 77; }
fail() { echo "FAILED $way: $*"; exit 1; }

whole() { DRAFTWOOD_CACHE_DIR=$folder/whole "$draftwood" bundle build "${list[@]}" --companions --output whole.dwb; }

# Each with a cache of its own, as on machines of their own.
shard() { DRAFTWOOD_CACHE_DIR=$folder/cache-$1 "$draftwood" bundle build "${list[@]}" --companions --jobs 1 --shard auto --output part-%i.dwb; }

# What each process said of its memory: a third of this is asked for.
memory_is_bounded() {
  local mib
  for mib in $(sed -n 's/.* \([0-9]*\) MiB of memory$/\1/p' "$@"); do [ "$mib" -lt 1200 ] || fail "a worker took $mib MiB"; done
}

merged_is_whole() {
  whole
  [ "$(ls part-*.dwb | wc -l)" = 3 ] || fail "found $(ls part-*), allowed three parts"
  "$draftwood" bundle merge part-*.dwb --output merged.dwb
  cmp whole.dwb merged.dwb || fail "the merged bundle has other bytes"
  "$draftwood" bundle verify merged.dwb
}

# three_processes NAME=VALUE-WITH-%...: % is the process's number.
three_processes() {
  local i pids=() variable
  for i in 0 1 2; do
    (
      for variable; do export "${variable//%/$i}"; done
      shard $i
    ) >said-$i &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || fail "a shard failed"; done
  cat said-*
  memory_is_bounded said-*
  merged_is_whole
}

case $way in
mpi) three_processes OMPI_COMM_WORLD_RANK=% OMPI_COMM_WORLD_SIZE=3 ;;
pmi) three_processes PMI_RANK=% PMI_SIZE=3 ;;
slurm) three_processes SLURM_ARRAY_TASK_ID=2%0 SLURM_ARRAY_TASK_MIN=200 SLURM_ARRAY_TASK_STEP=10 SLURM_ARRAY_TASK_COUNT=3 ;;

mpirun)
  command -v mpirun >/dev/null || skip "mpirun is not installed (openmpi-bin)"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 DRAFTWOOD_CACHE_DIR=$folder/cache
  timeout 300 mpirun -n 3 --oversubscribe "$draftwood" bundle build "${list[@]}" --companions --jobs 1 --shard auto \
    --output part-%i.dwb || fail "mpirun failed"
  merged_is_whole
  ;;

liar)
  command -v python3 >/dev/null || skip "python3 is not installed"
  "$draftwood" bundle build kimi-k2.6-tp8,page=64 --widths 1 --variant family=reference --output one.dwb
  # Another shape of the same length in the only entry's metadata, and both digests made good.
  python3 - <<'END'
import hashlib, re
data = bytearray(open("one.dwb", "rb").read())
offset, size = (int.from_bytes(data[at:at + 8], "little") for at in (160 + 144, 160 + 152))
shape = re.search(rb'"shape":"([^"]*)"', data).group(1)
lie = rb"\u001b]0;owned\u0007/../../x"
data[offset:offset + size] = data[offset:offset + size].replace(shape, lie.ljust(len(shape), b"x"))
data[160 + 64:160 + 96] = hashlib.sha256(data[offset:offset + size]).digest()
data[128:160] = hashlib.sha256(data[:128] + data[160:160 + 192]).digest()
open("lie.dwb", "wb").write(data)
END
  "$draftwood" bundle ls lie.dwb >shown
  tail -n 1 shown | grep -q ' ? *$' || { cat -v shown; fail "the shape is shown"; }
  if grep -q $'\033' shown; then fail "it speaks to the terminal"; fi
  if "$draftwood" bundle verify lie.dwb; then fail "verify takes it"; fi
  "$draftwood" bundle extract lie.dwb --cubin out
  [ "$(find . -name '*.cubin')" = "$(find ./out -name '*.cubin')" ] || fail "a cubin lies elsewhere: $(find . -name '*.cubin')"
  ;;

release)
  part=(--widths 1 --pages 64 --variant family=reference --limits sm_120)
  code=0
  "$here/../bench/release.sh" "$draftwood" release 0 "${part[@]}" >said || code=$?
  [ $code = 75 ] || { cat said; fail "it was not interrupted: exit $code"; }
  "$here/../bench/release.sh" "$draftwood" release 500 "${part[@]}" >said || { cat said; fail "exit $?"; }
  tail -n 3 said
  grep -c '"entries":.*"sha256":' said | grep -q '^2$' || { cat said; fail "no two records"; }
  "$draftwood" bundle build --release "${part[@]}" --output whole.dwb
  cmp whole.dwb release/a/release.dwb || fail "one that was built whole has other bytes"
  ;;

chroot)
  [ "$(id -u)" = 0 ] || skip "only root may change the root folder"
  whole
  mkdir -p root/bin
  cp "$draftwood" root/bin/draftwood
  for file in $(ldd "$draftwood" | grep -o '/[^ ]*'); do
    mkdir -p "root$(dirname "$file")"
    cp -L "$file" "root$file"
  done
  [ -z "$(find root -name '*lua*')" ] || fail "found Lua in $(find root -name '*lua*')"
  cp whole.dwb root/bundle.dwb
  chmod -R a-w,a+rX root
  before=$(cd root && find . -printf '%p %s %T@ %m\n' | sort)
  namespace=()
  if unshare -n true 2>/dev/null; then namespace=(unshare -n); else echo "no network namespace can be made here"; fi
  inside() {  # BUNDLES ARGUMENTS...
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DRAFTWOOD_BUNDLES="$1" "${namespace[@]}" chroot --userspec=65534:65534 root \
      /bin/draftwood "${@:2}"
  }
  # Without the bundle there is no way; with it, all kernels come.
  if inside "" build "${list[@]}" >without.txt 2>&1; then fail "it compiled where there is no compiler"; fi
  grep -q 'mla:h=8,t=1.*NVRTC\|mla:h=8,t=1.*nvrtc' without.txt || { cat without.txt; fail "the error names neither shape nor library"; }
  inside /bundle.dwb build "${list[@]}" >with.txt 2>&1 || { cat with.txt; fail "the bundle did not do"; }
  grep '6 variants, 0 compiled, 6 from cache' with.txt || { cat with.txt; fail "not all came from the bundle"; }
  inside /bundle.dwb build --companions --target sm_120,sm_90 >with.txt || fail "no companions"
  [ "$(grep -c ' hit$' with.txt)" = 10 ] || { cat with.txt; fail "the companions did not come from the bundle"; }
  [ "$before" = "$(cd root && find . -printf '%p %s %T@ %m\n' | sort)" ] || fail "something was written: $(find cache home | head -n 20)"
  ;;

nfs)
  command -v cc >/dev/null || skip "there is no C compiler for the stand-in"
  [ "$(id -u)" = 0 ] || skip "only root can hand the folder to nobody else"
  whole
  # What statfs says of every file: NFS.
  cat >nfs.c <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/vfs.h>
#define STAND_IN(name, type)                                                                  \
  int name(type file, struct statfs *info) {                                                  \
    int result = ((int (*)(type, struct statfs *))dlsym(RTLD_NEXT, #name))(file, info);       \
    if (!result) info->f_type = 0x6969;                                                       \
    return result;                                                                            \
  }
STAND_IN(statfs, const char *)
STAND_IN(fstatfs, int)
END
  cc -shared -fPIC nfs.c -o nfs.so -ldl
  cp "$draftwood" draftwood
  mkdir cache && chmod 555 cache
  before=$(find . -printf '%p %s %T@\n' | sort)
  nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups env LD_PRELOAD="$folder/nfs.so" HOME=/nonexistent
    DRAFTWOOD_CACHE_DIR="$folder/cache" DRAFTWOOD_BUNDLES="$folder/whole.dwb" DRAFTWOOD_NVRTC=/nonexistent)
  lists=$("${nobody[@]}" ./draftwood doctor || true)
  grep -q 'cache.*nfs' <<<"$lists" || { echo "$lists"; fail "the stand-in is not seen"; }
  "${nobody[@]}" ./draftwood build "${list[@]}" | grep '6 variants, 0 compiled, 6 from cache' || fail "not all came from the bundle"
  [ "$before" = "$(find . -printf '%p %s %T@\n' | sort)" ] || fail "something was written"
  ;;

fatbin)
  whole
  code=0
  CUDA_HOME=/nonexistent PATH=/nonexistent "$draftwood" bundle extract whole.dwb --fatbin none 2>error.txt || code=$?
  [ $code = 2 ] && grep -q fatbinary error.txt || fail "a missing fatbinary is not told of"
  [ -z "$(find none -mindepth 1)" ] || fail "something was left behind: $(ls none)"
  command -v fatbinary >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/fatbinary" ] || skip "fatbinary is not installed"
  "$draftwood" bundle extract whole.dwb --fatbin out
  # Four files for three widths and the companions, each with two images.
  [ "$(find out -name '*.fatbin' | wc -l)" = 4 ] && [ "$(grep -c '"packed_bytes"' out/index.json)" = 8 ] || fail "found $(ls out)"
  [ "$(find out -mindepth 1 | wc -l)" = 5 ] || fail "something was left behind"
  for file in out/*.fatbin; do
    [ "$(head -c 4 "$file" | od -An -tx1 | tr -d ' ')" = 50ed55ba ] || fail "$file is no fatbin"
  done
  ;;

strace)
  command -v strace >/dev/null || skip "strace is not installed"
  whole
  mkdir cache home
  export DRAFTWOOD_CACHE_DIR=$folder/cache HOME=$folder/home DRAFTWOOD_BUNDLES=$folder/whole.dwb DRAFTWOOD_NVRTC=$folder/nvrtc
  strace -f -e trace=file,socket,connect -o calls "$draftwood" build "${list[@]}" >built.txt || {
    grep -q ptrace calls built.txt && skip "this machine allows no ptrace"
    fail "the build failed"
  }
  grep '6 variants, 0 compiled, 6 from cache' built.txt || fail "not all came from the bundle"
  if grep -E 'O_WRONLY|O_RDWR|O_CREAT|mkdir|rename|unlink|nvrtc|lua|socket|connect' calls
  then fail "a file was written, or a compiler or Lua looked for"; fi
  [ -z "$(find cache home -mindepth 1)" ] || fail "something was written: $(find cache home | head -n 20)"
  grep -c whole.dwb calls
  ;;

network)
  # Tuning starts its worker by posix_spawnp, in one place; no other program is ever started by the library.
  if nm -D --undefined-only "$(dirname "$draftwood")/libdraftwood.so" | sed 's/@.*//' |
    grep -wE 'socket|connect|bind|listen|getaddrinfo|gethostbyname|send|recv|v?fork|clone|exec[a-z]*|posix_spawn|system|popen'
  then fail "the library can use a network, or start a program"; fi
  calls=$(cd "$(dirname "$0")/.." && grep -l 'posix_spawnp *(' {src,gen,cache,runtime}/*.c | grep -v '/cli_')
  [ "$calls" = src/tune_run.c ] || fail "programs are started in: $calls"
  ;;

*) fail "allowed mpi, pmi, slurm, mpirun, liar, release, chroot, nfs, fatbin, strace or network" ;;
esac
