"""What a prepared call costs from Python: 10,000 launches on a driver that does nothing. The bar is 8 us; three times as much
fails."""
import statistics
import time
import unittest

from support import Device, aligned, driver_path, np

import draftwood as dw

CALLS, ROUNDS, BAR_US = 10_000, 7, 8.0


class Stream:
    """As torch's."""
    cuda_stream = 0


class Cost(unittest.TestCase):
    def test_a_prepared_call(self):
        driver_path()
        room = Device(aligned(1 << 20))  # nothing is read or written
        with dw.Context() as context:
            kernel = context.kernel("mla:h=8,t=9,page=64,target=sm_90,limits=sm_120",
                                    dw.Bounds(batch=8, kv_len=4096, call=dw.CallKind.TABLE))

            def array(dtype, *shape, at=0):
                pointer = room.array.ctypes.data + at
                strides = tuple(int(np.prod(shape[i + 1:])) for i in range(len(shape)))
                return dw.Array(pointer, shape, strides, dtype, room)

            call = kernel.bind(q=array("bf16", 72, 8, 576), out=array("bf16", 72, 8, 512, at=1 << 23), kv=array("bf16", 64, 64, 576),
                               kv_len=array("i32", 8), block_table=array("i32", 8, 64), mask=array("i32", 72),
                               mask_kind=dw.Mask.PARENTS, softmax_scale=0.07,
                               workspace=array("u8", kernel.workspace_size, at=1 << 24))
            for name, stream in (("an int", 0), ("a torch stream", Stream())):
                us = []
                for _ in range(ROUNDS):
                    begin = time.perf_counter()
                    for _ in range(CALLS):
                        call.launch(stream)
                    us.append((time.perf_counter() - begin) * 1e6 / CALLS)
                print(f"{name}: {statistics.median(us):.2f} us a call in the median of {ROUNDS} rounds of {CALLS} calls "
                      f"({min(us):.2f} to {max(us):.2f}); the bar is {BAR_US:g}", flush=True)
                self.assertLess(min(us), 3 * BAR_US)


if __name__ == "__main__":
    unittest.main()
