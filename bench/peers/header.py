"""The C structs and enums of draftwood.h as ctypes, read from the header itself so that they cannot drift from it."""
import ctypes
import re

PLAIN = {"signed char": ctypes.c_byte, "int": ctypes.c_int, "size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64,
         "float": ctypes.c_float, "double": ctypes.c_double, "char": ctypes.c_char, "uint64_t": ctypes.c_uint64}


def clean(text):
    return re.sub(r"/\*.*?\*/", "", re.sub(r"//[^\n]*", "", text), flags=re.S)


def enums(text):
    """{type name: {member: value}}"""
    found = {}
    for body, name in re.findall(r"typedef enum \w+ \{([^}]*)\} (\w+);", text):
        members, value = {}, 0
        for item in filter(None, (part.strip() for part in body.split(","))):
            if "=" in item:
                item, value = item.split("=")[0].strip(), int(item.split("=")[1], 0)
            members[item] = value
            value += 1
        found[name] = members
    return found


def field_type(declaration, known):
    match = re.fullmatch(r"(?:const )?(?:struct )?(signed char|\w+) (\**)(\w+)(?:\[(\w+)\])?", declaration)
    if not match:
        raise ValueError(f"draftwood.h: {declaration!r} is not understood")
    base, stars, name, count = match.groups()
    kind = ctypes.c_void_p if stars else known[base]
    return name, kind * int(count) if count and count.isdigit() else kind


def fields(body, known):
    for declaration in filter(None, (" ".join(part.split()) for part in body.split(";"))):
        first, *others = [part.strip() for part in declaration.split(",")]
        yield field_type(first, known)
        base = first.rsplit(" ", 1)[0]
        for other in others:
            yield field_type(f"{base} {other}", known)


def read(path, names):
    """({struct: class}, {enum: members}) of the structs named."""
    with open(path, encoding="utf-8") as file:
        text = clean(file.read())
    found = enums(text)
    known = dict(PLAIN, **{name: ctypes.c_int for name in found})
    structs = {}
    for name in names:
        body = re.search(rf"typedef struct {name} \{{([^}}]*)\}} {name};", text).group(1)
        structs[name] = type(name, (ctypes.Structure,), {"_fields_": list(fields(body, known))})
    return structs, found
