"""What a worker process of any engine keeps: a frozen context, its kernels by width, a workspace, the switch and its warnings."""
from __future__ import annotations

import logging
import os
from enum import Enum
from typing import Any, Iterable

from ..context import Context, Kernel, Request
from ..errors import bad_argument
from ..shapes import Bounds, Shape

logger = logging.getLogger("draftwood")
SWITCH = "DRAFTWOOD_VERIFY"
MISSES = "DRAFTWOOD_MISSES"
SHADOW_BOUND = 4e-3  # relative L2 distance of a row between two right kernels
SHADOW_STEPS = 256   # steps from one report to the next
DETERMINISTIC_RANGE = 1024  # tokens a KV range where results may not depend on the batch
_TORCH_DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


class VerifyMode(Enum):
    """ON: draftwood's result; OFF: the engine's own kernels alone; SHADOW: both run, the engine's result is used and the difference
    reported."""

    ON = "on"
    OFF = "off"
    SHADOW = "shadow"

    @classmethod
    def of_environment(cls) -> VerifyMode:
        """What $DRAFTWOOD_VERIFY says; ON if it is not set."""
        value = os.environ.get(SWITCH, cls.ON.value)
        try:
            return cls(value.lower())
        except ValueError:
            raise bad_argument(SWITCH, value, ", ".join(mode.value for mode in cls)) from None


class Warnings:
    """Each reason is given once a process."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def __call__(self, engine: str, reason: str) -> None:
        if reason not in self._given:
            self._given.add(reason)
            logger.warning("draftwood: %s's own kernels serve in place of ours: %s", engine, reason)


warn_once = Warnings()


class Worker:
    """Kernels of one shape for some widths, prepared together with the other workers of this host, then frozen. What had to be compiled
    is logged, and appended to the file that $DRAFTWOOD_MISSES names.

    shape   all but its width; widths: most rows of a request, a kernel each
    batch, kv_len  bounds of all calls
    """

    def __init__(self, shape: Shape, widths: Iterable[int], *, batch: int, kv_len: int, context: Context | None = None,
                 **bounds: Any) -> None:
        self.context = context or Context()
        self._requests = {width: Request(shape.replace(width=width), Bounds(batch=batch, kv_len=kv_len, **bounds))
                          for width in sorted(set(widths))}
        self.context.prepare(self._requests.values())
        self._kernels = {width: self.context.kernel(request.shape, request.bounds) for width, request in self._requests.items()}
        self.context.freeze()
        self._tell_misses()
        self.widths = tuple(self._kernels)
        self.workspace_size = max(kernel.workspace_size for kernel in self._kernels.values())

    def _tell_misses(self) -> None:
        text, path = self.context.miss_text(), os.environ.get(MISSES)
        if text:
            logger.info("draftwood: compiled, since neither bundles nor cache had it:\n%s", text.rstrip())
        if text and path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)

    def kernel(self, width: int) -> Kernel | None:
        """The narrowest kernel that takes requests of `width` rows; None: wider than any."""
        return next((kernel for most, kernel in self._kernels.items() if most >= width), None)


def dtype_name(dtype: Any) -> str | None:
    """A type of torch's as a shape's text has it; None: KV of this type goes to the engine's own kernels."""
    return _TORCH_DTYPES.get(str(dtype))


class OnDevice:
    """How an engine's device, tensors and streams come to calls. Tests on machines without a GPU put others in."""

    @staticmethod
    def target() -> Any:
        """The class of torch's current device, e.g. 120, as a shape's target."""
        import torch

        major, minor = torch.cuda.get_device_capability()
        return 10 * major + minor

    @staticmethod
    def array(tensor: Any) -> Any:
        return tensor

    @staticmethod
    def stream() -> Any:
        import torch

        return torch.cuda.current_stream()


def workspace(size: int, device: Any) -> Any:
    """A tensor of `size` bytes at a multiple of 256, wherever it lies."""
    import torch

    room = torch.empty(size + 256, dtype=torch.uint8, device=device)
    first = -room.data_ptr() % 256
    return room[first:first + size]


class Shadow:
    """Compares results row by row on the device; safe in graph capture, where each replay adds to the same counts."""

    def __init__(self, engine: str, device: Any) -> None:
        import torch

        self._engine = engine
        self._torch = torch
        self._steps = 0
        self.counts = torch.zeros(3, dtype=torch.float64, device=device)  # rows, rows beyond the bound, largest distance

    def compare(self, ours: Any, theirs: Any) -> None:
        """Both [rows, heads, v]."""
        torch = self._torch
        right = theirs.float()
        distance = (ours.float() - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-20)
        distance = torch.where(torch.isfinite(right).all(-1), distance, 0.0).flatten().double()
        self.counts[0] += distance.numel()
        self.counts[1] += (~(distance <= SHADOW_BOUND)).sum()
        self.counts[2] = torch.maximum(self.counts[2], distance.max())

    def step(self) -> None:
        """Between steps, outside of capture: reports from time to time, which waits for the device."""
        self._steps += 1
        if self._steps % SHADOW_STEPS == 0:
            self.report()

    def report(self) -> tuple[int, int, float]:
        """(rows compared, rows beyond the bound, largest distance), logged too."""
        rows, beyond, largest = self.counts.tolist()
        logger.log(logging.WARNING if beyond else logging.INFO,
                   "draftwood: shadow of %s: %d rows of a head, %d of them further than %g from ours, at most %.2e",
                   self._engine, rows, beyond, SHADOW_BOUND, largest)
        return int(rows), int(beyond), largest
