"""SGLang's TARGET_VERIFY metadata, made here as its Triton backend makes it, through bind_target_verify: against an oracle that
applies custom_mask literally, byte by byte, prefix and drafts."""
import unittest

from support import ROW_BOUND, Device, aligned, aligned_bf16, exact, from_bf16, np, open_gpu, row_errors, sees

import draftwood as dw
from draftwood.engines import sglang

HEADS, WIDTH, QK, V, SCALE, SLOTS = 2, 4, 576, 512, 0.0721688, 400


def bf16(array):
    return dw.view(Device(array), "bf16")


class Step:
    """`live` requests in buffers of a graph for `batch`: padding has the length 1 and slot 0, and its mask bytes are stale."""

    def __init__(self, live, batch, index=np.int64, chain=False, seed=1):
        random = np.random.default_rng(seed)
        self.live, self.batch, rows = live, batch, batch * WIDTH
        self.kv, self.q = aligned_bf16(random, SLOTS, 1, QK), aligned_bf16(random, rows, HEADS * QK)
        self.lengths = np.ones(batch, np.int64)
        self.lengths[:live] = random.integers(0 if live > 1 else 30, 40, live)
        slots = random.permutation(np.arange(1, SLOTS))
        cut = np.cumsum(self.lengths[:live])[-1]
        self.kv_indptr = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int32)
        self.kv_indices = np.full(batch * 48, 2**30, index)  # a graph's buffer is longer than what is read
        self.kv_indices[:self.kv_indptr[-1]] = [*slots[:cut], *[0] * (self.kv_indptr[-1] - cut)]
        self.out_cache_loc = np.zeros(rows, index)
        self.out_cache_loc[:live * WIDTH] = slots[cut:cut + live * WIDTH]
        self.qo_indptr = np.arange(0, (batch + 1) * WIDTH, WIDTH)  # i64
        sizes = WIDTH * (self.lengths + WIDTH)
        self.mask_indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.custom_mask = random.integers(0, 2, self.mask_indptr[-1] + 1000).astype(bool)
        for b in range(live):
            parents = [-1] + [i if chain else int(random.integers(0, i + 1)) for i in range(WIDTH - 1)]
            matrix = np.ones((WIDTH, self.lengths[b] + WIDTH), bool)
            for i in range(WIDTH):
                matrix[i, self.lengths[b]:] = [j in sees(parents, i) for j in range(WIDTH)]
            self.custom_mask[self.mask_indptr[b]:self.mask_indptr[b + 1]] = matrix.reshape(-1)
        self.out = aligned(rows * HEADS * V * 2).view(np.uint16).reshape(rows, HEADS * V)
        self.lse = np.full((rows, HEADS), np.nan, np.float32)

    def given(self, kernel, **more):
        return {"q": bf16(self.q), "kv_buffer": bf16(self.kv), "out": bf16(self.out), "kv_indptr": Device(self.kv_indptr),
                "kv_indices": Device(self.kv_indices), "seq_lens": Device(self.lengths.astype(np.int32)),
                "out_cache_loc": Device(self.out_cache_loc), "num_draft_tokens": WIDTH, "softmax_scale": SCALE,
                "workspace": Device(aligned(kernel.workspace_size)), "custom_mask": Device(self.custom_mask),
                "mask_indptr": Device(self.mask_indptr), "qo_indptr": Device(self.qo_indptr), "lse": Device(self.lse), **more}

    def check(self, test):
        q, pool = from_bf16(self.q).reshape(-1, HEADS, QK), from_bf16(self.kv)[:, 0]
        out = from_bf16(self.out).reshape(-1, HEADS, V)
        for b in range(self.live):
            prefix = self.kv_indices[self.kv_indptr[b]:self.kv_indptr[b + 1]]
            keys = pool[[*prefix, *self.out_cache_loc[b * WIDTH:(b + 1) * WIDTH]]]
            mask = self.custom_mask[self.mask_indptr[b]:self.mask_indptr[b + 1]].reshape(WIDTH, -1)
            for i in range(WIDTH):
                right, lse = exact(q[b * WIDTH + i], keys, V, SCALE, mask[i])
                test.assertLessEqual(row_errors(out[b * WIDTH + i], right).max(), ROW_BOUND, (b, i))
                np.testing.assert_allclose(self.lse[b * WIDTH + i], lse / np.log(2), atol=1e-4)


class TargetVerify(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        open_gpu()
        cls.context = dw.Context()
        cls.shape = dw.Shape.parse(f"mla:h={HEADS},t={WIDTH},page=1,target=sm_90,limits=sm_120")
        cls.kernel = cls.context.kernel(cls.shape, dw.Bounds(batch=8, kv_len=64))

    @classmethod
    def tearDownClass(cls):
        cls.context.close()

    def run_step(self, step, **more):
        sglang.bind_target_verify(self.kernel, **step.given(self.kernel, **more)).launch()
        step.check(self)

    def test_tree_of_one_request(self):
        self.run_step(Step(1, 1))

    def test_trees_of_eight(self):
        self.run_step(Step(8, 8))

    def test_graph_padding(self):
        self.run_step(Step(5, 8, seed=2))

    def test_chain_with_and_without_a_mask(self):
        self.run_step(Step(3, 4, chain=True))
        self.run_step(Step(3, 4, chain=True), custom_mask=None, mask_indptr=None)

    def test_indices_of_32_bits_and_rows_on_the_device(self):
        step = Step(3, 4, index=np.int32)
        self.run_step(step, qo_indptr=Device(step.qo_indptr.astype(np.int32)))

    def test_three_dimensions(self):
        step = Step(2, 2)
        self.run_step(step, q=bf16(step.q.reshape(-1, HEADS, QK)), out=bf16(step.out.reshape(-1, HEADS, V)))

    def test_replays_with_other_contents(self):
        """One call, captured for eight, over steps with other lengths, slots, trees and live requests."""
        first = Step(8, 8, seed=3)
        lengths = first.lengths.astype(np.int32)
        call = sglang.bind_target_verify(self.kernel, **first.given(self.kernel, seq_lens=Device(lengths)))
        for seed, live in ((4, 8), (5, 3), (6, 7)):
            step = Step(live, 8, seed=seed)
            if len(step.custom_mask) > len(first.custom_mask):
                step.custom_mask = step.custom_mask[:len(first.custom_mask)]
            for name in ("kv", "q", "kv_indptr", "kv_indices", "out_cache_loc", "mask_indptr"):
                getattr(first, name)[...] = getattr(step, name)
            first.custom_mask[:len(step.custom_mask)] = step.custom_mask
            first.lengths[...] = step.lengths
            lengths[...] = step.lengths
            first.live = live
            call.launch()
            first.check(self)

    def test_refusals(self):
        step = Step(2, 2)
        wrong = {"seq_lens": Device(step.lengths), "num_draft_tokens": 5, "kv_indptr": Device(step.kv_indptr[:1]),
                 "mask_indptr": None, "out_cache_loc": Device(step.out_cache_loc.astype(np.int32)), "q": bf16(step.q[:, 1:]),
                 "kv_buffer": bf16(step.kv[:, :, :500]), "logit_cap": 30.0}
        fields = {"kv_buffer": "kv", "out_cache_loc": "draft_slots", "logit_cap": "soft_cap"}
        for name, value in wrong.items():
            with self.subTest(name), self.assertRaises(dw.BadArgument) as caught:
                sglang.bind_target_verify(self.kernel, **step.given(self.kernel, **{name: value}))
            self.assertEqual(caught.exception.field, fields.get(name, name), caught.exception)
        paged = self.context.kernel(self.shape.replace(page=16), dw.Bounds(batch=2, kv_len=64))
        with self.assertRaises(dw.BadArgument) as caught:
            sglang.bind_target_verify(paged, **step.given(paged))
        self.assertEqual(caught.exception.field, "kernel")

    def test_a_mask_that_leaks_is_noticed(self):
        """The oracle is no echo: with one byte turned, the results differ."""
        step = Step(1, 1, seed=7)
        sglang.bind_target_verify(self.kernel, **step.given(self.kernel)).launch()
        step.custom_mask[step.lengths[0]] ^= True  # row 0, draft 0
        with self.assertRaises(AssertionError):
            step.check(self)


if __name__ == "__main__":
    unittest.main()
