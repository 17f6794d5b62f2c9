"""The shared library: found, loaded, and called so that a status becomes an exception."""
from __future__ import annotations

import ctypes
import os
from typing import Any, NoReturn

from . import _abi
from ._version import __version__
from .errors import BY_STATUS, InternalError


def _load() -> ctypes.CDLL:
    """$DRAFTWOOD_LIBRARY, else the one that the wheel brought, else what the loader finds."""
    name = "libdraftwood.so.0"
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    path = os.environ.get("DRAFTWOOD_LIBRARY") or (beside if os.path.exists(beside) else name)
    try:
        library = ctypes.CDLL(path)
        for function, (result, arguments) in _abi.FUNCTIONS.items():
            entry = getattr(library, function)
            entry.restype = result
            entry.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ImportError(f"draftwood: {path} cannot be used: {error}; allowed: libdraftwood.so.0 of version {__version__}, "
                          "its path may stand in DRAFTWOOD_LIBRARY") from None
    found = library.dw_version().decode()
    if found != __version__:
        raise ImportError(f"draftwood: {path} is version {found}, this package is {__version__}")
    return library


lib: Any = _load()


def raise_error(error: _abi.Error, status: int) -> NoReturn:
    """The record as an exception; the record is empty afterwards."""
    text = {name: getattr(error, name).decode(errors="replace") for name in ("field", "found", "allowed", "message")}
    log = ctypes.string_at(error.log).decode(errors="replace") if error.log else None
    lib.dw_error_clear(ctypes.byref(error))
    message = text["message"] or lib.dw_status_text(status).decode()
    raise BY_STATUS.get(status, InternalError)(message, text["field"], text["found"], text["allowed"], log)


def call(function: str, *arguments: Any) -> None:
    """Calls a function whose last argument is the error record."""
    error = _abi.Error()
    status = getattr(lib, function)(*arguments, ctypes.byref(error))
    if status:
        raise_error(error, status)


def text_of(function: str, struct: ctypes.Structure) -> str:
    """What dw_shape_print and its like write."""
    buffer = ctypes.create_string_buffer(_abi.DW_TEXT_MAX)
    getattr(lib, function)(ctypes.byref(struct), buffer, len(buffer))
    return buffer.value.decode()


def take_text(pointer: ctypes.c_void_p) -> str:
    """A text of the library, which is freed."""
    try:
        return ctypes.string_at(pointer.value or 0).decode() if pointer.value else ""
    finally:
        lib.dw_free(pointer)
