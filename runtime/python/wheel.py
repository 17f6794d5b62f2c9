#!/usr/bin/env python3
"""Makes a wheel that carries the library and what it needs beside the C library.

usage: wheel.py LIBRARY OUT

LIBRARY: a libdraftwood.so whose run path is its own folder. The wheel's platform is manylinux of the newest version of the C library
that anything in it asks for. Licences of what is carried come from /usr/share/doc, where Debian's packages put them.
"""
import glob
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# Parts of the C library belong to the machine.
MACHINES = re.compile(r"(lib(c|m|dl|pthread|rt)|ld-linux.*)\.so\.\d+$")
LUA = "liblua5.4.so.0"  # not linked but loaded


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(library):
    """Files of the libraries that it is linked with, and Lua."""
    found = dict(re.findall(r"(\S+) => (/\S+)", output("ldd", library)))
    cache = output(shutil.which("ldconfig") or "/sbin/ldconfig", "-p")
    lua = re.findall(rf"^\s*{re.escape(LUA)} .*=> (\S+)$", cache, re.M)
    if not lua:
        sys.exit(f"wheel.py: {LUA} was not found; it is in the package liblua5.4-0")
    found[LUA] = lua[0]
    return {name: path for name, path in found.items() if not MACHINES.match(name)}


def c_library_version(files):
    """(major, minor) of the newest symbol version of glibc in the files."""
    versions = [tuple(map(int, match)) for file in files
                for match in re.findall(r"\bGLIBC_(\d+)\.(\d+)", output("objdump", "-T", file))]
    return max(versions)


def licence(path):
    """The copyright file of the Debian package that a file comes from."""
    for name in {path, os.path.realpath(path), re.sub("^/usr", "", path), "/usr" + path}:
        owner = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True)
        if owner.returncode == 0:
            package = owner.stdout.split(":")[0]
            return package, f"/usr/share/doc/{package}/copyright"
    return None, None


def stage(library, folder):
    """The project with the libraries in it. Returns the platform."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(HERE, "src"), os.path.join(folder, "src"), ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(os.path.join(HERE, name), folder)
    licences, package = os.path.join(folder, "licenses"), os.path.join(folder, "src/draftwood")
    os.mkdir(licences)
    shutil.copy(os.path.join(HERE, "../../LICENSE"), os.path.join(licences, "LICENSE"))
    shutil.copy(library, os.path.join(package, "libdraftwood.so.0"))
    for name, path in needed(library).items():
        shutil.copy(path, os.path.join(package, name))
        owner, text = licence(path)
        if not owner or not os.path.exists(text):
            print(f"wheel.py: no licence text of {name} was found; add it before the wheel is passed on", file=sys.stderr)
        else:
            shutil.copy(text, os.path.join(licences, f"{owner}.txt"))
    for file in glob.glob(os.path.join(package, "*.so*")):
        os.chmod(file, 0o644)
        subprocess.run(["strip", "--strip-unneeded", file], check=True)
    major, minor = c_library_version(glob.glob(os.path.join(package, "*.so*")))
    return f"manylinux_{major}_{minor}_{os.uname().machine}"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    library, out = sys.argv[1:]
    folder = os.path.join(out, "stage")
    os.makedirs(out, exist_ok=True)
    for old in glob.glob(os.path.join(out, "draftwood-*.whl")):
        os.remove(old)
    environment = dict(os.environ, DRAFTWOOD_PLATFORM=stage(library, folder))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
                    "--no-build-isolation", "-w", out, folder], check=True, env=environment)
    print(glob.glob(os.path.join(out, "draftwood-*.whl"))[0])


if __name__ == "__main__":
    main()
