#!/usr/bin/env python3
"""Times SGLang's Triton extend kernel and FlashInfer's kernels beside draftwood, in one process and in turns.

usage: bench/peers/peers.py [--lengths 1000,5700,23000] [--batches 1,8] [--widths 9] [--heads 8] [--page 1,64]
                            [--gqa 32/8x128,...] [--record FILE.jsonl] [--library libdraftwood.so] [--reps 11]

With --gqa the problems are GQA's (query heads / KV heads x head dimension) instead of MLA's.

Each peer is used as its package is installed; one that cannot be imported is skipped by name. With none of them, or without a
GPU or PyTorch, the last line is "SKIP peers: <why>" and the exit status 0. Only their public functions are called.

All get the same q and KV: one pool, cut into equal slices; a call takes the next slice, with the same random slots (page 1)
or pages inside it. A graph holds so many calls that 400 MB of KV are read. SGLang sees token slots and the tree as a mask;
FlashInfer's MLA knows causal masks only, so its rows are chains; its FA2 for GQA takes the tree as a custom mask, packed;
draftwood takes the tree as bits. Plans, indices and masks are made outside the time.
"""
import argparse
import ctypes
import datetime
import importlib
import inspect
import json
import math
import os
import statistics
import subprocess
import sys

import header

HERE = os.path.dirname(os.path.abspath(__file__))
QK, V = 576, 512
SCALE = 1 / math.sqrt(192)
COLD_BYTES, LEAST_CALLS, MOST_CALLS = 400e6, 6, 512
READ_GBS, MMA_TFLOPS = 4617, 649  # an H200, as in draftwood bench


def skip(why):
    print(f"SKIP peers: {why}")
    sys.exit(0)


try:
    import torch
except ImportError as error:
    skip(f"PyTorch cannot be imported ({error})")


class Problem:
    """One batch: its tensors, the slices of the pool, and a tree for each request. gqa: (KV heads, head dimension), else MLA."""

    def __init__(self, heads, width, batch, prefix, page, seed=1, gqa=None):
        self.heads, self.width, self.batch, self.prefix, self.page = heads, width, batch, prefix, page
        self.kv_heads, self.qk, self.v = (gqa[0], gqa[1], gqa[1]) if gqa else (1, QK, V)
        self.gqa, self.scale = bool(gqa), 1 / math.sqrt(gqa[1]) if gqa else SCALE
        self.record = self.kv_heads * (self.qk + self.v) if gqa else QK  # elements a token
        generator = torch.Generator(device="cuda").manual_seed(seed)
        self.tokens = prefix + width
        pages = -(-self.tokens // page)
        self.slice_pages = batch * pages
        self.kv_bytes = batch * self.tokens * self.record * 2
        self.calls = int(min(MOST_CALLS, max(LEAST_CALLS, math.ceil(COLD_BYTES / self.kv_bytes))))
        self.slices = max(2, min(self.calls, -(-int(COLD_BYTES) // self.kv_bytes)))
        like = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        all_pages = self.slices * self.slice_pages
        self.pool = torch.randn(all_pages, page, *((self.kv_heads, self.qk) if gqa else (QK,)), **like)
        self.values = torch.randn(all_pages, page, self.kv_heads, self.v, **like) if gqa else None
        self.q = torch.randn(batch * width, heads, self.qk, **like)
        order = torch.randperm(self.slice_pages, device="cuda", generator=generator).to(torch.int32)
        self.table = order.view(batch, pages).contiguous()
        offsets = torch.arange(self.tokens, device="cuda")
        self.slots = self.table[:, offsets // page].long() * page + offsets % page  # [batch, tokens] inside a slice
        self.parents = [[-1] + [int(torch.randint(0, i, (1,))) for i in range(1, width)] for _ in range(batch)]
        self.sees = torch.stack([self.ancestors(p) for p in self.parents]).cuda()  # [batch, width, width]
        self.chain = torch.tril(torch.ones(width, width, dtype=torch.bool, device="cuda")).expand(batch, -1, -1)

    @staticmethod
    def ancestors(parents):
        sees = torch.zeros(len(parents), len(parents), dtype=torch.bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                sees[node] = sees[parent]
            sees[node, node] = True
        return sees

    def part(self, pool, call):
        first = call % self.slices * self.slice_pages
        return pool[first:first + self.slice_pages]

    def kv(self, call):
        """MLA: records; GQA: K."""
        return self.part(self.pool, call)

    def exact(self, call, request, sees):
        """[width, heads, V] in float64."""
        slots = self.slots[request]
        keys = self.kv(call).view(-1, self.kv_heads, self.qk)[slots].double()
        values = self.part(self.values, call).view(-1, self.kv_heads, self.v)[slots].double() if self.gqa else keys[..., :V]
        q = self.q[request * self.width:(request + 1) * self.width].double()
        mask = torch.ones(self.width, self.tokens, dtype=torch.bool, device="cuda")
        mask[:, self.prefix:] = sees[request]
        group, out = self.heads // self.kv_heads, []
        for head in range(self.kv_heads):
            scores = torch.einsum("thd,kd->thk", q[:, head * group:(head + 1) * group], keys[:, head]) * self.scale
            scores.masked_fill_(~mask[:, None, :], -math.inf)
            out.append(torch.softmax(scores, -1) @ values[:, head])
        return torch.cat(out, 1)


# ---- implementations: each makes run(call) -> output ------------------------------------------------------------


class Sglang:
    mask = "tree"
    modules = ("sglang.srt.layers.attention.triton_ops.extend_attention", "sglang.kernels.ops.attention.extend_attention")

    def __init__(self):
        problems = []
        for name in self.modules:
            try:
                self.function = importlib.import_module(name).extend_attention_fwd
                break
            except Exception as error:  # a package may fail in any way while it is imported
                problems.append(f"{name}: {error}")
        else:
            raise ImportError("; ".join(problems))
        version = getattr(sys.modules.get("sglang"), "__version__", "source")
        self.name = f"sglang {version} triton extend"

    def prepare(self, p):
        out = torch.empty(p.batch * p.width, p.heads, p.v, device="cuda", dtype=torch.bfloat16)
        step = torch.arange(p.batch + 1, device="cuda")
        prefix_slots = p.slots[:, :p.prefix].reshape(-1).contiguous()
        mask = torch.ones(p.batch, p.width, p.tokens, dtype=torch.bool, device="cuda")
        mask[:, :, p.prefix:] = p.sees
        draft_slots = p.slots[:, p.prefix:].reshape(-1)

        def pools(call):
            keys = p.kv(call).view(-1, p.kv_heads, p.qk)
            return keys, p.part(p.values, call).view(-1, p.kv_heads, p.v) if p.gqa else keys[..., :V]

        drafts = [pools(call)[0][draft_slots].contiguous() for call in range(p.slices)]
        draft_values = [pools(call)[1][draft_slots].contiguous() if p.gqa else own[..., :V] for call, own in enumerate(drafts)]
        given = {"qo_indptr": (step * p.width).to(torch.int32), "kv_indptr": (step * p.prefix).to(torch.int32),
                 "kv_indices": prefix_slots, "custom_mask": mask.reshape(-1), "is_causal": True,
                 "mask_indptr": step * p.width * p.tokens, "max_len_extend": p.width, "k_scale": 1.0, "v_scale": 1.0,
                 "sm_scale": p.scale, "skip_prefix_custom_mask": True, "page_size": p.page}
        known = inspect.signature(self.function).parameters
        given = {name: value for name, value in given.items() if name in known}

        def run(call):
            at = call % p.slices
            self.function(p.q, drafts[at], draft_values[at], out, *pools(call), **given)
            return out

        return run


class Flashinfer:
    mask = "chain"

    def __init__(self, backend):
        module = importlib.import_module("flashinfer")
        self.wrapper = importlib.import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper
        self.backend = backend
        self.name = f"flashinfer {module.__version__} mla {backend}"
        self.workspace = torch.empty(128 << 20, dtype=torch.int8, device="cuda")

    def prepare(self, p):
        wrapper = self.wrapper(self.workspace, backend=self.backend)
        step = torch.arange(p.batch + 1, device="cuda", dtype=torch.int32)
        lengths = torch.full((p.batch,), p.tokens, dtype=torch.int32, device="cuda")
        wrapper.plan(qo_indptr=step * p.width, kv_indptr=step * p.table.shape[1], kv_indices=p.table.reshape(-1),
                     kv_len_arr=lengths, num_heads=p.heads, head_dim_ckv=V, head_dim_kpe=QK - V, page_size=p.page,
                     causal=p.width > 1, sm_scale=SCALE, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
        out = torch.empty(p.batch * p.width, p.heads, V, device="cuda", dtype=torch.bfloat16)
        latent, rope = p.q[..., :V].contiguous(), p.q[..., V:].contiguous()

        def run(call):
            pool = p.kv(call)
            wrapper.run(q_nope=latent, q_pe=rope, ckv_cache=pool[..., :V], kpe_cache=pool[..., V:], out=out)
            return out

        return run


class FlashinferPrefill:
    """GQA: the paged prefill kernel, FA2, with a custom mask over all tokens of a request."""
    mask = "tree"

    def __init__(self, backend):
        module = importlib.import_module("flashinfer")
        self.wrapper = importlib.import_module("flashinfer.prefill").BatchPrefillWithPagedKVCacheWrapper
        self.backend = backend
        self.name = f"flashinfer {module.__version__} prefill {backend} custom mask"
        self.workspace = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def prepare(self, p):
        wrapper = self.wrapper(self.workspace, "NHD", backend=self.backend)
        step = torch.arange(p.batch + 1, device="cuda", dtype=torch.int32)
        mask = torch.ones(p.batch, p.width, p.tokens, dtype=torch.bool, device="cuda")
        mask[:, :, p.prefix:] = p.sees
        last = torch.full((p.batch,), (p.tokens - 1) % p.page + 1, dtype=torch.int32, device="cuda")
        wrapper.plan(step * p.width, step * p.table.shape[1], p.table.reshape(-1), last, p.heads, p.kv_heads, p.qk, p.page,
                     head_dim_vo=p.v, custom_mask=mask.reshape(-1), causal=False, sm_scale=p.scale, q_data_type=torch.bfloat16,
                     kv_data_type=torch.bfloat16)
        out = torch.empty(p.batch * p.width, p.heads, p.v, device="cuda", dtype=torch.bfloat16)

        def run(call):
            wrapper.run(p.q, (p.kv(call), p.part(p.values, call)), out=out)
            return out

        return run


class Draftwood:
    mask = "tree"

    def __init__(self, path):
        names = ("dw_error", "dw_shape", "dw_bounds", "dw_args")
        places = [os.path.join(HERE, "draftwood.h"), os.path.join(HERE, "../../src/draftwood.h")]
        self.structs, self.enums = header.read(next(p for p in places if os.path.exists(p)), names)
        self.library = ctypes.CDLL(path)
        self.library.dw_workspace_size.restype = ctypes.c_size_t
        self.library.dw_version.restype = ctypes.c_char_p
        self.error = self.structs["dw_error"]()
        self.context = ctypes.c_void_p()
        self.call("dw_ctx_create", None, ctypes.byref(self.context))
        self.name = "draftwood"

    def call(self, name, *arguments):
        if getattr(self.library, name)(*arguments, ctypes.byref(self.error)):
            raise RuntimeError(f"{name}: {self.error.message.decode()}")

    def shape(self, p):
        major, minor = torch.cuda.get_device_capability()
        target = 10 * major + minor
        limits = "sm_120" if target < 120 else "native"
        kind = f"gqa:h={p.heads},hk={p.kv_heads},d={p.qk}" if p.gqa else f"mla:h={p.heads}"
        return f"{kind},t={p.width},page={p.page},target=sm_{target},limits={limits}"

    def prepare(self, p):
        shape, kernel = self.structs["dw_shape"](), ctypes.c_void_p()
        self.call("dw_shape_parse", self.shape(p).encode(), ctypes.byref(shape))
        table = p.page > 1
        bounds = self.structs["dw_bounds"](size=ctypes.sizeof(self.structs["dw_bounds"]), batch=p.batch, kv_len=p.tokens)
        if table and hasattr(bounds, "call"):
            bounds.call = self.enums["dw_call"]["DW_CALL_TABLE"]
        self.call("dw_kernel_get", self.context, ctypes.byref(shape), None, ctypes.byref(bounds), ctypes.byref(kernel))
        size = self.library.dw_workspace_size(kernel)
        keep = self.tensors(p, size)
        args = self.arguments(p, keep, size, table)

        def run(call):
            args.kv = p.kv(call).data_ptr()
            if p.gqa:
                args.v = p.part(p.values, call).data_ptr()
            self.call("dw_launch", kernel, ctypes.byref(args), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            return keep["out"]

        return run

    @staticmethod
    def tensors(p, size):
        words = -(-p.width // 32)
        bits = torch.zeros(p.batch, p.width, words, dtype=torch.int64)
        for j in range(p.width):
            bits[:, :, j // 32] |= p.sees[:, :, j].cpu().long() << (j % 32)
        bits = torch.where(bits >= 1 << 31, bits - (1 << 32), bits)
        step = torch.arange(p.batch + 1, device="cuda", dtype=torch.int32)
        return {"out": torch.empty(p.batch * p.width, p.heads, p.v, device="cuda", dtype=torch.bfloat16),
                "mask": bits.to(torch.int32).cuda(), "workspace": torch.empty(size + 256, device="cuda", dtype=torch.uint8),
                "kv_len": torch.full((p.batch,), p.tokens, device="cuda", dtype=torch.int32), "kv_indptr": step * p.tokens,
                "kv_indices": p.slots.reshape(-1).to(torch.int32).contiguous()}

    def arguments(self, p, keep, size, table):
        struct = self.structs["dw_args"]
        args = struct(size=ctypes.sizeof(struct), q=p.q.data_ptr(), out=keep["out"].data_ptr(), batch=p.batch,
                      kv_len=keep["kv_len"].data_ptr(), lengths_include_drafts=1, mask=keep["mask"].data_ptr(),
                      softmax_scale=p.scale, workspace_size=size)
        args.mask_kind = self.enums["dw_mask"]["DW_MASK_BITS"]
        args.workspace = (keep["workspace"].data_ptr() + 255) // 256 * 256
        args.addressing = self.enums["dw_addressing"]["DW_BLOCK_TABLE" if table else "DW_CSR"]
        if table:
            args.block_table, args.table_columns = p.table.data_ptr(), p.table.shape[1]
        else:
            args.kv_indptr, args.kv_indices = keep["kv_indptr"].data_ptr(), keep["kv_indices"].data_ptr()
        return args


# ---- measuring --------------------------------------------------------------------------------------------------


def check(implementation, run, p):
    """Worst relative error of the first and last request, outputs poisoned first."""
    run(0).fill_(math.nan)
    out, worst = run(p.calls - 1), 0.0
    sees = p.sees if implementation.mask == "tree" else p.chain
    for request in {0, p.batch - 1}:
        exact = p.exact(p.calls - 1, request, sees)
        found = out[request * p.width:(request + 1) * p.width].double()
        worst = max(worst, float((found - exact).norm() / exact.norm()))
    if not worst <= 1e-2:
        raise RuntimeError(f"relative error {worst:.2e}")
    return worst


def capture(run, calls):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in range(3):
            run(call)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(calls):
            run(call)
    return graph


def replay(graph, calls):
    """Microseconds a call."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / calls


def quantile(values, q):
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def command_line():
    """The command as it was given, without the folders of this machine."""
    return " ".join(["bench/peers/peers.py"] + [os.path.basename(a) if a.startswith("/") else a for a in sys.argv[1:]])


def driver_version():
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def row_of(p, implementation, samples, error, shape):
    us = statistics.median(samples)
    flops = 2 * p.batch * p.width * p.heads * p.prefix * (p.qk + p.v)
    floor = max(p.kv_bytes / READ_GBS * 1e-3, flops / MMA_TFLOPS * 1e-6)
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "board": torch.cuda.get_device_name(),
            "driver": driver_version(), "nvrtc": "", "commit": os.environ.get("DRAFTWOOD_COMMIT", "unknown"),
            "command": command_line(),
            "impl": implementation.name, "shape": shape, "target": "", "variant": "", "batch": p.batch, "prefix": p.prefix,
            "page": p.page, "mask": implementation.mask, "l2": "cold", "graph": p.calls, "us": us,
            "us_p10": quantile(samples, 0.1), "us_p90": quantile(samples, 0.9), "kv_gbs": p.kv_bytes / us * 1e-3,
            "tflops": flops / us * 1e-6, "floor_us": floor, "sm_clocks_per_token": None, "rel_err": error}


def measure(implementations, p, reps):
    ready = []
    for implementation in implementations:
        try:
            run = implementation.prepare(p)
            error = check(implementation, run, p)
            ready.append((implementation, error, capture(run, p.calls), [], run))
        except Exception as error:  # a peer that refuses a shape is no failure of the others
            print(f"{implementation.name}: not timed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    for rep in range(-2, reps):
        for _, _, graph, samples, _ in ready:
            us = replay(graph, p.calls)
            if rep >= 0:
                samples.append(us)
    kind = f"gqa:h={p.heads},hk={p.kv_heads},t={p.width},d={p.qk}" if p.gqa else f"mla:h={p.heads},t={p.width},qk={QK},v={V}"
    shape = f"{kind},page={p.page},q=bf16,kv=bf16"
    return [row_of(p, implementation, samples, error, shape) for implementation, error, _, samples, _ in ready]


def find_implementations(library, gqa):
    found, missing = [], []
    makers = [("sglang", Sglang)]
    if gqa:
        makers += [("flashinfer fa2", lambda: FlashinferPrefill("fa2"))]
    else:
        makers += [("flashinfer fa2", lambda: Flashinfer("fa2")), ("flashinfer fa3", lambda: Flashinfer("fa3"))]
    for name, maker in makers:
        try:
            found.append(maker())
        except Exception as error:
            missing.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    for line in missing:
        print(f"SKIP {line}")
    if not found:
        skip("neither SGLang nor FlashInfer can be imported")
    try:
        found.insert(0, Draftwood(library))
    except (OSError, RuntimeError) as error:
        print(f"SKIP draftwood: {error}")
    return found


def numbers(text):
    return [int(part) for part in text.split(",")]


def kinds(text):
    """32/8x128,... -> [(query heads, (KV heads, head dimension)), ...]"""
    found = []
    for part in text.split(","):
        heads, rest = part.split("/")
        kv_heads, size = rest.split("x")
        found.append((int(heads), (int(kv_heads), int(size))))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lists = {"lengths": "1000,5700,23000,91000,185000", "batches": "1,8", "widths": "9", "heads": "8", "page": "1,64"}
    for name, default in lists.items():
        parser.add_argument(f"--{name}", type=numbers, default=numbers(default))
    parser.add_argument("--gqa", type=kinds)
    parser.add_argument("--record")
    parser.add_argument("--library", default="libdraftwood.so.0")
    parser.add_argument("--reps", type=int, default=11)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        skip("PyTorch sees no GPU")
    torch.cuda.init()
    torch.zeros(1, device="cuda")  # the primary context is current from here on
    implementations = find_implementations(args.library, args.gqa)
    record = open(args.record, "a", encoding="utf-8") if args.record else None
    for heads, gqa in args.gqa or [(heads, None) for heads in args.heads]:
        name = f"h={heads}/{gqa[0]}x{gqa[1]}" if gqa else f"h={heads}"
        for width in args.widths:
            for page in args.page:
                for batch in args.batches:
                    for prefix in args.lengths:
                        p = Problem(heads, width, batch, prefix, page, gqa=gqa)
                        for row in measure(implementations, p, args.reps):
                            print(f"{name} t={width} p={page} B={batch} {prefix}: {row['impl']:32} {row['us']:9.2f} us "
                                  f"({row['us_p10']:.2f} to {row['us_p90']:.2f}), error {row['rel_err']:.2e}", flush=True)
                            if record:
                                record.write(json.dumps(row) + "\n")
                        del p
                        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
