#!/usr/bin/env bash
# run.sh BUILD-DIR: installs into an empty folder and builds outside programs against that tree, by find_package and pkg-config.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/usr

cmake --install "$1" --prefix "$prefix" >"$folder/log" || { cat "$folder/log"; exit 1; }
library=$(dirname "$(find "$prefix" -name libdraftwood.so)")
export LD_LIBRARY_PATH=$library

echo "by find_package"
export DRAFTWOOD_CACHE_DIR=$folder/cache
cmake -S "$here" -B "$folder/build" -DCMAKE_PREFIX_PATH="$prefix" -DDRAFTWOOD_COMMAND="$prefix/bin/draftwood" >"$folder/log" && cmake --build "$folder/build" >>"$folder/log" ||
  { cat "$folder/log"; exit 1; }
"$folder/build/outside"
"$folder/build/outside_cxx"

echo "a bundle in the program, without a compiler"
env -u HOME DRAFTWOOD_CACHE_DIR= DRAFTWOOD_NVRTC=/nonexistent "$folder/build/embedded"

echo "the example of a host engine"
cmake -S "$here/../../runtime/examples" -B "$folder/example" -DCMAKE_PREFIX_PATH="$prefix" >"$folder/log" &&
  cmake --build "$folder/example" >>"$folder/log" || { cat "$folder/log"; exit 1; }
DRAFTWOOD_DRIVER=$(realpath "$1")/libsoft_gpu.so DRAFTWOOD_CACHE_DIR=$folder/cache "$folder/example/verify_step" --small
result=0
DRAFTWOOD_DRIVER=$folder/none.so "$folder/example/verify_step" || result=$?
[ $result = 77 ]

echo "by pkg-config"
export PKG_CONFIG_PATH=$library/pkgconfig
cc -std=c17 -Wall -Werror "$here/outside.c" -o "$folder/outside" $(pkg-config --cflags --libs draftwood)
"$folder/outside"

echo "the command"
"$prefix/bin/draftwood" version

echo "the README's program"
sed -n '/^```c$/,/^```$/p' "$here/../../README.md" | sed '/^```/d' >"$folder/readme.c"
cc -std=c17 -Wall -Wextra -Werror "$folder/readme.c" -o "$folder/readme" $(pkg-config --cflags --libs draftwood)
DRAFTWOOD_CACHE_DIR= "$folder/readme"
