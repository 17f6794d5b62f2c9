# Sourced by quickstart and check: finds what is missing, says so, installs it by package name. Debian 12 and Ubuntu 24.04.

build_packages=(cmake ninja-build pkg-config gcc g++ liblua5.4-dev libsodium-dev libzstd-dev libxxhash-dev
  libjansson-dev libcmocka-dev)
pip_packages=(python3 python3-pip ca-certificates)
nvrtc_pypi=build/nvrtc
log=build/setup.log

say() { printf '== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Runs a command as root with its output in the log, which is shown if it fails.
as_root() {
  local sudo=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo; install as root: ${missing[*]}"
    sudo=(sudo)
  fi
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; die "failed: $*"; }
}

# install_packages NAME...: asks apt only if one is missing.
install_packages() {
  local missing=() name
  command -v dpkg-query >/dev/null || { say "not a Debian system: install what these packages hold: $*"; return 0; }
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || missing+=("$name")
  done
  if ((${#missing[@]} == 0)); then return 0; fi
  mkdir -p build
  say "installing with apt: ${missing[*]}"
  as_root apt-get -q -o DPkg::Lock::Timeout=300 update
  as_root apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install --no-install-recommends "${missing[@]}"
}

# pip_install FOLDER LIST: packages of a requirements list into a folder of ours, never into the system's Python.
# A finished folder bears a copy of its list, so that it is made again when a pin moves and after an interrupted run.
pip_install() {
  local folder=$1 list=$2 python=python3
  cmp -s "$list" "$folder/installed.txt" && return 0
  if ! python3 -m pip --version >/dev/null 2>&1; then
    install_packages "${pip_packages[@]}"
    python=/usr/bin/python3
  fi
  say "installing with pip into $folder: $(sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' "$list" | paste -sd ' ')"
  mkdir -p build
  rm -rf "$folder"
  "$python" -m pip install --disable-pip-version-check --root-user-action=ignore --no-deps --target "$folder" -r "$list" \
    >>"$log" 2>&1 || { tail -n 20 "$log" >&2; die "pip could not install $list"; }
  cp "$list" "$folder/installed.txt"
}

# Prints the folder of an installed toolkit's NVRTC, 12.9 or newer; fails if there is none. The version stands in the name of
# the builtins file beside the library.
toolkit_nvrtc() {
  local folders folder file major minor
  mapfile -t folders < <(
    printf '%s\n' ${CUDA_HOME:+"$CUDA_HOME"/lib64 "$CUDA_HOME"/lib} /usr/local/cuda/lib64 /usr/local/cuda-*/lib64
    { ldconfig -p 2>/dev/null || /sbin/ldconfig -p; } | sed -n 's|.*=> \(.*\)/libnvrtc\.so\.1[23]$|\1|p'
  )
  for folder in "${folders[@]}"; do
    for file in "$folder"/libnvrtc-builtins.so.1[23].*; do
      [[ $file =~ \.so\.([0-9]+)\.([0-9]+)$ && -e $folder/libnvrtc.so.${BASH_REMATCH[1]} ]] || continue
      major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]}
      if ((major > 12 || minor >= 9)); then
        printf '%s\n' "$folder"
        return 0
      fi
    done
  done
  return 1
}

# set_up_nvrtc auto|toolkit|pypi: leaves the folder in DRAFTWOOD_NVRTC, where the library looks first.
set_up_nvrtc() {
  local way=$1 folder=
  if [ "$way" != pypi ]; then folder=$(toolkit_nvrtc) || true; fi
  if [ "$way" = toolkit ] && [ -z "$folder" ]; then die "no CUDA toolkit of 12.9 or newer found"; fi
  if [ -z "$folder" ]; then
    pip_install "$nvrtc_pypi" .ci/nvrtc.txt
    folder=$PWD/$nvrtc_pypi/nvidia/cu13/lib
    ln -sfn nvrtc/nvidia build/nvidia  # where a library in build/release looks by itself
  fi
  export DRAFTWOOD_NVRTC=$folder
  say "NVRTC: $folder"
}
