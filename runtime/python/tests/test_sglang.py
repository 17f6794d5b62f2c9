"""SGLang's TARGET_VERIFY metadata, made here as its Triton backend makes it, through bind_target_verify: against an oracle that
applies custom_mask literally, byte by byte, prefix and drafts."""
import glob
import json
import os
import unittest

from support import ROW_BOUND, Device, aligned, aligned_bf16, exact, from_bf16, np, open_gpu, random_bf16, row_errors, sees

import draftwood as dw
from draftwood.engines import sglang

HEADS, WIDTH, QK, V, SCALE, SLOTS = 2, 4, 576, 512, 0.0721688, 400


def bf16(array):
    return dw.view(Device(array), "bf16")


class Step:
    """`live` requests in buffers of a graph for `batch`: padding has the length 1 and slot 0, and its mask bytes are stale."""

    def __init__(self, live, batch, index=np.int64, chain=False, seed=1):
        random = np.random.default_rng(seed)
        self.live, self.batch, self.width, rows = live, batch, WIDTH, batch * WIDTH
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
                "out_cache_loc": Device(self.out_cache_loc), "num_draft_tokens": self.width, "softmax_scale": SCALE,
                "workspace": Device(aligned(kernel.workspace_size)), "custom_mask": Device(self.custom_mask),
                "mask_indptr": Device(self.mask_indptr), "qo_indptr": Device(self.qo_indptr), "lse": Device(self.lse), **more}

    def check(self, test):
        q, pool = from_bf16(self.q).reshape(-1, HEADS, QK), from_bf16(self.kv)[:, 0]
        out = from_bf16(self.out).reshape(-1, HEADS, V)
        for b in range(self.live):
            prefix = self.kv_indices[self.kv_indptr[b]:self.kv_indptr[b + 1]]
            first = b * self.width
            keys = pool[[*prefix, *self.out_cache_loc[first:first + self.width]]]
            mask = self.custom_mask[self.mask_indptr[b]:self.mask_indptr[b + 1]].reshape(self.width, -1)
            for i in range(self.width):
                right, lse = exact(q[first + i], keys, V, SCALE, mask[i])
                test.assertLessEqual(row_errors(out[first + i], right).max(), ROW_BOUND, (b, i))
                np.testing.assert_allclose(self.lse[first + i], lse / np.log(2), atol=1e-4)


class RecordedStep(Step):
    """A step of a file that record_sglang.py wrote, with KV and q of our own: NaN wherever the step has no business."""

    def __init__(self, row, seed):
        random = np.random.default_rng(seed)
        self.row, self.live, self.batch, self.width = row, row["live"], row["batch"], row["width"]
        rows = self.batch * self.width
        self.kv_indptr, self.qo_indptr, self.mask_indptr, self.out_cache_loc = (
            np.array(row[name], {"i32": np.int32, "i64": np.int64}[row[name + "_dtype"]])
            for name in ("kv_indptr", "qo_indptr", "mask_indptr", "out_cache_loc"))
        self.kv_indices = np.full(row["kv_indices_size"], 2**30, np.int64)
        self.kv_indices[:len(row["kv_indices"])] = row["kv_indices"]
        self.lengths = np.array(row["seq_lens"], np.int64)
        slots = int(max(*row["kv_indices"], *row["out_cache_loc"])) + 1
        self.kv = aligned(slots * QK * 2).view(np.uint16).reshape(slots, 1, QK)
        self.kv[...] = 0x7fc0
        used = [*row["kv_indices"], *row["out_cache_loc"]]
        self.kv[used] = random_bf16(random, len(used), 1, QK)
        self.q = aligned_bf16(random, rows, HEADS * QK)
        self.out = aligned(rows * HEADS * V * 2).view(np.uint16).reshape(rows, HEADS * V)
        self.lse = np.full((rows, HEADS), np.nan, np.float32)
        self.masked = row["custom_mask"] is not None
        self.custom_mask = np.array([int(c) for c in row["custom_mask"] or ""], np.uint8).astype(bool)
        if not self.masked:
            self.custom_mask = np.concatenate([np.tri(self.width, n + self.width, n, dtype=bool).reshape(-1) for n in self.lengths])

    def given(self, kernel, **more):
        mask = {"custom_mask": Device(self.custom_mask.astype(np.uint8 if self.row["custom_mask_dtype"] == "u8" else bool))}
        return super().given(kernel, **(mask if self.masked else {"custom_mask": None, "mask_indptr": None}), **more)


class Recorded(unittest.TestCase):
    """What SGLang's Triton backend itself made for trees and chains, batch 1 and 8, eager, captured and padded."""

    def test_replay(self):
        open_gpu()
        files = glob.glob(os.path.join(os.path.dirname(__file__), "data", "sglang-*.json"))
        self.assertTrue(files)
        with dw.Context() as context:
            for name in files:
                with open(name, encoding="utf-8") as file:
                    steps = json.load(file)["steps"]
                self.assertGreater(len(steps), 10)
                kernels = {width: context.kernel(f"mla:h={HEADS},t={width},page=1,target=sm_90,limits=sm_120", dw.Bounds(batch=8, kv_len=128))
                           for width in {row["width"] for row in steps}}
                for seed, row in enumerate(steps):
                    with self.subTest(row["name"]):
                        step, kernel = RecordedStep(row, seed), kernels[row["width"]]
                        sglang.bind_target_verify(kernel, **step.given(kernel)).launch()
                        step.check(self)


class Ranks(unittest.TestCase):
    """Decode context parallelism: requests' tokens on ranks by their slots, as SGLang has them. NaN in every row that is not a rank's."""

    def check_step(self, context, row, seed):
        """A step of the file: "slots" of prefix and drafts as all ranks have them, "sees" of the live requests, each rank's metadata."""
        random, ranks, width, batch = np.random.default_rng(seed), len(row["ranks"]), row["width"], row["batch"]
        heads = HEADS * ranks
        kernel = context.kernel(f"mla:h={heads},t={width},page=1,target=sm_90,limits=sm_120", dw.Bounds(batch=8, kv_len=128))
        q, tokens = aligned_bf16(random, batch * width, heads, QK), [random_bf16(random, len(slots), QK) for slots in row["slots"]]
        outs, lses = [], []
        for rank, part in enumerate(row["ranks"]):
            pool = aligned(QK * 2 * (1 + max(max(slots) for slots in row["slots"]) // ranks)).view(np.uint16).reshape(-1, 1, QK)
            pool[...] = 0x7fc0
            for slots, kv in zip(map(np.array, row["slots"]), tokens):
                pool[slots[slots % ranks == rank] // ranks, 0] = kv[slots % ranks == rank]
            out = aligned(batch * width * heads * V * 2).view(np.uint16).reshape(-1, heads, V)
            lse = np.full(out.shape[:2], np.nan, np.float32)
            indices = np.array(part["kv_indices"] or [0], np.int64)
            mask = np.array([int(c) for c in part["draft_mask"]], np.uint8).reshape(batch, width, width)
            sglang.bind_target_verify(
                kernel, q=bf16(q), kv_buffer=bf16(pool), out=bf16(out), lse=Device(lse), kv_indptr=Device(np.array(part["kv_indptr"], np.int32)),
                kv_indices=Device(indices), seq_lens=Device(np.array(part["seq_lens"], np.int32)),
                out_cache_loc=Device(np.array(part["out_cache_loc"])), draft_mask=Device(mask), num_draft_tokens=width, softmax_scale=SCALE,
                workspace=Device(aligned(kernel.workspace_size))).launch()
            outs.append(from_bf16(out))
            lses.append(lse.astype(np.float64))
        live = slice(0, row["live"] * width)
        outs, lses = np.stack(outs)[:, live], np.stack(lses)[:, live]
        most = lses.max(0)
        weights = np.exp2(lses - most)
        merged, total = (outs * weights[..., None]).sum(0) / weights.sum(0)[..., None], most + np.log2(weights.sum(0))
        sees_drafts = np.array([int(c) for c in row["sees"]], bool).reshape(-1, width, width)
        for b in range(row["live"]):
            keys, prefix = from_bf16(tokens[b]), len(tokens[b]) - width
            for i in range(width):
                right, lse = exact(from_bf16(q[b * width + i]), keys, V, SCALE, [*[True] * prefix, *sees_drafts[b, i]])
                self.assertLessEqual(row_errors(merged[b * width + i], right).max(), ROW_BOUND, (b, i))
                np.testing.assert_allclose(total[b * width + i], lse / np.log(2), atol=1e-4)
        return outs, lses

    def test_recorded(self):
        open_gpu()
        (name,) = glob.glob(os.path.join(os.path.dirname(__file__), "data", "sglang-*.json"))
        with open(name, encoding="utf-8") as file:
            rows = json.load(file)["ranks"]
        self.assertGreater(len(rows), 5)
        with dw.Context() as context:
            for seed, row in enumerate(rows):
                with self.subTest(row["name"], ranks=len(row["ranks"])):
                    self.check_step(context, row, seed)

    def test_made_here(self):
        """Four ranks and prefixes of 0 to 33: a rank may own no draft, no token of a prefix, or nothing at all, which counts for nothing.
        owned_drafts makes what SGLang's pool stores."""
        open_gpu()
        random, ranks, width, prefixes = np.random.default_rng(5), 4, 3, (0, 1, 2, 7, 33)
        sees = np.tri(width, dtype=bool) & (random.integers(0, 2, (len(prefixes), width, width)).astype(bool) | np.eye(width, dtype=bool))
        sees[..., 0] = True  # all see the root
        turns = random.permutation(np.arange(1, 60))
        slots = [turns[12 * b:12 * b + 12].repeat(ranks)[:n + width] * ranks + np.arange(n + width) % ranks for b, n in enumerate(prefixes)]
        drafts, parts = np.concatenate([row[-width:] for row in slots]), []
        for rank in range(ranks):
            mine = [row[:-width][row[:-width] % ranks == rank] // ranks for row in slots]
            rows, mask = sglang.owned_drafts(drafts, sees, rank, ranks)
            parts.append({"kv_indptr": [0, *np.cumsum([len(row) for row in mine])], "kv_indices": np.concatenate(mine).tolist(),
                          "seq_lens": [len(row) for row in mine], "out_cache_loc": rows, "draft_mask": "".join(map(str, mask.astype(int).flat))})
        row = {"width": width, "batch": len(prefixes), "live": len(prefixes), "slots": [row.tolist() for row in slots],
               "sees": "".join(map(str, sees.astype(int).flat)), "ranks": parts}
        with dw.Context() as context:
            outs, lses = self.check_step(context, row, 5)
            empty = lses == -np.inf
            self.assertTrue(empty[3, :width].all())  # the fourth rank has none of a request of three tokens
            self.assertEqual(np.abs(outs[empty]).max(), 0)
            parts[0]["draft_mask"] = "1" * len(parts[0]["draft_mask"])  # a rank that counts what others own
            with self.assertRaises(AssertionError):
                self.check_step(context, row, 5)


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
                 "kv_buffer": bf16(step.kv[:, :, :500]), "logit_cap": 30.0, "draft_mask": Device(np.ones((2, WIDTH, WIDTH), bool))}
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
