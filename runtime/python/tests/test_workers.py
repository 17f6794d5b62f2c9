"""Eight worker processes, started together by spawn as engines start theirs: each prepares the same kernels in an empty cache folder that
they share, and freezes. Real NVRTC; each kernel is compiled once in all.

usage: test_workers.py [sglang | vllm]     with an engine: each process also finds its backend through the engine's own plug-in loader
"""
import json
import multiprocessing
import os
import sys
import tempfile
import unittest

from support import driver_path

import draftwood as dw
from draftwood.engines.common import Worker

WORKERS, SHAPE, WIDTHS = 8, "mla:h=2,t=4,page=1,target=sm_90,limits=sm_120", (1, 4)
SECONDS = 240
engine = None


def backend_of(engine):
    """The name of the class that a worker of the engine gets."""
    if engine == "sglang":
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
        from sglang.srt.plugins import load_plugins

        load_plugins()
        return ATTENTION_BACKENDS["draftwood"].__module__
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    load_general_plugins()
    return AttentionBackendEnum.CUSTOM.get_path()


def work(engine, folder, barrier, results):
    try:
        os.environ["DRAFTWOOD_CACHE_DIR"], os.environ["DRAFTWOOD_MISSES"] = folder, os.path.join(folder, "misses.jsonl")
        driver_path()
        backend = backend_of(engine) if engine else None
        barrier.wait(SECONDS)
        worker = Worker(dw.Shape.parse(SHAPE), WIDTHS, batch=8, kv_len=256)
        try:
            worker.context.kernel(dw.Shape.parse(SHAPE).replace(width=3), dw.Bounds(batch=8, kv_len=256))
            frozen = False
        except dw.Frozen:
            frozen = True
        stats = worker.context.stats()
        results.put({"compiles": stats.compiles, "found": stats.hits_disk, "frozen": frozen, "backend": backend,
                     "kernels": [worker.kernel(width).shape.width for width in (1, 2, 4)], "past": worker.kernel(5),
                     "cubins": [worker.context.build(request.shape, bounds=request.bounds).build_key
                                for request in worker._requests.values()]})
    except BaseException as error:
        results.put({"error": repr(error)})


class Workers(unittest.TestCase):
    def test_one_cold_start(self):
        spawn = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory(prefix="draftwood-workers-") as folder:
            barrier, results = spawn.Barrier(WORKERS), spawn.Queue()
            processes = [spawn.Process(target=work, args=(engine, folder, barrier, results), daemon=True) for _ in range(WORKERS)]
            for process in processes:
                process.start()
            found = [results.get(timeout=SECONDS) for _ in processes]
            for process in processes:
                process.join(SECONDS)
            with open(os.path.join(folder, "misses.jsonl"), encoding="utf-8") as file:
                misses = [json.loads(line) for line in file]
        self.assertEqual([row for row in found if "error" in row], [])
        self.assertEqual(sum(row["compiles"] for row in found), len(WIDTHS), found)
        # What one had to compile, in the form that a bundle is made from.
        self.assertEqual({row["shape"] for row in misses}, {str(dw.Shape.parse(SHAPE).replace(width=width)) for width in WIDTHS})
        for row in found:
            self.assertEqual(row["compiles"] + row["found"], len(WIDTHS), found)
            self.assertTrue(row["frozen"], "a width that was not prepared was made all the same")
            self.assertEqual((row["kernels"], row["past"]), ([1, 4, 4], None))
            self.assertEqual(row["cubins"], found[0]["cubins"])
            if engine:
                self.assertIn("draftwood.engines", row["backend"])


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("sglang", "vllm"):
        engine = sys.argv.pop(1)
    unittest.main()
