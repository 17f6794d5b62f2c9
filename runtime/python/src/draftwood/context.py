"""Contexts and what they make: sources, cubins, kernels."""
from __future__ import annotations

import ctypes
import json
import logging
import weakref
from dataclasses import dataclass, field, fields
from typing import Any, Callable, Iterable, Sequence, TypeVar

from . import _abi
from ._abi import Effort, LogLevel, Mask, Source
from ._library import call, lib, take_text
from .calls import REPORT_WORDS, VerifyCall
from .companions import Companions
from .errors import bad_argument
from .shapes import Bounds, Shape, Variant

_T = TypeVar("_T")
_LogFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_ProgressFunction = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LOGGING_LEVELS = {LogLevel.DEBUG: logging.DEBUG, LogLevel.INFO: logging.INFO, LogLevel.WARNING: logging.WARNING}


@dataclass(frozen=True)
class Resources:
    """Resources of one kernel of a cubin. Bytes a thread or block; spills -1: not known."""

    name: str
    registers: int
    stack_bytes: int
    shared_static: int
    barriers: int
    spill_stores: int
    spill_loads: int
    max_threads: int
    uses_setmaxnreg: int


@dataclass(frozen=True)
class Cubin:
    """Compiled code for one target."""

    data: bytes = field(repr=False)
    target: str
    compiler: str
    request_key: str
    build_key: str
    compile_ms: float
    from_cache: bool
    kernels: tuple[Resources, ...]


@dataclass(frozen=True)
class Stats:
    """Counts of a context, as dw_stats has them."""

    compiles: int
    compile_failures: int
    hits_memory: int
    hits_disk: int
    misses: int
    damaged: int
    publish_failures: int
    hits_layers: int
    known_failures: int
    lock_timeouts: int
    evicted: int
    list_misses: int


@dataclass(frozen=True)
class Progress:
    """How far `Context.prepare` is: counts of requests."""

    requests: int
    done: int
    compiled: int
    failed: int
    elsewhere: int
    loaded: int


@dataclass(frozen=True)
class TuneProgress:
    """How far `Context.tune` is: of the list's problems the one in hand, from 0, with its candidates after pruning."""

    problems: int
    problem: int
    candidates: int
    prepared: int
    in_play: int
    rounds: int
    seconds: float
    budget_seconds: float


@dataclass(frozen=True)
class Choice:
    """A variant for a problem and where it is from. us and default_us: as recorded, 0: not known."""

    variant: Variant
    source: Source
    predicted: bool
    us: float
    default_us: float


@dataclass(frozen=True)
class Request:
    """An entry of the list that `Context.prepare` and `Context.tune` take. variant None: the plan's choice."""

    shape: Shape | str
    bounds: Bounds | None = None
    variant: Variant | None = None


def _values(struct: ctypes.Structure, cls: type[_T]) -> _T:
    return cls(**{field.name: getattr(struct, field.name) for field in fields(cls)})  # type: ignore[arg-type]


def _take_cubin(pointer: ctypes.c_void_p) -> Cubin:
    """Copies a cubin of the library, which is freed."""
    try:
        c = _abi.Cubin.from_address(pointer.value or 0)
        kernels = [Resources(k.name.decode(), *(getattr(k, name) for name, *_ in _abi.Resources._fields_[1:]))
                   for k in c.kernels[:c.kernel_count]]
        return Cubin(ctypes.string_at(c.data, c.size), c.target.decode(), c.compiler.decode(), c.request_key.decode(),
                     c.build_key.decode(), c.compile_ms, bool(c.from_cache), tuple(kernels))
    finally:
        lib.dw_cubin_free(pointer)


class Kernel:
    """A loaded kernel, ready to be bound and launched. It belongs to its context and to the CUDA context that was current.

    shape, bounds, variant  what it was made for
    workspace_size          bytes of device memory that a call needs, aligned to 256; may be shared by calls of one stream
    """

    def __init__(self, context: Context, handle: ctypes.c_void_p, shape: Shape, bounds: Bounds) -> None:
        self.context = context
        self.shape = shape
        self.bounds = bounds
        self._handle = handle
        variant = _abi.Variant()
        lib.dw_kernel_variant(handle, ctypes.byref(variant))
        self.variant = Variant(variant)
        self.workspace_size: int = lib.dw_workspace_size(handle)

    def bind(self, *, q: Any, out: Any, kv: Any, kv_len: Any, softmax_scale: float, workspace: Any = None, v: Any = None,
             kv_scale: Any = None, v_scale: Any = None, q_rope: Any = None, kv_rope: Any = None, lse: Any = None, lse_base: Any = 2,
             block_table: Any = None, kv_indptr: Any = None, kv_indices: Any = None, draft_slots: Any = None,
             lengths: str = "with_drafts", drafts_elsewhere: bool = False, qo_indptr: Any = None,
             batch: int | None = None, total_q: int | None = None,
             mask: Any = None, mask_kind: Mask = Mask.NONE, mask_indptr: Any = None,
             soft_cap: float = 0.0, window: int = 0, positions: Any = None, sinks: Any = None,
             overlap_prologue: bool = False, report: Any = None) -> VerifyCall:
        """Lays out a call's arguments once. Arrays are device memory: torch tensors, or anything with
        `__cuda_array_interface__` or `__dlpack__`; strides are taken from them. Each row of a request sees its whole prefix
        and, of its drafts, what the mask says.

        q, out         [total_q, heads, qk], [total_q, heads, v]; with q_rope: [.., v] and [.., qk - v]
        kv             MLA: [pages, page, qk or more], with page 1 [slots, qk or more]; with kv_rope in two pools; kv=record656: u8, 656 or more
        kv, v          GQA: K and V, [pages, page, kv_heads, qk or v], with page 1 [slots, kv_heads, ..]; views of one buffer or of two,
                       in any order of dimensions in memory but for the last
        kv_scale       f32 [1]: by what KV in e4m3 is multiplied, for GQA K alone; v_scale: the same of GQA's V. None: 1
        kv_len         i32 [batch or more], with the drafts or the prefix alone, as `lengths` says
        lse            f32 [total_q, heads]; lse_base: 2 or "e"
        block_table    i32 [batch, columns]; or
        kv_indptr      i32 [batch + 1] with kv_indices, i32 or i64 token slots, and, with lengths="prefix", draft_slots of
                       the same type [total_q]
        qo_indptr      i32 [batch + 1]; None: every request has total_q / batch rows
        batch, total_q None: from kv_len and q. Given where those are longer, as in the padded buffers of a graph
        mask           by mask_kind: PARENTS i32 [total_q]; BITS u32 [total_q, words]; BYTES_QLEN u8 and BIAS_F32 f32
                       [batch, width, width] or [width, width] for all; BYTES_FULL u8 [bytes] with mask_indptr i64 [batch + 1]
        softmax_scale  multiplies q . k; soft_cap, window (with positions i32 [total_q]), sinks f32 [heads]: 0 or None: none
        workspace      workspace_size bytes, aligned to 256
        report         u32 [words], for checked kernels

        Raises BadArgument with field, found and allowed for all that the host can see.
        """
        given = dict(locals())
        del given["self"]
        return VerifyCall(self, given)


class Context:
    """The chain shape -> variant -> source -> cubin -> cache -> kernel. Any number of contexts is independent of one another;
    one may be used from many threads. Building needs no GPU. `close` or a with statement ends it.

    cache_dir     None: $DRAFTWOOD_CACHE_DIR, else the user's cache folder; "": memory only
    template_dir, nvrtc_path, driver_path  None: the usual places
    system_dirs   more folders of the cache's kind, only read, parted by colons
    cache_limit   bytes; 0: the default
    cache_shared, compile_slots, lock_timeout_ms, no_compile  as in dw_options
    log           called with a LogLevel and a text; None: the logger "draftwood"
    """

    def __init__(self, *, cache_dir: str | None = None, template_dir: str | None = None, nvrtc_path: str | None = None,
                 driver_path: str | None = None, system_dirs: str | None = None, cache_limit: int = 0,
                 cache_shared: bool = False, compile_slots: int = 0, lock_timeout_ms: int = 0, no_compile: bool = False,
                 plan: str | None = None, log: Callable[[LogLevel, str], None] | None = None) -> None:
        def encoded(text: str | None) -> bytes | None:
            return None if text is None else str(text).encode()

        self._log = _LogFunction(lambda _, level, text: _write_log(log, level, text))
        options = _abi.Options(size=ctypes.sizeof(_abi.Options), cache_shared=int(cache_shared), cache_limit=cache_limit,
                               compile_slots=compile_slots, lock_timeout_ms=lock_timeout_ms, no_compile=int(no_compile),
                               log=ctypes.cast(self._log, ctypes.c_void_p).value)
        texts = {"cache_dir": encoded(cache_dir), "template_dir": encoded(template_dir), "nvrtc_path": encoded(nvrtc_path),
                 "driver_path": encoded(driver_path), "system_dirs": encoded(system_dirs), "plan": encoded(plan)}
        kept = []
        for name, text in texts.items():
            if text is not None:
                kept.append(ctypes.create_string_buffer(text))
                setattr(options, name, ctypes.addressof(kept[-1]))
        self._handle = ctypes.c_void_p()
        self._handles: list[ctypes.c_void_p] = []  # of kernels and companions: emptied when the context ends
        self._bundles: list[bytes] = []
        call("dw_ctx_create", ctypes.byref(options), ctypes.byref(self._handle))
        self._finalizer = weakref.finalize(self, _close, self._handle, self._handles, self._log)

    def close(self) -> None:
        """Unloads all kernels; no launch may be in flight. Launches of its kernels raise BadArgument from here on."""
        self._finalizer()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def source(self, shape: Shape | str, variant: Variant | None = None, bounds: Bounds | None = None) -> str:
        """The CUDA C++ text."""
        wanted = Shape.of(shape)
        chosen = variant or Variant.choose(wanted, bounds)
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("dw_source_generate", self._handle, ctypes.byref(wanted._struct), ctypes.byref(chosen._struct),
             ctypes.byref(text), ctypes.byref(size))
        return take_text(text)

    def build(self, shape: Shape | str, variant: Variant | None = None, bounds: Bounds | None = None) -> Cubin:
        """Through bundles and cache, else compiled; needs no GPU. variant None: the rule table's choice for the bounds.
        Raises BadShape, NotApplicable, NoCompiler, CompileError (with its log), Frozen, NotFound (with no_compile)."""
        wanted = Shape.of(shape)
        chosen = variant or Variant.choose(wanted, bounds)
        cubin = ctypes.c_void_p()
        call("dw_cubin_build", self._handle, ctypes.byref(wanted._struct), ctypes.byref(chosen._struct), ctypes.byref(cubin))
        return _take_cubin(cubin)

    def build_companions(self, target: int) -> Cubin:
        """The companions' cubin for a device class, e.g. 120; needs no GPU."""
        cubin = ctypes.c_void_p()
        call("dw_companions_build", self._handle, target, ctypes.byref(cubin))
        return _take_cubin(cubin)

    def kernel(self, shape: Shape | str, bounds: Bounds, variant: Variant | None = None) -> Kernel:
        """The whole chain, for the CUDA context that is current. The first time never during capture. Raises as build does,
        and NoDriver, DriverError, UnsupportedTarget."""
        wanted = Shape.of(shape)
        given = bounds._as_struct()
        handle = ctypes.c_void_p()
        call("dw_kernel_get", self._handle, ctypes.byref(wanted._struct), ctypes.byref(variant._struct) if variant else None,
             ctypes.byref(given), ctypes.byref(handle))
        self._handles.append(handle)
        return Kernel(self, handle, wanted, bounds)

    def companions(self, target: int = 0) -> Companions:
        """The companion kernels, loaded. target 0: the current device's own. The first time never during capture."""
        handle = ctypes.c_void_p()
        call("dw_companions_get", self._handle, target, ctypes.byref(handle))
        self._handles.append(handle)
        return Companions(self, handle)

    def prepare(self, requests: Iterable[Request], *, cubins_only: bool = False, threads: int = 0,
                progress: Callable[[Progress], Any] | None = None) -> None:
        """`kernel` for a whole list. Processes that prepare the same list with one cache folder share its compiles.

        cubins_only: into memory and the cache; needs neither driver nor GPU. progress: called in this thread; an answer that
        is true cancels. Raises the first request's error once all were tried, and Cancelled."""
        options = _abi.PrepareOptions(size=ctypes.sizeof(_abi.PrepareOptions), cubins_only=int(cubins_only), threads=threads)
        self._call_for_list("dw_prepare", requests, options, _reporter(progress, _abi.Progress, Progress))

    def tune(self, requests: Iterable[Request], *, gpu: int = 0, budget_seconds: float = 60.0, effort: Effort = Effort.MEASURE,
             warm: bool = False, any_numerics: bool = False, resume: bool = False, shard: tuple[int, int] = (0, 0),
             threads: int = 0, folder: str | None = None, command: str | None = None,
             progress: Callable[[TuneProgress], Any] | None = None) -> None:
        """Measures which variant is the fastest for each problem (bounds with batch and kv_len, no variant) and writes a plan, from
        which contexts made later take their variants.

        Candidates are built, checked and timed in a process of the program `draftwood` (command, else $DRAFTWOOD_COMMAND, else by PATH),
        so this one makes no CUDA call; not during capture. shard: (i, n), the i-th of n parts of the list. folder: of journals, records
        and plans, else in the cache. progress: called in this thread; an answer that is true ends the call with Cancelled."""
        texts = [text.encode() if text is not None else None for text in (folder, command)]
        options = _abi.TuneOptions(size=ctypes.sizeof(_abi.TuneOptions), gpu=gpu, budget_seconds=budget_seconds, effort=int(effort),
                                   warm=int(warm), any_numerics=int(any_numerics), resume=int(resume), shard=shard[0], shards=shard[1],
                                   threads=threads)
        options.folder, options.command = (ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value for text in texts)
        self._call_for_list("dw_tune", requests, options, _reporter(progress, _abi.TuneProgress, TuneProgress))

    def choose(self, shape: Shape | str, bounds: Bounds) -> Choice:
        """The plan's variant for a problem on the current device, else the rule table's."""
        variant, choice = _abi.Variant(), _abi.Choice(size=ctypes.sizeof(_abi.Choice))
        given = bounds._as_struct()
        call("dw_variant_tuned", self._handle, ctypes.byref(Shape.of(shape)._struct), ctypes.byref(given), ctypes.byref(variant),
             ctypes.byref(choice))
        return Choice(Variant(variant), Source(choice.source), bool(choice.predicted), choice.us, choice.default_us)

    def plan_digest(self) -> str:
        """SHA-256 of all choices for the current device: ranks with the same digest choose the same."""
        text = ctypes.create_string_buffer(65)
        call("dw_plan_digest", self._handle, text)
        return text.value.decode()

    def _call_for_list(self, function: str, requests: Iterable[Request], options: Any, reporter: _Reporter | None) -> None:
        wanted = list(requests)
        structs = (_abi.Request * len(wanted))()
        kept: list[Any] = []
        for struct, request in zip(structs, wanted):
            shape = Shape.of(request.shape)
            bounds = request.bounds._as_struct() if request.bounds else None
            kept += [shape, bounds, request.variant]
            struct.shape = ctypes.addressof(shape._struct)
            struct.bounds = ctypes.addressof(bounds) if bounds else None
            struct.variant = ctypes.addressof(request.variant._struct) if request.variant else None
        if reporter:
            options.progress = ctypes.cast(reporter.function, ctypes.c_void_p).value
        try:
            call(function, self._handle, structs, len(wanted), ctypes.byref(options))
        finally:
            if reporter and reporter.raised:
                raise reporter.raised[0]

    def freeze(self) -> None:
        """From here on nothing is compiled, no file is opened and no lock taken: what was not prepared raises Frozen."""
        call("dw_freeze", self._handle)

    def misses(self) -> list[dict[str, str]]:
        """What had to be compiled, or was refused: a request each, with call, shape, target and variant."""
        return [json.loads(line) for line in self.miss_text().splitlines()]

    def miss_text(self) -> str:
        """The same as the JSON lines that `draftwood bundle build --from-misses` takes."""
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        call("dw_miss_list", self._handle, ctypes.byref(text), ctypes.byref(size))
        return take_text(text)

    def explain(self, shape: Shape | str, variant: Variant | None = None) -> str:
        """Where a request was found, or why not, as lines of "name  value"."""
        text = ctypes.c_void_p()
        call("dw_explain", self._handle, ctypes.byref(Shape.of(shape)._struct),
             ctypes.byref(variant._struct) if variant else None, ctypes.byref(text))
        return take_text(text)

    def add_bundle(self, bundle: str | bytes, public_key: bytes | None = None) -> None:
        """A bundle file by path, or its bytes. public_key: the 32 bytes of the Ed25519 key that has to have signed it.
        Raises BadBundle, NotFound, FileError."""
        if public_key is not None and len(public_key) != 32:
            raise bad_argument("public_key", f"{len(public_key)} bytes", "32 bytes")
        key = ctypes.create_string_buffer(public_key, 32) if public_key else None
        if isinstance(bundle, bytes):
            call("dw_bundle_add_memory", self._handle, bundle, len(bundle), key)
            self._bundles.append(bundle)  # the library reads it where it is
        else:
            call("dw_bundle_add_file", self._handle, str(bundle).encode(), key)

    def stats(self) -> Stats:
        stats = _abi.Stats()
        lib.dw_stats_get(self._handle, ctypes.byref(stats))
        return _values(stats, Stats)


def _close(handle: ctypes.c_void_p, handles: Sequence[ctypes.c_void_p], log: Any) -> None:
    """log is held until here: destroying may still write to it."""
    for other in handles:
        other.value = None
    lib.dw_ctx_destroy(handle)
    handle.value = None


def _write_log(log: Callable[[LogLevel, str], None] | None, level: int, text: bytes) -> None:
    message = text.decode(errors="replace")
    if log:
        log(LogLevel(level), message)
    else:
        logging.getLogger("draftwood").log(_LOGGING_LEVELS[LogLevel(level)], "%s", message)


class _Reporter:
    """A progress function as C calls it. An exception of the host's cancels, and is raised where the call was made."""

    def __init__(self, progress: Callable[[Any], Any], struct: Any, cls: type[Any]) -> None:
        self.raised: list[BaseException] = []

        def report(_: Any, address: int) -> int:
            try:
                return int(bool(progress(_values(struct.from_address(address), cls))))
            except BaseException as error:
                self.raised.append(error)
                return 1

        self.function = _ProgressFunction(report)


def _reporter(progress: Callable[[Any], Any] | None, struct: Any, cls: type[Any]) -> _Reporter | None:
    return _Reporter(progress, struct, cls) if progress else None


def build(shape: Shape | str, variant: Variant | None = None, *, bounds: Bounds | None = None,
          context: Context | None = None) -> Cubin:
    """A cubin for a shape, by a context of its own where none is given. Needs no GPU and no torch. Raises as Context.build."""
    if context:
        return context.build(shape, variant, bounds)
    with Context() as own:
        return own.build(shape, variant, bounds)


def check_report(words: Sequence[int] | bytes) -> None:
    """Raises BadArgument with the first kind of fault in a checked kernel's report (u32 words on the host)."""
    raw = bytes(words) if isinstance(words, (bytes, bytearray)) else bytes((ctypes.c_uint32 * len(words))(*words))
    if len(raw) < 4 * REPORT_WORDS:
        raise bad_argument("report", f"{len(raw) // 4} words", f"{REPORT_WORDS} words")
    call("dw_report_check", raw)
