"""Eight worker processes, started together by spawn as engines start theirs: each prepares the same kernels in an empty cache folder that
they share, and freezes. Real NVRTC; each kernel is compiled once in all.

usage: test_workers.py [sglang | vllm | gpu]

With an engine each process also finds its backend through the engine's own plug-in loader. gpu: on a real one or the one made of software,
with torch; each process also runs a tree step there and compares its rows with fp64.
"""
import json
import multiprocessing
import os
import sys
import tempfile
import unittest

from support import driver_path, open_gpu

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


def rows_on_gpu(worker):
    """The largest distance of a row, and of its log-sum-exp, from fp64."""
    import gpu_engines
    import torch
    from gpu_engines import DEVICE, Problem, launch

    from draftwood.engines.common import workspace

    found, gpu_engines.DTYPE = [], torch.bfloat16  # SHAPE's; there is no Triton here
    problem = Problem(os.getpid(), heads=2, batch=8, width=4, page=1, longest=200)
    launch(problem.bind(worker.kernel(4), workspace(worker.workspace_size, DEVICE)))
    problem.check(lambda name, value, bound: found.append((value, bound)), "worker")
    return found


def work(engine, folder, barrier, results):
    try:
        os.environ["DRAFTWOOD_CACHE_DIR"], os.environ["DRAFTWOOD_MISSES"] = folder, os.path.join(folder, "misses.jsonl")
        if engine != "gpu":
            driver_path()
        elif "DRAFTWOOD_DRIVER" in os.environ:
            open_gpu()
        else:
            import torch

            torch.zeros(1, device="cuda")  # its CUDA context is current from here on
        backend = backend_of(engine) if engine in ("sglang", "vllm") else None
        barrier.wait(SECONDS)
        worker = Worker(dw.Shape.parse(SHAPE), WIDTHS, batch=8, kv_len=256)
        try:
            worker.context.kernel(dw.Shape.parse(SHAPE).replace(width=3), dw.Bounds(batch=8, kv_len=256))
            frozen = False
        except dw.Frozen:
            frozen = True
        stats = worker.context.stats()
        results.put({"compiles": stats.compiles, "found": stats.hits_disk, "frozen": frozen, "backend": backend,
                     "rows": rows_on_gpu(worker) if engine == "gpu" else [],
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
            for value, bound in row["rows"]:
                self.assertLessEqual(value, bound)
            if row["backend"]:
                self.assertIn("draftwood.engines", row["backend"])
        if engine == "gpu":
            print(f"{WORKERS} workers, {sum(row['compiles'] for row in found)} compiles; "
                  f"rows from fp64: {max(row['rows'][0][0] for row in found):.2e}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in ("sglang", "vllm", "gpu"):
        engine = sys.argv.pop(1)
    unittest.main()
