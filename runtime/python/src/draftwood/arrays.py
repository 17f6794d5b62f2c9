"""Arrays in device memory, whoever made them, and streams. Nothing is copied and nothing waits."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Any

from .errors import bad_argument

ITEM_SIZES = {"bool": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "i32": 4, "u32": 4, "f32": 4, "i64": 8,
              "u64": 8, "f64": 8, "e4m3": 1}
_INTERFACE_NAMES = {"b1": "bool", "i1": "i8", "u1": "u8", "i2": "i16", "u2": "u16", "i4": "i32", "u4": "u32", "i8": "i64",
                    "u8": "u64", "f2": "f16", "f4": "f32", "f8": "f64"}
_TORCH_NAMES = {"bool": "bool", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
                "int64": "i64", "uint64": "u64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
                "float8_e4m3fn": "e4m3"}
_DLPACK_NAMES = {0: "i", 1: "u", 2: "f", 4: "bf", 6: "bool"}


@dataclass(frozen=True)
class Array:
    """An array in device memory.

    pointer  device address of the first element
    shape    elements of each dimension
    strides  in elements, one for each dimension
    dtype    bool, i8 to i64, u8 to u64, f16, bf16, f32, f64 or e4m3
    owner    what keeps the memory alive
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    owner: Any = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_SIZES[self.dtype]

    @property
    def contiguous(self) -> bool:
        return self.strides == tight(self.shape) or prod(self.shape) <= 1


def tight(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an array without gaps."""
    strides, step = [], 1
    for count in reversed(shape):
        strides.append(step)
        step *= count
    return tuple(reversed(strides))


class _DlTensor(ctypes.Structure):
    """DLTensor of the DLPack standard, with which a DLManagedTensor begins."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_DLPACK_DEVICES = {2: "CUDA", 3: "CUDA host", 13: "CUDA managed"}
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _of_torch(value: Any, name: str) -> Array:
    if not value.is_cuda:
        raise bad_argument(name, f"a tensor on {value.device}", "a tensor on a CUDA device")
    kind = str(value.dtype).removeprefix("torch.")
    return _checked(Array(value.data_ptr(), tuple(value.shape), tuple(value.stride()), _TORCH_NAMES.get(kind, kind), value), name)


def _of_interface(value: Any, name: str) -> Array:
    interface = value.__cuda_array_interface__
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    if interface.get("mask") is not None:
        raise bad_argument(name, "an array with a mask of valid elements", "one without")
    dtype = _INTERFACE_NAMES.get(typestr[1:], typestr)
    if typestr[0] == ">":
        raise bad_argument(name, f"elements of type {typestr}", "little-endian elements")
    strides = interface.get("strides")
    if strides is None:
        return _checked(Array(interface["data"][0] or 0, shape, tight(shape), dtype, value), name)
    size = ITEM_SIZES.get(dtype, 1)
    if any(stride % size for stride in strides):
        raise bad_argument(name, f"strides of {tuple(strides)} bytes", f"multiples of the {size} bytes of an element")
    return _checked(Array(interface["data"][0] or 0, shape, tuple(stride // size for stride in strides), dtype, value), name)


def _of_dlpack(value: Any, name: str) -> Array:
    device = value.__dlpack_device__()[0]
    if int(device) not in _DLPACK_DEVICES:
        raise bad_argument(name, f"an array on DLPack device {int(device)}", "CUDA (2, 3 or 13)")
    capsule = value.__dlpack__(stream=-1)  # no waiting: order is the caller's matter
    tensor = _DlTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.lanes != 1:
        raise bad_argument(name, f"vectors of {tensor.lanes} elements", "one element")
    kind = _DLPACK_NAMES.get(tensor.code, f"DLPack code {tensor.code} of ")
    dtype = kind if kind == "bool" else f"{kind}{tensor.bits}"
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else tight(shape)
    # The capsule keeps its name, so its own destructor frees the tensor once nobody holds it any more.
    return _checked(Array((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, (value, capsule)), name)


def _checked(array: Array, name: str) -> Array:
    if array.dtype not in ITEM_SIZES:
        raise bad_argument(name, f"elements of type {array.dtype}", ", ".join(ITEM_SIZES))
    return array


def view(value: Any, dtype: str | None = None, *, name: str = "array") -> Array:
    """The array behind a value: an Array, a torch tensor, or whatever has `__cuda_array_interface__` or `__dlpack__`.

    dtype: reads the elements as another type of the same size, e.g. "bf16" of a uint16 array where the maker of the array
    has no such type. A stream in the interface is not waited for. Raises BadArgument for what is not in device memory.
    """
    if isinstance(value, Array):
        array = value
    elif hasattr(value, "data_ptr") and hasattr(value, "is_cuda"):
        array = _of_torch(value, name)
    elif hasattr(value, "__cuda_array_interface__"):
        array = _of_interface(value, name)
    elif hasattr(value, "__dlpack__"):
        array = _of_dlpack(value, name)
    else:
        raise bad_argument(name, f"a {type(value).__name__}",
                           "a torch tensor, or an object with __cuda_array_interface__ or __dlpack__")
    if dtype is None or dtype == array.dtype:
        return array
    if ITEM_SIZES.get(dtype) != ITEM_SIZES[array.dtype]:
        raise bad_argument("dtype", dtype, f"one as wide as {array.dtype}")
    return Array(array.pointer, array.shape, array.strides, dtype, array.owner)


def take(name: str, value: Any, dtypes: str, dims: tuple[int | None, ...], *, dense: int = 1) -> Array:
    """The array, if it has one of the types (parted by spaces) and at least these dimensions (None: any, else at least so
    many), with no gaps in its last `dense` dimensions."""
    array = view(value, name=name)
    if array.dtype not in dtypes.split():
        raise bad_argument(name, f"elements of type {array.dtype}", " or ".join(dtypes.split()))
    fits = len(array.shape) == len(dims) and all(want is None or have >= want for have, want in zip(array.shape, dims))
    if not fits:
        wanted = ", ".join("any" if want is None else f"{want} or more" for want in dims)
        raise bad_argument(name, f"a shape of {list(array.shape)}", f"[{wanted}]")
    first = len(dims) - dense
    tail = tight(array.shape[first:])
    if any(count > 1 and stride != wanted for count, stride, wanted in
           zip(array.shape[first:], array.strides[first:], tail)):
        raise bad_argument(name, f"strides of {list(array.strides)} elements", f"no gaps in the last {dense} dimensions")
    return array


def stream_handle(stream: Any) -> int | None:
    """A CUstream of an int, None (the default stream), a torch, CuPy or Numba stream, or an object with `__cuda_stream__`."""
    if stream is None or isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    handle = getattr(stream, "handle", None)
    if isinstance(handle, ctypes.c_void_p):
        return handle.value
    if isinstance(handle, int):
        return handle
    raise bad_argument("stream", f"a {type(stream).__name__}", "an int, None, or a stream of torch, CuPy, Numba or cuda-python")
