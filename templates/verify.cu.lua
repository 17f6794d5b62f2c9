@ -- The tree-verify kernels of one variant: dw_verify, dw_combine (where the KV is split), dw_pack_mask and dw_check (if checked).
@ param.string("attention", {"mla", "gqa"})
@ param.int("heads", 1, 1024)
@ param.int("kv_heads", 1, heads)
@ param.int("width", 1, 1025)
@ param.int("head_dim_qk", 32)
@ param.int("head_dim_v", 32, attention == "mla" and head_dim_qk or 1024)
@ param.int("page", 1)
@ local formats = {"bf16", "fp16", "fp32"}
@ param.string("q", {"bf16", "fp16"})
@ param.string("kv", {q, "e4m3", "record656"})
@ local record = kv == "record656"
@ assert(not record or attention == "mla" and head_dim_qk == 576 and head_dim_v == 512 and q == "bf16", "kv: not a record's shape")
@ param.string("out", formats)
@ param.int("target", 80)
@ param.int("limits", 0)
@ param.string("family", {"reference", "split", "rowsplit", "grouped", "warpsplit", "dimsplit"})
@ param.int("n_tiles", 1, ({grouped = 8, dimsplit = 9})[family] or 5)
@ param.flag("setmaxnreg")
@ param.string("combine", {"none", "few", "many"})
@ param.int("combine_splits", 1)
@ param.string("call", {"any", "table"})
@ param.flag("checked")
@ param.flag("wide_tile")
@ param.flag("e4m3_mma")
@ param.flag("cp_async")
@ param.string("accumulate", {"fp32", "fp16_output", "fp16"})
@ param.flag("window")
@ param.flag("soft_cap")
@ param.flag("q_rope")
@ param.flag("kv_rope")
@ param.string("tree")
@ param.int("shared_bytes", 0)
@ local serves = {rowsplit = "mla", dimsplit = "mla", grouped = "gqa", warpsplit = "gqa"}
@ assert((serves[family] or attention) == attention, "family: rowsplit and dimsplit serve mla, grouped and warpsplit gqa")
@ assert((family == "reference") == (combine == "none"), "combine: only reference goes without")
@ local function bool(x) return x and "true" or "false" end
@ local seen, nodes = {}, {}  -- what each node of the tree sees, as bits
@ for parent in tree:gmatch("[^.]+") do
@   local node = #nodes + 1
@   seen[node] = (parent == "r" and 0 or seen[math.tointeger(parent) + 1]) | 1 << node - 1
@   nodes[node] = string.format("0x%xull", seen[node])
@ end
@ assert(#nodes == 0 or #nodes == width and width <= 64, "tree: a parent for each of up to 64 nodes")
@ local out_index = {bf16 = 0, fp16 = 1, fp32 = 2}
// draftwood verify: family ${family}
#include "types.cuh"
#include "ptx.cuh"
#include "params.h"

constexpr int HEADS = ${heads}, KV_HEADS = ${attention == "gqa" and kv_heads or 0}, WIDTH = ${width}, QK = ${head_dim_qk}, V = ${head_dim_v};
constexpr int PAGE = ${page};
constexpr bool Q_F16 = ${bool(q == "fp16")}, KV_E4M3 = ${bool(kv == "e4m3" or record)}, KV_RECORD = ${bool(record)};
constexpr bool E4M3_CVT = ${bool(target >= 89)}, E4M3_MMA = ${bool(e4m3_mma)};
// accumulators of a chain of products
constexpr bool F16_OUTPUT = ${bool(accumulate ~= "fp32")}, F16_SCORES = ${bool(accumulate == "fp16")};
constexpr bool MUL_F16 = ${bool(kv ~= "bf16")};  // operands of products are fp16, else bf16
constexpr int OUT_DTYPE = ${out_index[out]};  // as dw_dtype
constexpr bool HAS_TREE = ${bool(#nodes > 0)};
@ if #nodes > 0 then
DW_TABLE const u64 STATIC_TREE[] = {${table.concat(nodes, ", ")}};  // bit j of node i: i sees draft j
@ else
constexpr const u64 *STATIC_TREE = nullptr;
@ end
constexpr bool CALL_TABLE = ${bool(call == "table")};
constexpr bool CHECKED = ${bool(checked)};
constexpr bool WITH_WINDOW = ${bool(window)}, WITH_SOFT_CAP = ${bool(soft_cap)};
constexpr bool WITH_Q_ROPE = ${bool(q_rope)}, WITH_KV_ROPE = ${bool(kv_rope)};
#include "dtype.cuh"
#include "checked.cuh"
#include "request.cuh"
@ if family == "reference" then
#include "reference.cuh"
@ else
constexpr int TILE = ${(wide_tile or family == "dimsplit") and 32 or 16};  // tokens
#include "schedule.cuh"
constexpr bool PARTIAL_F16 = ${bool(family ~= "split" and not record)};
#include "combine.cuh"
@   if family == "split" then
#include "split.cuh"
@   else
constexpr int N_TILES = ${n_tiles};
constexpr bool COMBINE_FEW = ${bool(combine == "few")};
@     if attention == "mla" then
constexpr bool CP_ASYNC = ${bool(cp_async)};
constexpr bool SETMAXNREG = ${bool(setmaxnreg)}, WIDE_OUTPUT = ${bool(n_tiles > 2 and not setmaxnreg)};
@     end
@     if family == "dimsplit" then
constexpr bool LARGE_SHARED = ${bool(target == 90 and limits ~= 120)};  // what an H200 has
@     end
#include "${family}.cuh"
static_assert(SHARED_BYTES == ${shared_bytes}, "the plan's shared memory is the kernel's");
@   end

// With 4 blocks asked for, the compiler spends registers on loads in flight; left alone it saves them, one load after another.
extern "C" __global__ void __launch_bounds__(128, 4) dw_combine(const __grid_constant__ dw_params p) {
@   if combine == "many" then
  combine_many<${div_up(combine_splits, 8)}>(p);
@   else
  combine_few<${combine_splits}>(p);
@   end
}
@ end
#include "pack_mask.cuh"
@ if checked then
#include "check.cuh"
@ end

#ifndef __CUDACC__
// Host execution calls the kernels through pointers to their parameters.
@ for _, entry in ipairs{"dw_verify", "dw_combine", "dw_pack_mask", "dw_check"} do
@   if (entry ~= "dw_combine" or combine ~= "none") and (entry ~= "dw_check" or checked) then
extern "C" void ${entry}__host(const void *p) { ${entry}(*(const dw_params *)p); }
@   end
@ end
#endif
