"""What the tests share: a GPU made of software whose memory is NumPy's, and an oracle in double precision."""
import ctypes
import os
import sys

SKIPPED = 77


def skip(why):
    print(f"SKIP {os.path.basename(sys.argv[0])}: {why}")
    sys.exit(SKIPPED)


try:
    import numpy as np
except ImportError as missing:
    skip(f"NumPy cannot be imported ({missing})")


def driver_path():
    return os.environ.get("DRAFTWOOD_DRIVER") or skip("DRAFTWOOD_DRIVER names no stand-in of the driver")


def open_gpu():
    """Makes the primary context of the driver's first device current in this thread."""
    driver, context = ctypes.CDLL(driver_path()), ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    return driver


def on_the_software_gpu():
    """Engines' plug-ins with tensors of torch's CPU as memory of the software GPU."""
    from draftwood import Array
    from draftwood.engines.common import OnDevice

    names = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "bool"}

    def array(tensor):
        name = names[str(tensor.dtype).removeprefix("torch.")]
        return Array(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), name, tensor)

    open_gpu()
    OnDevice.target = staticmethod(lambda: "90,limits=sm_120")
    OnDevice.array = staticmethod(array)
    OnDevice.stream = staticmethod(lambda: None)


class Device:
    """An array in the software GPU's memory, which is the host's. bf16 is kept as uint16 and named by draftwood.view."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__array_interface__, "version": 3}


def aligned(size, to=256):
    """Bytes that begin at a multiple of `to`, filled with 0x55."""
    room = np.full(size + to, 0x55, np.uint8)
    first = -room.ctypes.data % to
    return room[first:first + size]


def to_bf16(values):
    """Rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def random_bf16(random, *shape):
    return to_bf16(random.standard_normal(shape))


def aligned_bf16(random, *shape):
    """The same at an address that kernels take."""
    values = random_bf16(random, *shape)
    room = aligned(values.nbytes).view(np.uint16).reshape(shape)
    room[...] = values
    return room


def sees(parents, node):
    """The drafts that a node sees: itself and its ancestors."""
    found = set()
    while node >= 0 and parents[node] != -2:
        found.add(node)
        node = parents[node]
    return found


def exact(q, keys, v, scale, visible=None, values=None):
    """One row: q [heads, qk], keys [tokens, qk] -> (out [heads, v], natural log-sum-exp [heads]), in double precision. values None:
    the first v elements of the keys."""
    values = keys[:, :v] if values is None else values
    if visible is not None:
        keys, values = keys[np.asarray(visible, bool)], values[np.asarray(visible, bool)]
    if len(keys) == 0:
        return np.zeros((len(q), v)), np.full(len(q), -np.inf)
    scores = q @ keys.T * scale
    most = scores.max(1, keepdims=True)
    weights = np.exp(scores - most)
    return weights @ values / weights.sum(1, keepdims=True), most[:, 0] + np.log(weights.sum(1))


ROW_BOUND = 3e-3


def row_errors(found, right):
    """Relative error of each row and head; rows of zeros must be zeros."""
    norm = np.linalg.norm(right, axis=-1)
    return np.linalg.norm(found - right, axis=-1) / np.where(norm > 0, norm, 1e-30)
