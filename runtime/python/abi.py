#!/usr/bin/env python3
"""Makes src/draftwood/_abi.py, the ctypes side of draftwood.h, from the header itself.

usage: abi.py [--check] [--header FILE] [--offsets FILE]

Without options the file is written anew. --check: exit 1 with the difference where it is not what the header says.
--offsets FILE writes a C program that prints the size of every struct and the place of every field, as the C compiler has them.
--header FILE: another header than ../../src/draftwood.h. The C compiler's preprocessor (CC, else cc) expands the header's lists.
"""
import argparse
import difflib
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
OUTPUT = os.path.join(HERE, "src/draftwood/_abi.py")
SCALARS = {"int": "c_int", "char": "c_char", "signed char": "c_byte", "unsigned char": "c_uint8", "float": "c_float", "double": "c_double",
           "size_t": "c_size_t", "int32_t": "c_int32", "uint8_t": "c_uint8", "uint32_t": "c_uint32",
           "int64_t": "c_int64", "uint64_t": "c_uint64"}
# C name: Python class, its base, what members' names begin with.
ENUMS = {"dw_status": ("Status", "IntEnum", "DW_"), "dw_attention": ("Attention", "IntEnum", "DW_"),
         "dw_dtype": ("DType", "IntEnum", "DW_"), "dw_family": ("Family", "IntEnum", "DW_"),
         "dw_call": ("CallKind", "IntEnum", "DW_CALL_"), "dw_combine": ("Combine", "IntEnum", "DW_COMBINE_"),
         "dw_accumulate": ("Accumulate", "IntEnum", "DW_ACCUMULATE_"),
         "dw_feature": ("Feature", "IntFlag", "DW_WITH_"), "dw_log_level": ("LogLevel", "IntEnum", "DW_LOG_"),
         "dw_addressing": ("Addressing", "IntEnum", "DW_"), "dw_mask": ("Mask", "IntEnum", "DW_MASK_"),
         "dw_fault": ("Fault", "IntEnum", "DW_FAULT_"), "dw_effort": ("Effort", "IntEnum", "DW_"),
         "dw_source": ("Source", "IntEnum", "DW_FROM_")}


def preprocess(header):
    command = os.environ.get("CC", "cc").split() + ["-E", "-P", "-I", os.path.dirname(os.path.abspath(header)), header]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.sub(r'__attribute__\(\(visibility\("\w+"\)\)\) ?', "", " ".join(text.split()))


def constants(header):
    """#define DW_NAME number, of the header and those beside it."""
    folder = os.path.dirname(os.path.abspath(header))
    found = {}
    for path in [header, os.path.join(folder, "draftwood_companions.h")]:
        with open(path, encoding="utf-8") as file:
            found.update(re.findall(r"^#define (DW_\w+) (\d+)\b", file.read(), re.M))
    return found


def enums(text):
    for body, name in re.findall(r"typedef enum \w+ \{([^}]*)\} (\w+);", text):
        members, value = [], 0
        for item in filter(None, (part.strip() for part in body.split(","))):
            if "=" in item:
                item, given = (part.strip() for part in item.split("="))
                value = int(given, 0)
            members.append((item, value))
            value += 1
        yield name, members


def kind_of(base, stars, count, known):
    """A ctypes expression for a C type."""
    if stars:
        kind = "c_void_p"
    elif base in SCALARS:
        kind = SCALARS[base]
    elif base in ENUMS:
        kind = "c_int"
    elif base in known:
        kind = known[base]
    else:
        raise SystemExit(f"abi.py: the type {base!r} is not known; if it is an enum, name it in ENUMS")
    return f"{kind} * {count}" if count else kind


DECLARATION = re.compile(r"(?:const )?(?:struct )?((?:un)?signed char|\w+) ?((?:\*(?: ?const ?)?)*) ?(\w+)(?:\[(\w+)\])?")


def fields(body, known):
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        first, *others = [part.strip() for part in declaration.split(",")]
        match = DECLARATION.fullmatch(first)
        if not match:
            raise SystemExit(f"abi.py: {first!r} is not understood")
        base, stars, name, count = match.groups()
        yield name, kind_of(base, stars, count, known)
        for other in others:
            name, count = re.fullmatch(r"(\w+)(?:\[(\w+)\])?", other).groups()
            yield name, kind_of(base, stars, count, known)


def class_name(name):
    """dw_merge_args -> MergeArgs."""
    return "".join(part.capitalize() for part in name[3:].split("_"))


def structs(text):
    pointers = {name: "c_void_p" for name in re.findall(r"typedef \w+ \(\*(dw_\w+)\)", text)}
    known = dict(pointers)
    for body, name in re.findall(r"typedef struct \w+ \{([^}]*)\} (\w+);", text):
        yield name, list(fields(body, known))
        known[name] = class_name(name)


def argument(text):
    match = DECLARATION.fullmatch(text)
    base, stars, _, count = match.groups()
    if base == "char" and stars == "*" and text.startswith("const"):
        return "c_char_p"
    return kind_of(base, stars or count, None, {})


def functions(text):
    for result, stars, name, arguments in re.findall(r"(?:const )?(\w+) (\*?)(dw_\w+)\(([^()]*)\);", text):
        kind = {"void": "None"}.get(result) if not stars else "c_char_p"
        given = [] if arguments.strip() == "void" else [argument(part.strip()) for part in arguments.split(",")]
        yield name, kind or kind_of(result, "", None, {}), given


def python(header):
    text = preprocess(header)
    lines = [f"{name} = {value}" for name, value in sorted(constants(header).items())]
    for name, members in enums(text):
        if name not in ENUMS:
            raise SystemExit(f"abi.py: the enum {name} is not named in ENUMS")
        cls, base, prefix = ENUMS[name]
        lines += ["", "", f"class {cls}({base}):"]
        lines += [f"    {member[len(prefix):]} = {value}" for member, value in members if member.startswith(prefix)]
    for name, members in structs(text):
        lines += ["", "", f"class {class_name(name)}(Structure):", "    _fields_ = ["]
        lines += [f'        ("{member}", {kind}),' for member, kind in members] + ["    ]"]
    lines += ["", "", "# name: (result, arguments)", "FUNCTIONS = {"]
    for name, result, given in functions(text):
        lines += [f'    "{name}": ({result}, ({", ".join(given)}{"," if len(given) == 1 else ""})),']
    # Long signatures take a second line.
    body = re.sub(r'^(    "\w+": \(\w+,) (\(.{80,})$', r"\1\n        \2", "\n".join(lines) + "\n}\n", flags=re.M)
    imports = ["Structure"] + sorted(set(re.findall(r"\bc_\w+", body)))
    return ('"""The C side of draftwood.h. Made from the header by abi.py; not to be edited."""\n'
            f"from ctypes import {', '.join(imports)}\nfrom enum import IntEnum, IntFlag\n\n{body}")


def offsets(header):
    """A C program; its lines are "struct size" and "struct.field offset size"."""
    lines = ["#include <draftwood.h>", "#include <stdio.h>", "int main(void) {"]
    for name, members in structs(preprocess(header)):
        lines.append(f'  printf("{class_name(name)} %zu\\n", sizeof({name}));')
        lines += [f'  printf("{class_name(name)}.{member} %zu %zu\\n", offsetof({name}, {member}), sizeof((({name} *)0)->{member}));'
                  for member, _ in members]
    return "\n".join(lines + ["  return 0;", "}", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--header", default=os.path.join(HERE, "../../src/draftwood.h"))
    parser.add_argument("--offsets")
    args = parser.parse_args()
    if args.offsets:
        with open(args.offsets, "w", encoding="utf-8") as file:
            file.write(offsets(args.header))
        return 0
    wanted = python(args.header)
    if args.check:
        with open(OUTPUT, encoding="utf-8") as file:
            there = file.read()
        difference = difflib.unified_diff(there.splitlines(), wanted.splitlines(), "_abi.py", "draftwood.h", lineterm="", n=1)
        print("\n".join(difference), end="")
        return int(there != wanted)
    with open(OUTPUT, "w", encoding="utf-8") as file:
        file.write(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
