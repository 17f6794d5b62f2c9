"""What vLLM's MLA builder made for decode batches (record_vllm.py), through bind_decode, against an oracle in double precision; and what
it cannot be recorded for: trees by a bias, ranks of decode context parallelism."""
import glob
import json
import os
import unittest

from support import (ROW_BOUND, Device, aligned, aligned_bf16, exact, from_bf16, np, open_gpu, random_bf16, row_errors, sees)

import draftwood as dw
from draftwood.engines import vllm

HEADS, QK, V, SCALE = 2, 576, 512, 0.0721688


def bf16(array):
    return dw.view(Device(array), "bf16")


class Batch:
    """Cache and q of our own for a recorded batch: NaN wherever it has no business."""

    def __init__(self, row, seed=1):
        random = np.random.default_rng(seed)
        self.live, self.width, self.page, rows = row["live"], row["width"], row["page"], row["rows"]
        self.lengths, self.table = np.array(row["seq_lens"], np.int32), np.array(row["block_table"], np.int32)
        self.cache = aligned(row["pages"] * self.page * QK * 2).view(np.uint16).reshape(-1, self.page, QK)
        self.cache[...] = 0x7fc0
        for b in range(self.live):
            self.cache.reshape(-1, QK)[self.slots(b)] = random_bf16(random, self.lengths[b], QK)
        self.q = aligned_bf16(random, rows, HEADS, QK)
        self.out = aligned(rows * HEADS * V * 2).view(np.uint16).reshape(rows, HEADS, V)
        self.lse = np.full((rows, HEADS), np.nan, np.float32)

    def slots(self, b):
        at = np.arange(self.lengths[b])
        return self.table[b, at // self.page] * self.page + at % self.page

    def given(self, kernel, **more):
        return {"q": bf16(self.q), "kv_cache": bf16(self.cache), "out": bf16(self.out), "block_table": Device(self.table),
                "seq_lens": Device(self.lengths), "softmax_scale": SCALE, "workspace": Device(aligned(kernel.workspace_size)),
                "lse": Device(self.lse), **more}

    def right(self, b, i, parents=None):
        """Row i of request b; parents None: a chain."""
        keys = from_bf16(self.cache.reshape(-1, QK)[self.slots(b)])
        seen = sees(parents, i) if parents else range(i + 1)
        prefix = len(keys) - self.width
        visible = [t < prefix or t - prefix in seen for t in range(len(keys))]
        return exact(from_bf16(self.q[b * self.width + i]), keys, V, SCALE, visible)

    def check(self, test, parents=None):
        out = from_bf16(self.out)
        for b in range(self.live):
            for i in range(self.width):
                row, (right, lse) = b * self.width + i, self.right(b, i, parents)
                test.assertLessEqual(row_errors(out[row], right).max(), ROW_BOUND, (b, i))
                np.testing.assert_allclose(self.lse[row], lse, atol=1e-4)
        test.assertFalse(self.out[self.live * self.width:].any(), "rows of padding are not zeros")


def recorded():
    for name in glob.glob(os.path.join(os.path.dirname(__file__), "data", "vllm-*.json")):
        with open(name, encoding="utf-8") as file:
            yield from json.load(file)["batches"]


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        open_gpu()
        cls.rows = list(recorded())
        cls.context = dw.Context()
        cls.kernels = {width: cls.kernel(width) for width in {row["width"] for row in cls.rows}}

    @classmethod
    def kernel(cls, width, features=dw.Feature.Q_ROPE, call=dw.CallKind.TABLE):
        bounds = dw.Bounds(batch=8, kv_len=160, features=features, call=call)
        return cls.context.kernel(f"mla:h={HEADS},t={width},page=16,target=sm_90,limits=sm_120", bounds)

    @classmethod
    def tearDownClass(cls):
        cls.context.close()

    def test_batches(self):
        self.assertGreater(len(self.rows), 10)
        for seed, row in enumerate(self.rows):
            with self.subTest(row["name"]):
                batch, kernel = Batch(row, seed), self.kernels[row["width"]]
                vllm.bind_decode(kernel, **batch.given(kernel)).launch()
                batch.check(self)

    def test_q_in_two_parts(self):
        row = next(row for row in self.rows if row["width"] == 9 and row["live"] == 8)
        batch, kernel = Batch(row), self.kernels[9]
        latent = aligned(row["rows"] * HEADS * V * 2).view(np.uint16).reshape(-1, HEADS, V)
        latent[...] = batch.q[..., :V]
        call = vllm.bind_decode(kernel, **batch.given(kernel, q=bf16(latent), q_rope=bf16(batch.q[..., V:])))
        batch.q[..., :V] = 0x7fc0  # is not read
        call.launch()
        batch.q[..., :V] = latent
        batch.check(self)

    def test_trees_by_a_bias(self):
        parents = [-1, 0, 0, 1]
        bias = np.array([[0 if j in sees(parents, i) else -np.inf for j in range(4)] for i in range(4)], np.float32)
        row = next(row for row in self.rows if row["width"] == 4 and 1 < row["live"] < row["requests"])
        for value in (bias, np.stack([bias] * row["requests"])):
            batch, kernel = Batch(row), self.kernels[4]
            vllm.bind_decode(kernel, **batch.given(kernel, bias=Device(value))).launch()
            batch.check(self, parents)

    def test_ranks(self):
        """Tokens dealt out to three ranks in turns; one request is so short that a rank has none of it. The ranks' results, merged by
        their log-sum-exp, are the whole."""
        whole = Batch({"live": 3, "width": 1, "page": 16, "rows": 3, "pages": 40, "seq_lens": [50, 2, 33],
                       "block_table": np.random.default_rng(1).permutation(40)[:12].reshape(3, 4).tolist()})
        kernel = self.kernel(1, dw.Feature(0), dw.CallKind.ANY)
        outs, lses = [], []
        for rank in range(3):
            part = Batch({"live": 3, "width": 1, "page": 16, "rows": 3, "pages": 40, "block_table": whole.table.tolist(),
                          "seq_lens": [len(range(rank, n, 3)) for n in whole.lengths]})
            part.q[...] = whole.q
            for b in range(3):
                part.cache.reshape(-1, QK)[part.slots(b)] = whole.cache.reshape(-1, QK)[whole.slots(b)[rank::3]]
            vllm.bind_decode(kernel, **part.given(kernel, other_ranks=True)).launch()
            outs.append(from_bf16(part.out))
            lses.append(part.lse.astype(np.float64))
        self.assertTrue((lses[2][1] == -np.inf).all())
        total = np.logaddexp.reduce(lses)
        merged = sum(out * np.exp(lse - total)[..., None] for out, lse in zip(outs, lses))
        for b in range(3):
            right, lse = whole.right(b, 0)
            self.assertLessEqual(row_errors(merged[b], right).max(), ROW_BOUND)
            np.testing.assert_allclose(total[b], lse, atol=1e-4)

    def test_refusals(self):
        batch, kernel = Batch(self.rows[1]), self.kernels[1]
        fields = {"seq_lens": ("kv_len", Device(batch.lengths.astype(np.int64))), "kv_cache": ("kv", bf16(batch.cache[:, :8])),
                  "q": ("q", bf16(batch.q[:5])), "bias": ("mask", Device(np.zeros((1, 1), np.float64)))}
        for name, (field, value) in fields.items():
            with self.subTest(name), self.assertRaises(dw.BadArgument) as caught:
                vllm.bind_decode(kernel, **batch.given(kernel, **{name: value}))
            self.assertEqual(caught.exception.field, field, caught.exception)
        with self.assertRaises(dw.BadArgument) as caught:
            vllm.bind_decode(kernel, **batch.given(kernel, other_ranks=True, bias=Device(np.zeros((1, 1), np.float32))))
        self.assertEqual(caught.exception.field, "bias")

    def test_a_row_too_many_is_noticed(self):
        """The oracle is no echo."""
        batch, kernel = Batch(self.rows[0]), self.kernels[1]
        vllm.bind_decode(kernel, **batch.given(kernel)).launch()
        batch.lengths[0] -= 1
        with self.assertRaises(AssertionError):
            batch.check(self)


if __name__ == "__main__":
    unittest.main()
