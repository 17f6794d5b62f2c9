#!/usr/bin/env bash
# test_wheel.sh BUILD-DIR SOFT-GPU TOOLS: builds the wheel, installs it into an empty environment without a network, and runs the
# package's tests there on what was installed. Every library but the C library's has to come from the wheel. TOOLS: folder of NumPy.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tools=$3
if ! PYTHONPATH=$tools python3 -c 'import setuptools, numpy' 2>/dev/null; then
  echo "SKIP wheel: setuptools or NumPy cannot be imported; ./check brings both"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --build "$1" --target wheel >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
wheel=$(echo "$1"/wheel/draftwood-*.whl)
python3 -m venv --without-pip "$folder/venv"
python3 -m pip --python "$folder/venv/bin/python" --disable-pip-version-check install --quiet --no-index "$wheel"
"$folder/venv/bin/python" -m zipfile -l "$wheel" | awk 'NR > 1 { print $1 }' | grep -E '\.so|licenses|METADATA'

cd "$folder"
unset DRAFTWOOD_LIBRARY DRAFTWOOD_DRIVER DRAFTWOOD_LUA LD_LIBRARY_PATH PYTHONPATH
export DRAFTWOOD_CACHE_DIR=$folder/cache PYTHONDONTWRITEBYTECODE=1
venv/bin/python - <<'END'
import os, re, sys
import draftwood
folder = os.path.dirname(draftwood.__file__)
assert folder.startswith(os.path.realpath(sys.prefix)) or folder.startswith(sys.prefix), folder
with draftwood.Context() as context:
    context.source("kimi-k2.6-tp8,t=9")  # loads Lua
    carried = {name for name in os.listdir(folder) if ".so" in name}
    with open("/proc/self/maps", encoding="utf-8") as file:
        mapped = {os.path.realpath(path) for path in re.findall(r"(/\S+\.so\S*)$", file.read(), re.M)}
    for name in carried:
        assert os.path.join(os.path.realpath(folder), name) in mapped, f"{name} of the wheel was not loaded: {mapped}"
    assert len(carried) >= 6, carried
    print("loaded from the wheel:", *sorted(carried))
    print("built:", context.build("kimi-k2.6-tp8,t=4").target)
END
"$folder/venv/bin/python" - <<'END'
from importlib.metadata import entry_points
for group in ("sglang.srt.plugins", "vllm.general_plugins"):
    (point,) = entry_points(group=group, name="draftwood")
    assert callable(point.load()), point
END
for test in host calls sglang vllm; do
  PYTHONPATH=$tools DRAFTWOOD_DRIVER=$2 venv/bin/python "$here/test_$test.py"
done
