"""Verify calls and companions on a GPU made of software, against an oracle in double precision."""
import gc
import unittest

from support import (ROW_BOUND, Device, aligned, aligned_bf16, exact, from_bf16, np, open_gpu, row_errors, sees)

import draftwood as dw

QK, V, SCALE = 576, 512, 0.0721688
HEADS, WIDTH, PAGE, BATCH, LONGEST = 2, 4, 16, 2, 64
SHAPE = f"mla:h={HEADS},t={WIDTH},page={PAGE},target=sm_90,limits=sm_120"
PREFIX = [21, 40]
TREES = [[-1, 0, 0, 1], [-1, -1, 1, -2]]


def i32(values):
    return Device(np.array(values, np.int32))


def bf16(array):
    return dw.view(Device(array), "bf16")


def from_e4m3(codes):  # but NaN
    exponent, mantissa = (codes >> 3 & 15).astype(int), (codes & 7).astype(int)
    size = np.where(exponent > 0, np.ldexp(8.0 + mantissa, exponent - 10), np.ldexp(mantissa * 1.0, -9))
    return np.where(codes & 0x80, -size, size)


def aligned_e4m3(random, *shape):
    codes = aligned(int(np.prod(shape))).reshape(shape)
    codes[...] = random.integers(0, 256, shape, np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    return codes


class Problem:
    """A pool, two requests with a tree each, and what is right."""

    def __init__(self, page=PAGE, seed=1):
        random = np.random.default_rng(seed)
        pages = BATCH * LONGEST // page
        self.page = page
        self.kv = aligned_bf16(random, pages, page, QK)
        self.q = aligned_bf16(random, BATCH * WIDTH, HEADS, QK)
        self.table = random.permutation(pages).astype(np.int32).reshape(BATCH, -1)
        self.lengths = np.array(PREFIX, np.int32) + WIDTH
        self.out = aligned(BATCH * WIDTH * HEADS * V * 2).view(np.uint16).reshape(-1, HEADS, V)
        self.lse = np.full((BATCH * WIDTH, HEADS), np.nan, np.float32)

    def slots(self, b):
        return [int(self.table[b, t // self.page]) * self.page + t % self.page for t in range(self.lengths[b])]

    def pool(self):
        return from_bf16(self.kv).reshape(-1, QK)

    def check(self, test, trees=TREES, base=np.e, keys=None):
        """keys: in fp64, where they are not the pool's."""
        q, pool = from_bf16(self.q), self.pool() if keys is None else keys
        for b in range(BATCH):
            keys = pool[self.slots(b)]
            for node in range(WIDTH):
                seen = sees(trees[b], node)
                visible = [trees[b][node] != -2 and (t < PREFIX[b] or t - PREFIX[b] in seen) for t in range(len(keys))]
                right, lse = exact(q[b * WIDTH + node], keys, V, SCALE, visible)
                found = from_bf16(self.out[b * WIDTH + node])
                test.assertLessEqual(row_errors(found, right).max(), ROW_BOUND, (b, node))
                np.testing.assert_allclose(self.lse[b * WIDTH + node], lse / np.log(base), atol=1e-4)


class GroupedCalls(unittest.TestCase):
    """GQA: K and V in pools of their own, heads before tokens, or in one buffer."""
    KV_HEADS, GROUP, SIZE = 2, 3, 64

    @classmethod
    def setUpClass(cls):
        open_gpu()
        cls.context = dw.Context()
        shape = f"gqa:h={cls.KV_HEADS * cls.GROUP},hk={cls.KV_HEADS},d={cls.SIZE},t={WIDTH},page={PAGE},target=sm_90,limits=sm_120"
        cls.kernel = cls.context.kernel(shape, dw.Bounds(batch=BATCH, kv_len=LONGEST))
        cls.workspace = Device(aligned(cls.kernel.workspace_size))

    @classmethod
    def tearDownClass(cls):
        cls.context.close()

    def run_and_check(self, seed, make):
        """make: K and V -> what bind gets of them."""
        random, heads, size, group = np.random.default_rng(seed), self.KV_HEADS, self.SIZE, self.GROUP
        pages = BATCH * LONGEST // PAGE
        key, value = (aligned_bf16(random, pages, PAGE, heads, size) for _ in range(2))
        q = aligned_bf16(random, BATCH * WIDTH, heads * group, size)
        table = random.permutation(pages).astype(np.int32).reshape(BATCH, -1)
        lengths = np.array(PREFIX, np.int32) + WIDTH
        out = aligned(q.nbytes).view(np.uint16).reshape(q.shape)
        given = make(key, value)
        call = self.kernel.bind(q=bf16(q), out=bf16(out), kv=given[0], v=given[1], kv_len=Device(lengths), block_table=Device(table),
                                mask=i32(TREES[0] + TREES[1]), mask_kind=dw.Mask.PARENTS, softmax_scale=0.125,
                                workspace=self.workspace)
        call.launch()
        for b in range(BATCH):
            places = [int(table[b, t // PAGE]) * PAGE + t % PAGE for t in range(lengths[b])]
            for node in range(WIDTH):
                seen = sees(TREES[b], node)
                visible = [TREES[b][node] != -2 and (t < PREFIX[b] or t - PREFIX[b] in seen) for t in range(lengths[b])]
                for head in range(heads * group):
                    both = np.concatenate([from_bf16(x).reshape(-1, heads, size)[places, head // group] for x in (value, key)], 1)
                    row = np.concatenate([np.zeros(size), from_bf16(q[b * WIDTH + node, head])])  # V comes first, as exact has it
                    right, _ = exact(row[None], both, size, 0.125, visible)
                    found = from_bf16(out[b * WIDTH + node, head])
                    self.assertLessEqual(row_errors(found[None], right).max(), ROW_BOUND, (b, node, head))

    def test_apart(self):
        self.run_and_check(1, lambda key, value: (bf16(key), bf16(value)))

    def test_heads_before_tokens(self):
        def turned(x):
            room = aligned(x.nbytes).view(np.uint16).reshape(x.shape[0], self.KV_HEADS, PAGE, self.SIZE)
            room[...] = x.transpose(0, 2, 1, 3)
            return bf16(room.transpose(0, 2, 1, 3))

        self.run_and_check(2, lambda key, value: (turned(key), turned(value)))

    def test_one_buffer(self):
        def halves(key, value):
            room = aligned(2 * key.nbytes).view(np.uint16).reshape(key.shape[0], 2, *key.shape[1:])
            room[:, 0], room[:, 1] = key, value
            return bf16(room[:, 0]), bf16(room[:, 1])

        self.run_and_check(3, halves)

    def test_refused(self):
        for change in ("v", "kv"):
            with self.assertRaises(dw.BadArgument) as caught:
                self.run_and_check(4, lambda key, value: (bf16(key[:, 1:]), bf16(value)) if change == "kv"
                                   else (bf16(key), bf16(value[..., :32])))
            self.assertEqual(caught.exception.field, change)


class E4m3Problem(Problem):
    """With any codes but NaN, and a scale."""

    def __init__(self):
        super().__init__()
        codes = np.random.default_rng(8).integers(0, 0x7F, self.kv.shape, np.uint8)
        codes |= np.random.default_rng(9).integers(0, 2, self.kv.shape, np.uint8) << 7
        self.kv, self.scale = aligned(codes.size).reshape(codes.shape), np.array([0.01], np.float32)
        self.kv[...] = codes

    def pool(self):
        return (from_e4m3(self.kv) * float(self.scale[0])).reshape(-1, self.kv.shape[-1])


class RecordProblem(E4m3Problem):
    """Records of 656 bytes: latents in e4m3, a scale for each 128 of them, the rope in bf16."""

    def __init__(self):
        super().__init__()
        random, pages = np.random.default_rng(10), self.kv.shape[0]
        records = aligned(pages * PAGE * 656).reshape(pages, PAGE, 656)
        records[..., :V] = self.kv[..., :V]
        records[..., V:V + 16] = (10.0 ** random.uniform(-3.5, -1.5, (pages, PAGE, 4))).astype(np.float32).view(np.uint8)
        records[..., V + 16:] = aligned_bf16(random, pages, PAGE, QK - V).view(np.uint8)
        self.kv, self.scale = records, np.ones(1, np.float32)

    def pool(self):
        records, bytes_ = self.kv, np.ascontiguousarray
        self.kv = records[..., :V]
        latents = super().pool()
        self.kv = records
        scales = bytes_(records[..., V:V + 16]).view(np.float32).reshape(-1, 4).astype(np.float64)
        return np.concatenate([latents * np.repeat(scales, 128, 1),
                               from_bf16(bytes_(records[..., V + 16:]).view(np.uint16)).reshape(-1, QK - V)], 1)


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        open_gpu()
        cls.context = dw.Context()
        cls.kernel = cls.context.kernel(SHAPE, dw.Bounds(batch=BATCH, kv_len=LONGEST))
        cls.workspace = Device(aligned(cls.kernel.workspace_size))

    @classmethod
    def tearDownClass(cls):
        cls.context.close()

    def bind(self, p, **more):
        given = {"q": bf16(p.q), "out": bf16(p.out), "kv": bf16(p.kv), "kv_len": Device(p.lengths), "lse": Device(p.lse),
                 "lse_base": "e", "block_table": Device(p.table), "mask": i32([TREES[0] + TREES[1]][0]),
                 "mask_kind": dw.Mask.PARENTS, "softmax_scale": SCALE, "workspace": self.workspace, **more}
        return self.kernel.bind(**given)

    def test_parents(self):
        p = Problem()
        self.bind(p).launch()
        p.check(self)

    def test_kv_in_e4m3(self):
        p = E4m3Problem()
        kernel = self.context.kernel(SHAPE + ",kv=e4m3", dw.Bounds(batch=BATCH, kv_len=LONGEST))
        given = {"q": bf16(p.q), "out": bf16(p.out), "kv": dw.view(Device(p.kv), "e4m3"), "kv_len": Device(p.lengths),
                 "lse": Device(p.lse), "lse_base": "e", "block_table": Device(p.table), "mask": i32(TREES[0] + TREES[1]),
                 "mask_kind": dw.Mask.PARENTS, "softmax_scale": SCALE, "kv_scale": Device(p.scale),
                 "workspace": Device(aligned(kernel.workspace_size))}
        call = kernel.bind(**given)
        call.launch()
        p.check(self)
        p.scale[...] = 0.002  # read by each launch
        call.launch()
        p.check(self)
        with self.assertRaises(dw.BadArgument) as caught:
            self.bind(Problem(), kv_scale=Device(p.scale))
        self.assertEqual(caught.exception.field, "kv_scale")

    def test_records(self):
        p = RecordProblem()
        kernel = self.context.kernel(SHAPE + ",kv=record656", dw.Bounds(batch=BATCH, kv_len=LONGEST))
        given = {"q": bf16(p.q), "out": bf16(p.out), "kv": Device(p.kv), "kv_len": Device(p.lengths), "lse": Device(p.lse), "lse_base": "e",
                 "block_table": Device(p.table), "mask": i32(TREES[0] + TREES[1]), "mask_kind": dw.Mask.PARENTS, "softmax_scale": SCALE,
                 "workspace": Device(aligned(kernel.workspace_size))}
        kernel.bind(**given).launch()
        p.check(self)
        for name, value in (("kv_scale", Device(p.scale)), ("kv", Device(p.kv[..., :640]))):
            with self.assertRaises(dw.BadArgument) as caught:
                kernel.bind(**{**given, name: value})
            self.assertEqual(caught.exception.field, name)

    def test_repeated_with_new_contents(self):
        p = Problem()
        call = self.bind(p)
        call.launch(0)
        first = p.out.copy()
        other = Problem(seed=2)
        p.q[...] = other.q
        call.launch(0)
        self.assertFalse((first == p.out).all())
        p.check(self)

    def test_bits_and_base_two(self):
        p = Problem()
        bits = np.array([*dw.tree_mask(TREES[0]), *dw.tree_mask(TREES[1])], np.uint32).reshape(-1, 1)
        bits[7] = 0  # a dead node's row sees the prefix, as bits
        self.bind(p, mask=Device(bits), mask_kind=dw.Mask.BITS, lse_base=2).launch()
        p.out[7], p.lse[7] = 0, -np.inf
        p.check(self, base=2)

    def test_bytes_bias_and_matrices_for_all(self):
        tree = TREES[0]
        matrix = np.array([[j in sees(tree, i) for j in range(WIDTH)] for i in range(WIDTH)], np.uint8)
        for value, kind in ((matrix, dw.Mask.BYTES_QLEN), (np.stack([matrix] * BATCH), dw.Mask.BYTES_QLEN),
                            (np.where(matrix, 0, -np.inf).astype(np.float32), dw.Mask.BIAS_F32)):
            p = Problem()
            self.bind(p, mask=Device(value), mask_kind=kind).launch()
            p.check(self, trees=[tree] * BATCH)

    def test_chain(self):
        p = Problem()
        self.bind(p, mask=None, mask_kind=dw.Mask.NONE).launch()
        p.check(self, trees=[[-1, 0, 1, 2]] * BATCH)

    def test_padding_and_ragged_rows(self):
        """Buffers longer than the call: batch and total_q say what counts."""
        p = Problem()
        rows = i32([0, 4, 8, 99])
        lengths = i32([*p.lengths, -5])
        self.bind(p, qo_indptr=rows, kv_len=lengths, batch=BATCH, total_q=BATCH * WIDTH).launch()
        p.check(self)

    def test_strided_tensors(self):
        p, wide = Problem(), np.zeros((BATCH * WIDTH, HEADS, QK + 64), np.uint16)
        room = aligned(wide.nbytes).view(np.uint16).reshape(wide.shape)
        room[..., :QK] = p.q
        self.bind(p, q=bf16(room[..., :QK])).launch()
        p.check(self)

    def test_update(self):
        p, other = Problem(), Problem(seed=3)
        call = self.bind(p)
        call.update(kv=bf16(other.kv), q=bf16(other.q), block_table=Device(other.table))
        p.kv, p.q, p.table = other.kv, other.q, other.table
        with self.assertRaises(dw.BadArgument):
            call.update(q=bf16(p.q[:, :1]))
        with self.assertRaises(dw.BadArgument):
            call.update(nonsense=1)
        call.launch()
        p.check(self)

    def test_repoint(self):
        """Other layers of a step: the same call with other addresses, unless something is laid out otherwise."""
        p, other = Problem(), Problem(seed=3)
        call = self.bind(p)
        self.assertTrue(call.repoint(kv=bf16(other.kv), q=bf16(other.q), out=bf16(other.out), lse=Device(other.lse)))
        before = p.out.copy()
        other.table[...] = p.table
        call.launch()
        self.assertTrue((p.out == before).all())
        other.check(self)
        wide = aligned(2 * p.q.nbytes).view(np.uint16).reshape(2, *p.q.shape)
        for name, value in (("q", bf16(wide[0].reshape(BATCH * WIDTH, QK, HEADS))), ("out", Device(p.out.view(np.float16))),
                            ("kv", bf16(p.kv[1:])), ("q", bf16(wide.reshape(-1, HEADS, QK)[::2]))):
            self.assertFalse(call.repoint(**{name: value}), name)
        with self.assertRaises(dw.BadArgument):
            call.repoint(kv_len=Device(p.lengths))

    def test_arrays_live_as_long_as_the_call(self):
        p = Problem()
        call = self.bind(p, mask=i32(TREES[0] + TREES[1]))
        gc.collect()
        self.assertTrue(any(getattr(array.owner, "array", None) is not None for array in call._keep))
        call.launch()
        p.check(self)

    def test_refusals(self):
        p = Problem()
        half = np.zeros((BATCH * WIDTH, HEADS, V), np.float16)
        wrong = {"q": bf16(p.q[..., :V]), "out": Device(half), "kv": bf16(p.kv[:, :8]), "kv_len": Device(p.lengths.astype(np.int64)),
                 "lse": Device(p.lse[:3]), "block_table": None, "mask": i32([0]), "mask_kind": dw.Mask.STATIC,
                 "workspace": Device(aligned(512)), "batch": 9, "lengths": "all", "lse_base": 10, "soft_cap": 30.0,
                 "total_q": 7, "softmax_scale": float("nan")}
        fields = {"mask_kind": "mask", "batch": "q", "workspace": "workspace_size", "total_q": "q"}
        for name, value in wrong.items():
            with self.subTest(name), self.assertRaises(dw.BadArgument) as caught:
                self.bind(p, **{name: value})
            self.assertEqual(caught.exception.field, fields.get(name, name), caught.exception)
            self.assertTrue(caught.exception.allowed)

    def test_a_short_array_is_refused(self):
        p = Problem()
        with self.assertRaises(dw.BadArgument) as caught:
            self.bind(p, qo_indptr=i32([0, 4]))
        self.assertIn("qo_indptr", caught.exception.field)

    def test_closed_context(self):
        with dw.Context() as context:
            kernel = context.kernel(SHAPE, dw.Bounds(batch=BATCH, kv_len=LONGEST))
            self.assertEqual(kernel.variant, self.kernel.variant)
            p = Problem()
            call = kernel.bind(q=bf16(p.q), out=bf16(p.out), kv=bf16(p.kv), kv_len=Device(p.lengths), softmax_scale=SCALE,
                               block_table=Device(p.table), workspace=self.workspace)
        with self.assertRaises(dw.BadArgument) as caught:
            call.launch()
        self.assertEqual(caught.exception.field, "kernel")


class Narrow(unittest.TestCase):
    """KV in e4m3 with a scale on the device, which may change between launches."""

    def setUp(self):
        open_gpu()

    def test_mla(self):
        p, random = Problem(), np.random.default_rng(4)
        bits, scale = aligned_e4m3(random, *p.kv.shape), np.zeros(1, np.float32)
        values = from_e4m3(bits)
        p.kv = dw.view(Device(bits), "e4m3")
        with dw.Context() as context:
            kernel = context.kernel(f"{SHAPE},kv=e4m3", dw.Bounds(batch=BATCH, kv_len=LONGEST))
            given = {"q": bf16(p.q), "out": bf16(p.out), "kv": p.kv, "kv_len": Device(p.lengths), "lse": Device(p.lse), "lse_base": "e",
                     "block_table": Device(p.table), "mask": i32(TREES[0] + TREES[1]), "mask_kind": dw.Mask.PARENTS,
                     "softmax_scale": SCALE, "workspace": Device(aligned(kernel.workspace_size))}
            for name, value, field in (("v_scale", Device(scale), "v_scale"), ("kv", bf16(aligned_bf16(random, *bits.shape)), "kv")):
                with self.subTest(name), self.assertRaises(dw.BadArgument) as caught:
                    kernel.bind(**{**given, name: value})
                self.assertEqual(caught.exception.field, field)
            call = kernel.bind(**given, kv_scale=Device(scale))
            for factor in (0.0078125, 0.02):
                scale[0] = factor
                call.launch()
                keys = values * float(scale[0])
                p.check(self, keys=keys.reshape(-1, QK))


class Grouped(unittest.TestCase):
    """GQA: K and V beside each other in a token, and heads of a page apart from one another in two buffers."""

    HEADS, KV_HEADS, DIM = 4, 2, 128

    def setUp(self):
        open_gpu()

    def run_layout(self, page, layout, narrow=False):
        """narrow: KV in e4m3, with a scale for K and one for V."""
        random = np.random.default_rng(page)
        make, wrap, read = (aligned_e4m3, lambda a: dw.view(Device(a), "e4m3"), from_e4m3) if narrow else (aligned_bf16, bf16, from_bf16)
        scales = [np.array([x], np.float32) for x in ((0.015, 0.5) if narrow else (1, 1))]
        heads, group, dim = self.KV_HEADS, self.HEADS // self.KV_HEADS, self.DIM
        pages = BATCH * LONGEST // page
        if layout == "tokens":
            both = make(random, pages, page, heads, 2 * dim)
            k, v = both[..., :dim], both[..., dim:]
        else:
            k, v = (make(random, pages, heads, page, dim).transpose(0, 2, 1, 3) for _ in range(2))
        table = random.permutation(pages).astype(np.int32).reshape(BATCH, -1)
        lengths = np.array(PREFIX, np.int32) + WIDTH
        q = aligned_bf16(random, BATCH * WIDTH, self.HEADS, dim)
        out = aligned(q.nbytes).view(np.uint16).reshape(q.shape)
        lse = np.full((BATCH * WIDTH, self.HEADS), np.nan, np.float32)
        squeeze = (lambda array: array[:, 0]) if page == 1 else (lambda array: array)
        with dw.Context() as context:
            kernel = context.kernel(f"gqa:h={self.HEADS},hk={heads},d={dim},t={WIDTH},page={page},target=sm_90,limits=sm_120"
                                    + (",kv=e4m3" if narrow else ""), dw.Bounds(batch=BATCH, kv_len=LONGEST))
            given = {"kv_scale": Device(scales[0]), "v_scale": Device(scales[1])} if narrow else {}
            call = kernel.bind(**given, q=bf16(q), out=bf16(out), kv=wrap(squeeze(k)), v=wrap(squeeze(v)), kv_len=Device(lengths), lse=Device(lse),
                               lse_base="e", block_table=Device(table), mask=i32(TREES[0] + TREES[1]), mask_kind=dw.Mask.PARENTS,
                               softmax_scale=SCALE, workspace=Device(aligned(kernel.workspace_size)))
            short = np.zeros(1, np.float64)
            for name, value in (("v", None), ("v", wrap(squeeze(v)[..., :64])), ("v", wrap(squeeze(v)[:1])), ("kv", wrap(k[..., :1, :])),
                                ("v_scale", Device(short)), *([] if narrow else [("kv_scale", Device(scales[0]))])):
                with self.subTest(name), self.assertRaises(dw.BadArgument) as caught:
                    call.update(**{name: value})
                self.assertEqual(caught.exception.field, name)
            call.launch()
        for b in range(BATCH):
            slots = [(int(table[b, t // page]), t % page) for t in range(lengths[b])]
            keys = np.stack([np.concatenate([read(x[slot]) * float(scale[0]) for x, scale in zip((k, v), scales)], -1) for slot in slots])
            for node in range(WIDTH):
                seen = sees(TREES[b], node)
                visible = [TREES[b][node] != -2 and (t < PREFIX[b] or t - PREFIX[b] in seen) for t in range(len(slots))]
                for head in range(self.HEADS):
                    row, record = (b * WIDTH + node, head), keys[:, head // group]
                    right, right_lse = exact(from_bf16(q[row])[None], record[:, :dim], dim, SCALE, visible, record[:, dim:])
                    self.assertLessEqual(row_errors(from_bf16(out[row])[None], right).max(), ROW_BOUND, row)
                    np.testing.assert_allclose(lse[row], right_lse[0], atol=1e-4)

    def test_k_and_v_of_a_token_side_by_side(self):
        self.run_layout(16, "tokens")

    def test_heads_of_a_page_apart(self):
        self.run_layout(32, "heads")

    def test_e4m3(self):
        self.run_layout(16, "tokens", narrow=True)
        self.run_layout(32, "heads", narrow=True)

    def test_slots(self):
        self.run_layout(1, "tokens")

    def test_mla_has_no_v(self):
        p = Problem()
        with dw.Context() as context, self.assertRaises(dw.BadArgument) as caught:
            context.kernel(SHAPE, dw.Bounds(batch=BATCH, kv_len=LONGEST)).bind(
                q=bf16(p.q), out=bf16(p.out), kv=bf16(p.kv), v=bf16(p.kv), kv_len=Device(p.lengths), block_table=Device(p.table),
                softmax_scale=SCALE)
        self.assertEqual(caught.exception.field, "v")


class Checked(unittest.TestCase):
    def test_report(self):
        open_gpu()
        with dw.Context() as context:
            bounds = dw.Bounds(batch=BATCH, kv_len=LONGEST)
            variant = dw.Variant.choose(SHAPE, bounds).replace(checked=1)
            kernel = context.kernel(SHAPE, bounds, variant)
            p, report = Problem(), np.zeros(dw.REPORT_WORDS, np.uint32)
            p.table[1, 0] = 4711
            kernel.bind(q=bf16(p.q), out=bf16(p.out), kv=bf16(p.kv), kv_len=Device(p.lengths), softmax_scale=SCALE,
                        block_table=Device(p.table), workspace=Device(aligned(kernel.workspace_size)),
                        report=Device(report)).launch()
            self.assertFalse(p.out[WIDTH:].any())
            self.assertTrue(p.out[:WIDTH].any())
            with self.assertRaises(dw.BadArgument) as caught:
                dw.check_report(report.tobytes())
            self.assertIn("4711 for request 1", str(caught.exception))


class CompanionCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        open_gpu()
        cls.context = dw.Context()
        cls.companions = cls.context.companions()

    @classmethod
    def tearDownClass(cls):
        cls.context.close()

    def test_a_step(self):
        """Expand, accept, compact: as the functions on the host say, and the pool's rows."""
        parents, drafts, targets = TREES[0] + TREES[1], [5, 6, 7, 8, 1, 2, 3, 0], [7, 1, 9, 4, 0, 3, 11, 0]
        depths, positions = np.zeros(8, np.int32), np.zeros(8, np.int64)
        mask = np.zeros((8, 1), np.uint32)
        lengths = np.array(PREFIX, np.int32) + WIDTH
        self.companions.tree_expand(i32(parents), batch=BATCH, width=WIDTH, kv_len=Device(lengths), depths=Device(depths),
                                    positions=Device(positions), mask=Device(mask)).launch()
        self.assertEqual(list(depths), [*dw.tree_depths(TREES[0]), *dw.tree_depths(TREES[1])])
        self.assertEqual(list(positions[:4]), list(dw.tree_positions(TREES[0], PREFIX[0])))
        self.assertEqual(list(mask[:, 0]), [*dw.tree_mask(TREES[0]), *dw.tree_mask(TREES[1])])

        accepted, count, bonus = np.zeros((BATCH, WIDTH), np.int32), np.zeros(BATCH, np.int32), np.zeros(BATCH, np.int32)
        self.companions.tree_accept(i32(parents), i32(drafts), i32(targets), batch=BATCH, width=WIDTH, accept_index=Device(accepted),
                                    accept_count=Device(count), bonus_tokens=Device(bonus)).launch()
        for b in range(BATCH):
            rows = slice(b * WIDTH, (b + 1) * WIDTH)
            walked = dw.tree_walk(TREES[b], drafts[rows], targets[rows])
            self.assertEqual(tuple(accepted[b, :count[b]]), walked.path)
            self.assertEqual(bonus[b], walked.bonus)
        self.assertEqual(list(accepted[0]), [0, 2, -1, -1])

        p, new_len = Problem(), np.zeros(BATCH, np.int32)
        before = p.kv.copy()
        planes = dw.Planes(Device(np.array([p.kv.ctypes.data], np.uint64)), row_bytes=2 * QK)
        self.companions.kv_compact(planes, kv_len=Device(lengths), accept_index=Device(accepted), width=WIDTH, page=PAGE,
                                   block_table=Device(p.table), new_len=Device(new_len), next_drafts=WIDTH).launch()
        self.assertEqual(list(new_len), [PREFIX[b] + count[b] + WIDTH for b in range(BATCH)])
        right, flat = before.reshape(-1, QK).copy(), before.reshape(-1, QK)
        for b in range(BATCH):
            for k in range(count[b]):
                right[p.slots(b)[PREFIX[b] + k]] = flat[p.slots(b)[PREFIX[b] + accepted[b, k]]]
        self.assertTrue((p.kv.reshape(-1, QK) == right).all())
        self.assertFalse((before == p.kv).all())

    def test_merge(self):
        random = np.random.default_rng(5)
        out, lse = random.standard_normal((3, 4, HEADS, V)).astype(np.float32), random.standard_normal((3, 4, HEADS)).astype(np.float32)
        merged, total = np.zeros((4, HEADS, V), np.float32), np.zeros((4, HEADS), np.float32)
        self.companions.merge_states(dw.States(Device(out), Device(lse), "e"), Device(merged), Device(total), "e").launch()
        weights = np.exp(lse.astype(np.float64))
        np.testing.assert_allclose(merged, (out * weights[..., None]).sum(0) / weights.sum(0)[..., None], atol=1e-5)
        np.testing.assert_allclose(total, np.log(weights.sum(0)), atol=1e-5)
        singles = [dw.States(Device(out[i]), Device(np.ascontiguousarray(lse[i].T).T), "e") for i in range(3)]
        again = np.zeros_like(merged)
        self.companions.merge_states(singles, Device(again)).launch()
        np.testing.assert_allclose(again, merged, atol=1e-6)

    def test_defrag_and_move(self):
        tables, tokens = [[5, 1], [3, 7, 0]], [20, 33]
        planned = dw.Pool(8, tables, tokens, page=PAGE).defrag()
        pool = aligned_bf16(np.random.default_rng(6), 8, PAGE, QK)
        before = pool.copy()
        moves = aligned(len(planned.list.data), 16)
        moves[...] = np.frombuffer(planned.list.data, np.uint8)
        planes = dw.Planes(Device(np.array([pool.ctypes.data], np.int64)), row_bytes=2 * QK)
        self.companions.kv_move(planes, Device(moves), planned.list.teams, page=PAGE).launch()
        for b in range(2):
            self.assertTrue((pool[list(planned.tables[b])] == before[tables[b]]).all())
        self.assertFalse((pool == before).all())

    def test_refusals(self):
        p = Problem()
        planes = dw.Planes(Device(np.array([p.kv.ctypes.data], np.uint64)), row_bytes=2 * QK)
        lengths, accepted = Device(p.lengths), i32([[0, -1]] * BATCH)
        with self.assertRaises(dw.BadArgument) as caught:
            self.companions.kv_compact(planes, kv_len=lengths, accept_index=i32([[0]]), width=WIDTH)
        self.assertEqual(caught.exception.field, "accept_index")
        call = self.companions.kv_compact(planes, kv_len=lengths, accept_index=accepted, width=WIDTH, page=PAGE)
        with self.assertRaises(dw.BadArgument):
            call.launch()  # no table
        with self.assertRaises(dw.BadArgument):
            self.companions.kv_compact([planes] * 5, kv_len=lengths, accept_index=accepted, width=WIDTH)
        with self.assertRaises(dw.BadArgument):
            self.companions.tree_expand(i32([0] * 7), batch=2, width=WIDTH)


class Slots(unittest.TestCase):
    """CSR: token slots of 64 bits, the prefix alone, drafts in slots of their own."""

    def test_slots(self):
        open_gpu()
        shape = dw.Shape.parse(SHAPE).replace(page=1)
        with dw.Context() as context:
            kernel = context.kernel(shape, dw.Bounds(batch=BATCH, kv_len=LONGEST))
            p = Problem(page=1)
            slots = [p.slots(b) for b in range(BATCH)]
            indices = np.concatenate([slots[b][:PREFIX[b]] for b in range(BATCH)]).astype(np.int64)
            drafts = np.concatenate([slots[b][PREFIX[b]:] for b in range(BATCH)]).astype(np.int64)
            kernel.bind(q=bf16(p.q), out=bf16(p.out), kv=bf16(p.kv), kv_len=i32(PREFIX), lengths="prefix", lse=Device(p.lse),
                        lse_base="e", kv_indptr=i32([0, *np.cumsum(PREFIX)]), kv_indices=Device(indices),
                        draft_slots=Device(drafts), mask=i32(TREES[0] + TREES[1]), mask_kind=dw.Mask.PARENTS,
                        softmax_scale=SCALE, workspace=Device(aligned(kernel.workspace_size))).launch()
            p.check(self)


if __name__ == "__main__":
    unittest.main()
