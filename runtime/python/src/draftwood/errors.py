"""One exception class for each dw_status. All are DraftwoodError and carry the library's evidence."""
from __future__ import annotations

from ._abi import Status


class DraftwoodError(Exception):
    """What went wrong, with its evidence.

    status   the library's status
    field    the argument, field or file it is about; may be empty, as the next two
    found    what was there
    allowed  what would have been right
    log      a compiler's or interpreter's log, or None
    """

    status: Status = Status.INTERNAL

    def __init__(self, message: str, field: str = "", found: str = "", allowed: str = "", log: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.found = found
        self.allowed = allowed
        self.log = log


class BadArgument(DraftwoodError, ValueError):
    """An argument is wrong."""
    status = Status.BAD_ARGUMENT


class BadShape(DraftwoodError, ValueError):
    """The shape is not valid."""
    status = Status.BAD_SHAPE


class NotApplicable(DraftwoodError):
    """The variant cannot serve this shape."""
    status = Status.NOT_APPLICABLE


class UnsupportedTarget(DraftwoodError):
    """No template or compiler serves this target."""
    status = Status.UNSUPPORTED_TARGET


class OutOfMemory(DraftwoodError, MemoryError):
    """Out of host memory."""
    status = Status.OUT_OF_MEMORY


class TemplateError(DraftwoodError):
    """A template failed."""
    status = Status.TEMPLATE


class NoCompiler(DraftwoodError):
    """NVRTC 12.9 or newer was not found. `pip install nvidia-cuda-nvrtc` brings one."""
    status = Status.NO_COMPILER


class CompileError(DraftwoodError):
    """The kernel did not compile; `log` has the compiler's words."""
    status = Status.COMPILE


class NoDriver(DraftwoodError):
    """The CUDA driver was not found."""
    status = Status.NO_DRIVER


class DriverError(DraftwoodError):
    """The CUDA driver reported an error."""
    status = Status.DRIVER


class BadCubin(DraftwoodError):
    """The cubin is damaged."""
    status = Status.BAD_CUBIN


class WrongArch(DraftwoodError):
    """The cubin is for another GPU architecture."""
    status = Status.WRONG_ARCH


class FileError(DraftwoodError):
    """A file could not be read or written."""
    status = Status.IO


class NotFound(DraftwoodError, LookupError):
    """Not found."""
    status = Status.NOT_FOUND


class Frozen(DraftwoodError):
    """Not prepared before Context.freeze."""
    status = Status.FROZEN


class Cancelled(DraftwoodError):
    """Cancelled by the caller."""
    status = Status.CANCELLED


class HostExecution(DraftwoodError):
    """Host execution found a fault."""
    status = Status.HOST_EXECUTION


class WrongResult(DraftwoodError):
    """The result differs from the oracle."""
    status = Status.WRONG_RESULT


class InternalError(DraftwoodError):
    """Internal error."""
    status = Status.INTERNAL


class BadBundle(DraftwoodError):
    """The bundle cannot be used."""
    status = Status.BAD_BUNDLE


BY_STATUS: dict[int, type[DraftwoodError]] = {
    int(cls.status): cls
    for cls in (BadArgument, BadShape, NotApplicable, UnsupportedTarget, OutOfMemory, TemplateError, NoCompiler, CompileError,
                NoDriver, DriverError, BadCubin, WrongArch, FileError, NotFound, Frozen, Cancelled, HostExecution,
                WrongResult, InternalError, BadBundle)
}


def bad_argument(field: str, found: object, allowed: str, why: str = "") -> BadArgument:
    """As the library words it."""
    return BadArgument(f"{field}: found {found}, allowed {allowed}" + (f": {why}" if why else ""), field, str(found), allowed)
