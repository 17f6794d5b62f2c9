"""What is asked (Shape, Bounds) and what is chosen for it (Variant). Plain values: no device, no file."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Iterator, TypeVar

from . import _abi
from ._abi import Accumulate, Attention, CallKind, Combine, DType, Family, Feature, Status
from ._library import call, lib, text_of
from .errors import bad_argument

_T = TypeVar("_T", bound="_Value")


def _copy(struct: ctypes.Structure) -> Any:
    return type(struct).from_buffer_copy(struct)


class _Value:
    """A C struct that does not change, with a text of its own."""

    _struct_type: type[ctypes.Structure]
    _print: str
    _enums: dict[str, Any] = {}

    def __init__(self, struct: ctypes.Structure) -> None:
        self._struct = _copy(struct)

    @classmethod
    def _parsed(cls: type[_T], function: str, text: str) -> _T:
        struct = cls._struct_type()
        call(function, text.encode(), ctypes.byref(struct))
        return cls(struct)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._struct, name)
        return self._enums[name](value) if name in self._enums else value

    def _replaced(self: _T, fields: dict[str, Any]) -> _T:
        struct = _copy(self._struct)
        known = [name for name, *_ in self._struct_type._fields_]
        for name, value in fields.items():
            if name not in known:
                raise bad_argument(name, "no such field", ", ".join(known))
            setattr(struct, name, value)
        return type(self)(struct)

    def __str__(self) -> str:
        return text_of(self._print, self._struct)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and bytes(self._struct) == bytes(other._struct)

    def __hash__(self) -> int:
        return hash(bytes(self._struct))


class Shape(_Value):
    """What is asked: attention kind, heads, widths, page, types, target.

    Fields: attention, heads (query heads on this GPU), kv_heads, width (most drafts a request may bring), head_dim_qk,
    head_dim_v, page (tokens a page), q, kv, out (DType), target (120 for sm_120), limits (0: the target's own),
    tree_nodes, tree (the parent of each node of a tree that is part of the code).
    """

    _struct_type = _abi.Shape
    _print = "dw_shape_print"
    _enums = {"attention": Attention, "q": DType, "kv": DType, "out": DType,
              "tree": lambda value: tuple(value)}
    attention: Attention
    heads: int
    kv_heads: int
    width: int
    head_dim_qk: int
    head_dim_v: int
    page: int
    q: DType
    kv: DType
    out: DType
    target: int
    limits: int
    tree_nodes: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """A preset with fields replaced ("kimi-k2.6-tp8,t=17") or all of it ("mla:h=8,t=9,page=64"). Raises BadShape."""
        return cls._parsed("dw_shape_parse", text)

    @classmethod
    def of(cls, shape: Shape | str) -> Shape:
        """The shape itself, or that of a text."""
        return shape if isinstance(shape, Shape) else cls.parse(shape)

    def replace(self, **fields: Any) -> Shape:
        """The same with other values of some fields. Raises BadShape where that is not valid."""
        shape = self._replaced(fields)
        call("dw_shape_check", ctypes.byref(shape._struct))
        return shape


def presets() -> dict[str, Shape]:
    """Shapes of well-known models by name."""
    names = [lib.dw_preset_name(i).decode() for i in range(lib.dw_preset_count())]
    shapes = {}
    for name in names:
        struct = _abi.Shape()
        call("dw_preset_shape", name.encode(), ctypes.byref(struct))
        shapes[name] = Shape(struct)
    return shapes


@dataclass(frozen=True)
class Bounds:
    """What calls will look like at most; host integers only. They fix grid and workspace.

    batch         most requests
    kv_len        most tokens a request, drafts included
    total_q       most rows of q in all; 0: batch x width
    sm_count      multiprocessors; 0: of the current device
    call          what all calls have in common
    features      what calls may have beyond the plain form
    split_tokens  0: the split is chosen on the device; else tokens a KV range, a multiple of 16: the same bits at any batch
    """

    batch: int
    kv_len: int
    total_q: int = 0
    sm_count: int = 0
    call: CallKind = CallKind.ANY
    features: Feature = Feature(0)
    split_tokens: int = 0

    def _as_struct(self) -> _abi.Bounds:
        return _abi.Bounds(size=ctypes.sizeof(_abi.Bounds), batch=self.batch, kv_len=self.kv_len, total_q=self.total_q,
                           sm_count=self.sm_count, call=self.call, features=self.features, split_tokens=self.split_tokens)


class Variant(_Value):
    """What is chosen for a shape; fields are the parameters of `draftwood_variant.def`, e.g. family, n_tiles, checked."""

    _struct_type = _abi.Variant
    _print = "dw_variant_print"
    _enums = {"family": Family, "call": CallKind, "combine": Combine, "accumulate": Accumulate}
    family: Family
    combine: Combine
    call: CallKind
    accumulate: Accumulate
    checked: int

    @classmethod
    def parse(cls, text: str) -> Variant:
        """A text such as "family=rowsplit,n_tiles=5,checked=1". Raises BadArgument."""
        return cls._parsed("dw_variant_parse", text)

    @classmethod
    def choose(cls, shape: Shape | str, bounds: Bounds | None = None) -> Variant:
        """The rule table's choice, always applicable. bounds None: one request of up to 65,536 tokens."""
        struct = _abi.Variant()
        given = bounds._as_struct() if bounds else None
        call("dw_variant_choose", ctypes.byref(Shape.of(shape)._struct), ctypes.byref(given) if given else None,
             ctypes.byref(struct))
        return cls(struct)

    @classmethod
    def all(cls, shape: Shape | str) -> Iterator[Variant]:
        """All variants that are worth a look for a shape."""
        wanted, i = Shape.of(shape), 0
        struct = _abi.Variant()
        while lib.dw_variant_enumerate(ctypes.byref(wanted._struct), i, ctypes.byref(struct)) == Status.OK:
            yield cls(struct)
            i += 1

    def replace(self, **fields: Any) -> Variant:
        """The same with other values of some parameters; `check` says whether it can serve a shape."""
        return self._replaced(fields)

    def check(self, shape: Shape | str) -> None:
        """Raises NotApplicable with the reason where this variant cannot serve the shape."""
        call("dw_variant_applicable", ctypes.byref(Shape.of(shape)._struct), ctypes.byref(self._struct))

    def compile_target(self, shape: Shape | str) -> str:
        """E.g. "sm_120f"."""
        text = ctypes.create_string_buffer(16)
        call("dw_compile_target", ctypes.byref(Shape.of(shape)._struct), ctypes.byref(self._struct), text)
        return text.value.decode()

    def shared_bytes(self, shape: Shape | str) -> int:
        """Dynamic shared memory of the main kernel in bytes; the two must be applicable."""
        return int(lib.dw_shared_bytes(ctypes.byref(Shape.of(shape)._struct), ctypes.byref(self._struct)))
