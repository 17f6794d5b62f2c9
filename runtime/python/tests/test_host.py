"""What needs no GPU: shapes, builds, errors, trees, pools. Neither NumPy nor torch is imported."""
import ctypes
import gc
import glob
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import draftwood as dw
from draftwood import _abi, errors


class Values(unittest.TestCase):
    def test_shape(self):
        shape = dw.Shape.parse("kimi-k2.6-tp8,t=17,page=64")
        self.assertEqual((shape.attention, shape.heads, shape.width, shape.page), (dw.Attention.MLA, 8, 17, 64))
        self.assertEqual(shape.q, dw.DType.BF16)
        self.assertEqual(dw.Shape.parse(str(shape)), shape)
        self.assertEqual(len({shape, shape.replace(), shape.replace(heads=4)}), 2)
        self.assertEqual(shape.replace(heads=4).heads, 4)
        self.assertEqual(shape.heads, 8)
        self.assertIn("kimi-k2.6-tp8", dw.presets())

    def test_errors_name_the_field(self):
        with self.assertRaises(dw.BadShape) as caught:
            dw.Shape.parse("mla:h=999,t=4")
        error = caught.exception
        self.assertEqual((error.status, error.found), (dw.Status.BAD_SHAPE, "999"))
        self.assertIn("1 to 128", error.allowed)
        self.assertIn(error.found, str(error))
        self.assertIsInstance(error, ValueError)
        with self.assertRaises(dw.BadShape):
            dw.Shape.parse("kimi-k2.6-tp8").replace(width=5000)
        with self.assertRaises(dw.BadArgument):
            dw.Shape.parse("kimi-k2.6-tp8").replace(no_such=1)

    def test_each_status_has_a_class(self):
        self.assertEqual(set(errors.BY_STATUS), {int(status) for status in dw.Status} - {0})

    def test_variant(self):
        shape = dw.Shape.parse("kimi-k2.6-tp8,t=9")
        variant = dw.Variant.choose(shape, dw.Bounds(batch=8, kv_len=4096))
        variant.check(shape)
        self.assertEqual(dw.Variant.parse(str(variant)), variant)
        self.assertIn(variant.family, dw.Family)
        self.assertGreater(variant.shared_bytes(shape), 0)
        self.assertTrue(variant.compile_target(shape).startswith("sm_120"))
        self.assertIn(variant, list(dw.Variant.all(shape)))
        with self.assertRaises(dw.NotApplicable):
            variant.replace(n_tiles=1).check(dw.Shape.parse("gqa:h=32,hk=8,t=9,d=128"))


class Tuning(unittest.TestCase):
    """By a stand-in of the worker process: its times follow from the variant's text."""
    SHAPE = "mla:h=8,t=9,target=sm_90,limits=sm_120"
    BOUNDS = dw.Bounds(batch=8, kv_len=23009, call=dw.CallKind.TABLE)

    def tune(self, folder, bounds=BOUNDS, **more):
        worker = os.environ.get("DRAFTWOOD_STAND_IN") or self.skipTest("DRAFTWOOD_STAND_IN names no stand-in of the worker")
        with dw.Context() as context:
            context.tune([dw.Request(self.SHAPE, bounds)], budget_seconds=30, effort=dw.Effort.QUICK, threads=-1, folder=folder,
                         command=worker, **more)

    def test_a_plan_comes_of_it(self):
        seen = []
        with tempfile.TemporaryDirectory() as folder:
            self.tune(folder, progress=seen.append)
            path, = glob.glob(f"{folder}/*/plan.jsonl")
            with open(path, encoding="utf-8") as file:
                head, choice = map(json.loads, file)
            with dw.Context(plan=path) as context, dw.Context(plan="none") as plain:
                found, normal = context.choose(self.SHAPE, self.BOUNDS), plain.choose(self.SHAPE, self.BOUNDS)
        self.assertEqual(head["choices"], 1)
        self.assertEqual((choice["kv_len"], choice["batch"]), (23009, 8))
        self.assertEqual((seen[-1].problems, seen[-1].budget_seconds), (1, 30))
        self.assertGreater(seen[-1].candidates, 1)
        self.assertEqual(normal.source, dw.Source.RULE)
        # There is no GPU: another of the same architecture.
        self.assertEqual((found.source, found.predicted), (dw.Source.NEAR_GPU, False))
        self.assertEqual(found.variant, dw.Variant.parse(choice["variant"]))
        self.assertAlmostEqual(found.us, choice["us"], places=2)

    def test_it_is_cancelled(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(dw.Cancelled):
            self.tune(folder, progress=lambda progress: True)

    def test_what_cannot_be_tuned(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaises(dw.BadArgument):
            self.tune(folder, bounds=None)


class Builds(unittest.TestCase):
    SHAPE = "mla:h=8,t=4,target=sm_90,limits=sm_120"

    def test_build(self):
        first = dw.build(self.SHAPE)
        self.assertEqual(first.data[:4], b"\x7fELF")
        self.assertEqual(first.kernels[0].name, "dw_verify")
        self.assertNotIn("ELF", repr(first))  # tens of kilobytes
        with dw.Context() as context:
            self.assertTrue(context.build(self.SHAPE).from_cache)
            self.assertEqual(context.stats().compiles, 0)
            self.assertIn("dw_verify", context.source(self.SHAPE))
            self.assertIn(first.request_key, context.explain(self.SHAPE))
            self.assertGreater(len(context.build_companions(90).kernels), 3)

    def test_prepare_and_freeze(self):
        seen = []
        with dw.Context() as context:
            context.prepare([dw.Request(self.SHAPE), dw.Request(self.SHAPE)], cubins_only=True, progress=seen.append)
            context.freeze()
            self.assertTrue(context.build(self.SHAPE).from_cache)
            with self.assertRaises(dw.Frozen):
                context.build("mla:h=3,t=2")
            self.assertEqual([miss["shape"].split(",")[0] for miss in context.misses()], ["mla:h=3"])
        self.assertEqual((seen[-1].requests, seen[-1].done), (2, 2))

    def test_prepare_is_cancelled_by_an_exception(self):
        def stop(progress):
            raise KeyError("enough")

        with dw.Context() as context, self.assertRaises(KeyError):
            context.prepare([dw.Request(self.SHAPE)], cubins_only=True, progress=stop)

    def test_no_compiler(self):
        with dw.Context(nvrtc_path="/nonexistent", cache_dir="") as context:
            with self.assertRaises(dw.NoCompiler) as caught:
                context.build("mla:h=3,t=2")
        self.assertIn("/nonexistent", str(caught.exception))

    def test_log(self):
        lines = []
        with unittest.mock.patch.dict(os.environ, DRAFTWOOD_BUNDLES="/nonexistent/a.dwb"):
            dw.Context(log=lambda *line: lines.append(line)).close()
            with self.assertLogs("draftwood", "WARNING") as logged:
                dw.Context().close()
        self.assertEqual([level for level, _ in lines], [dw.LogLevel.WARNING])
        self.assertIn("/nonexistent/a.dwb", lines[0][1])
        self.assertEqual(logged.records[0].getMessage(), lines[0][1])

    def test_bad_bundle(self):
        with dw.Context() as context:
            with self.assertRaises(dw.BadBundle):
                context.add_bundle(b"no bundle at all" * 100)
            with self.assertRaises(dw.NotFound):
                context.add_bundle("/nonexistent/a.dwb")
            with self.assertRaises(dw.BadArgument):
                context.add_bundle("/nonexistent/a.dwb", public_key=b"short")

    def test_closed(self):
        context = dw.Context()
        context.close()
        context.close()
        for use in (lambda: context.build(self.SHAPE), context.freeze, context.misses):
            with self.assertRaises(dw.BadArgument):
                use()

    def test_threads(self):
        found = []
        with dw.Context() as context:
            threads = [threading.Thread(target=lambda: found.append(context.build(self.SHAPE).build_key)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual((len(found), len(set(found))), (8, 1))

    def test_nothing_else_is_imported(self):
        code = "import sys, draftwood; sys.exit(any(name in sys.modules for name in ('numpy', 'torch')))"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)


class Trees(unittest.TestCase):
    PARENTS = [-1, 0, 0, 1, -2]

    def test_host_functions(self):
        self.assertEqual(list(dw.tree_depths(self.PARENTS)), [0, 1, 1, 2, -1])
        self.assertEqual(list(dw.tree_positions(self.PARENTS, 100)), [100, 101, 101, 102, 100])
        self.assertEqual(list(dw.tree_mask(self.PARENTS)), [1, 3, 5, 11, 0])
        self.assertEqual(len(dw.tree_mask([-1] * 33)), 66)
        self.assertEqual(list(dw.tree_mask([])), [])
        walked = dw.tree_walk(self.PARENTS, [5, 6, 7, 9, 0], [7, 1, 8, 2, 0])
        self.assertEqual((walked.path, walked.bonus), ((0, 2), 8))
        self.assertEqual(dw.tree_walk([-1], [5], [7], root_token=6), dw.Accepted((), 6))
        self.assertEqual(list(dw.tree_from_paths([[0, 1, 3], [0, 2]], 5)), self.PARENTS)
        self.assertEqual(list(dw.tree_from_sets([[3], [1], [2], [1], [0]])), self.PARENTS)
        dw.accept_check([[0, 2, -1]], width=3)

    def test_refusals(self):
        refused = [(lambda: dw.tree_check([-1, 1]), "parents[1]"), (lambda: dw.tree_depths([-3]), "parents[0]"),
                   (lambda: dw.tree_check([2 ** 40]), "parents"), (lambda: dw.tree_walk([-1], [], [1]), "draft_tokens"),
                   (lambda: dw.accept_check([[2, 1]], width=3), "accept_index"),
                   (lambda: dw.accept_check([[0], [1, 2]], width=3), "accept_index")]
        for use, field in refused:
            with self.assertRaises(dw.BadArgument) as caught:
                use()
            self.assertTrue(caught.exception.field.startswith(field), caught.exception)


class Pools(unittest.TestCase):
    def test_moves(self):
        planned = dw.move_plan([(1, 2), (2, 1), (3, 3)], 4)
        self.assertEqual(planned.moves, 2)
        self.assertGreater(len(planned.data), 16)
        self.assertEqual(dw.move_plan([], 4).teams, 0)
        with self.assertRaises(dw.BadArgument):
            dw.move_plan([(1, 2), (3, 2)], 4)

    def test_defrag(self):
        planned = dw.Pool(8, [[5, 1], [3, 7, 0]], [20, 33], page=16).defrag()
        for table, count in zip(planned.tables, (2, 3)):
            self.assertEqual(list(table), list(range(table[0], table[0] + count)))
        self.assertTrue(planned.moves and planned.least)
        self.assertEqual(planned.list.moves, len(planned.moves))
        self.assertEqual(dw.Pool(8, [[0, 1], [2]], [2, 1]).defrag().moves, ())
        pinned = dw.Pool(8, [[5, 1]], [2], pinned=[1]).defrag()
        self.assertNotIn(1, [page for move in pinned.moves for page in move])

    def test_refusals(self):
        for pool in (lambda: dw.Pool(4, [[0, 9]], [2]), lambda: dw.Pool(4, [[1, 1]], [2]), lambda: dw.Pool(4, [[1]], [40], page=16),
                     lambda: dw.Pool(4, [[1]], [1, 2]), lambda: dw.Pool(4, [[1]], [1], pinned=[4])):
            with self.assertRaises(dw.BadArgument):
                pool().check()


class DlTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
                ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DlPack:
    """A producer; counts the capsules that were destroyed."""

    def __init__(self, device=2, code=4, bits=16, strides=(8, 1), lanes=1):
        self.freed = 0
        self.device = device
        self.shape, self.strides = (ctypes.c_int64 * 2)(3, 8), (ctypes.c_int64 * 2)(*strides) if strides else None
        self.tensor = DlTensor(data=4096, device_type=device, ndim=2, code=code, bits=bits, lanes=lanes, byte_offset=32,
                               shape=ctypes.addressof(self.shape), strides=self.strides and ctypes.addressof(self.strides))
        self.destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(lambda capsule: setattr(self, "freed", self.freed + 1))

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, stream=None):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", ctypes.cast(self.destructor, ctypes.c_void_p))


class Torch:
    """What is asked of a torch tensor."""
    is_cuda, dtype, shape, device = True, "torch.bfloat16", (3, 8), "cuda:0"

    def data_ptr(self):
        return 4128

    def stride(self):
        return 8, 1


class Interface:
    def __init__(self, **fields):
        self.__cuda_array_interface__ = {"shape": (3, 8), "typestr": "<f2", "data": (4128, False), "version": 3, **fields}


class Arrays(unittest.TestCase):
    def test_three_ways(self):
        for value, dtype in ((DlPack(), "bf16"), (DlPack(strides=None), "bf16"), (Torch(), "bf16"), (Interface(), "f16"),
                             (Interface(strides=(16, 2)), "f16")):
            array = dw.view(value)
            self.assertEqual((array.pointer, array.shape, array.strides, array.dtype), (4128, (3, 8), (8, 1), dtype))
        self.assertEqual(dw.view(Interface(typestr="<u2"), "bf16").dtype, "bf16")
        self.assertEqual(dw.view(Interface(typestr="|u1")).dtype, "u8")
        self.assertEqual(dw.view(Interface(typestr="<i8")).dtype, "i64")

    def test_a_capsule_lives_as_long_as_the_array(self):
        producer = DlPack()
        array = dw.view(producer)
        gc.collect()
        self.assertEqual(producer.freed, 0)
        del array
        gc.collect()
        self.assertEqual(producer.freed, 1)

    def test_refusals(self):
        cpu = Torch()
        cpu.is_cuda = False
        for value in (DlPack(device=1), DlPack(lanes=2), DlPack(code=5), cpu, Interface(typestr=">f2"), Interface(mask=1),
                      Interface(typestr="<c8"), Interface(strides=(15, 2)), [1, 2], 5):
            with self.assertRaises(dw.BadArgument) as caught:
                dw.view(value, name="q")
            self.assertEqual(caught.exception.field, "q")
        with self.assertRaises(dw.BadArgument):
            dw.view(Interface(), "i32")

    def test_streams(self):
        def with_fields(**fields):
            return type("Stream", (), fields)()

        self.assertIsNone(dw.stream_handle(None))
        for stream in (7, with_fields(cuda_stream=7), with_fields(ptr=7), with_fields(handle=ctypes.c_void_p(7)),
                       with_fields(__cuda_stream__=lambda self: (0, 7))):
            self.assertEqual(dw.stream_handle(stream), 7)
        with self.assertRaises(dw.BadArgument):
            dw.stream_handle("a stream")

    def test_enums_are_the_headers(self):
        self.assertEqual(dw.REPORT_WORDS, 4 * len(_abi.Fault))
        dw.check_report([0] * dw.REPORT_WORDS)
        with self.assertRaises(dw.BadArgument):
            dw.check_report([0] * (dw.REPORT_WORDS - 1))
        words = [0] * dw.REPORT_WORDS
        words[0:4], words[4 * dw.Fault.PAGE:4 * dw.Fault.PAGE + 4] = [1, 3, 0, 0], [1, 3, 17, 4711]
        with self.assertRaises(dw.BadArgument) as caught:
            dw.check_report(words)
        self.assertIn("4711 for request 3 at 17", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
