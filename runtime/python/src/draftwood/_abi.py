"""The C side of draftwood.h. Made from the header by abi.py; not to be edited."""
from ctypes import Structure, c_byte, c_char, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from enum import IntEnum, IntFlag

DW_FAULT_WORDS = 4
DW_KERNELS_MAX = 8
DW_PLANES_MAX = 4
DW_STATES_MAX = 4
DW_TEXT_MAX = 512


class Status(IntEnum):
    OK = 0
    BAD_ARGUMENT = 1
    BAD_SHAPE = 2
    NOT_APPLICABLE = 3
    UNSUPPORTED_TARGET = 4
    OUT_OF_MEMORY = 5
    TEMPLATE = 6
    NO_COMPILER = 7
    COMPILE = 8
    NO_DRIVER = 9
    DRIVER = 10
    BAD_CUBIN = 11
    WRONG_ARCH = 12
    IO = 13
    NOT_FOUND = 14
    FROZEN = 15
    CANCELLED = 16
    HOST_EXECUTION = 17
    WRONG_RESULT = 18
    INTERNAL = 19
    BAD_BUNDLE = 20


class Attention(IntEnum):
    MLA = 0
    GQA = 1


class DType(IntEnum):
    BF16 = 0
    F16 = 1
    F32 = 2
    E4M3 = 3
    RECORD656 = 4


class Family(IntEnum):
    REFERENCE = 0
    SPLIT = 1
    ROWSPLIT = 2
    GROUPED = 3
    WARPSPLIT = 4
    DIMSPLIT = 5


class CallKind(IntEnum):
    ANY = 0
    TABLE = 1


class Combine(IntEnum):
    NONE = 0
    FEW = 1
    MANY = 2


class Accumulate(IntEnum):
    FP32 = 0
    FP16_OUTPUT = 1
    FP16 = 2


class Feature(IntFlag):
    WINDOW = 1
    SOFT_CAP = 2
    Q_ROPE = 4
    KV_ROPE = 8


class LogLevel(IntEnum):
    DEBUG = 0
    INFO = 1
    WARNING = 2


class Effort(IntEnum):
    QUICK = 0
    MEASURE = 1
    EXHAUSTIVE = 2


class Source(IntEnum):
    RULE = 0
    RECORD = 1
    NEAR_SHAPE = 2
    NEAR_GPU = 3


class Addressing(IntEnum):
    CSR = 0
    BLOCK_TABLE = 1


class Mask(IntEnum):
    NONE = 0
    PARENTS = 1
    BITS = 2
    BYTES_QLEN = 3
    BYTES_FULL = 4
    BIAS_F32 = 5
    STATIC = 6


class Fault(IntEnum):
    REQUEST = 0
    ROWS = 1
    LENGTH = 2
    TABLE = 3
    PAGE = 4
    DRAFT_SLOT = 5
    PARENT = 6
    MASK_SIZE = 7
    BIAS = 8
    POSITION = 9


class Error(Structure):
    _fields_ = [
        ("status", c_int),
        ("field", c_char * 48),
        ("found", c_char * 192),
        ("allowed", c_char * 256),
        ("message", c_char * 640),
        ("log", c_void_p),
    ]


class Shape(Structure):
    _fields_ = [
        ("attention", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("width", c_int),
        ("head_dim_qk", c_int),
        ("head_dim_v", c_int),
        ("page", c_int),
        ("q", c_int),
        ("kv", c_int),
        ("out", c_int),
        ("target", c_int),
        ("limits", c_int),
        ("tree_nodes", c_int),
        ("tree", c_byte * 64),
    ]


class Variant(Structure):
    _fields_ = [
        ("family", c_int),
        ("n_tiles", c_int),
        ("setmaxnreg", c_int),
        ("combine", c_int),
        ("combine_splits", c_int),
        ("call", c_int),
        ("checked", c_int),
        ("wide_tile", c_int),
        ("e4m3_mma", c_int),
        ("cp_async", c_int),
        ("accumulate", c_int),
        ("window", c_int),
        ("soft_cap", c_int),
        ("q_rope", c_int),
        ("kv_rope", c_int),
    ]


class Bounds(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int),
        ("total_q", c_int),
        ("kv_len", c_int),
        ("sm_count", c_int),
        ("call", c_int),
        ("features", c_int),
        ("split_tokens", c_int),
    ]


class Options(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("cache_dir", c_void_p),
        ("template_dir", c_void_p),
        ("nvrtc_path", c_void_p),
        ("driver_path", c_void_p),
        ("log", c_void_p),
        ("log_user", c_void_p),
        ("system_dirs", c_void_p),
        ("cache_limit", c_uint64),
        ("cache_shared", c_int),
        ("compile_slots", c_int),
        ("lock_timeout_ms", c_int),
        ("no_compile", c_int),
        ("plan", c_void_p),
    ]


class Resources(Structure):
    _fields_ = [
        ("name", c_char * 64),
        ("registers", c_int),
        ("stack_bytes", c_int),
        ("shared_static", c_int),
        ("barriers", c_int),
        ("spill_stores", c_int),
        ("spill_loads", c_int),
        ("max_threads", c_int),
        ("uses_setmaxnreg", c_int),
    ]


class Cubin(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("size", c_size_t),
        ("target", c_char * 16),
        ("compiler", c_char * 32),
        ("request_key", c_char * 65),
        ("build_key", c_char * 65),
        ("compile_ms", c_double),
        ("from_cache", c_int),
        ("kernel_count", c_int),
        ("kernels", Resources * 8),
    ]


class Stats(Structure):
    _fields_ = [
        ("compiles", c_uint64),
        ("compile_failures", c_uint64),
        ("hits_memory", c_uint64),
        ("hits_disk", c_uint64),
        ("misses", c_uint64),
        ("damaged", c_uint64),
        ("publish_failures", c_uint64),
        ("hits_layers", c_uint64),
        ("known_failures", c_uint64),
        ("lock_timeouts", c_uint64),
        ("evicted", c_uint64),
        ("list_misses", c_uint64),
    ]


class Request(Structure):
    _fields_ = [
        ("shape", c_void_p),
        ("variant", c_void_p),
        ("bounds", c_void_p),
    ]


class Progress(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("requests", c_size_t),
        ("done", c_size_t),
        ("compiled", c_size_t),
        ("failed", c_size_t),
        ("elsewhere", c_size_t),
        ("loaded", c_size_t),
    ]


class PrepareOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("cubins_only", c_int),
        ("threads", c_int),
        ("progress", c_void_p),
        ("progress_user", c_void_p),
    ]


class TuneProgress(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("problems", c_size_t),
        ("problem", c_size_t),
        ("candidates", c_size_t),
        ("prepared", c_size_t),
        ("in_play", c_size_t),
        ("rounds", c_int),
        ("seconds", c_double),
        ("budget_seconds", c_double),
        ("shape", c_void_p),
        ("variant", c_void_p),
    ]


class TuneOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("gpu", c_int),
        ("budget_seconds", c_double),
        ("effort", c_int),
        ("warm", c_int),
        ("any_numerics", c_int),
        ("resume", c_int),
        ("shard", c_int),
        ("shards", c_int),
        ("threads", c_int),
        ("folder", c_void_p),
        ("command", c_void_p),
        ("progress", c_void_p),
        ("progress_user", c_void_p),
        ("answer_seconds", c_double),
    ]


class Choice(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("source", c_int),
        ("predicted", c_int),
        ("us", c_double),
        ("default_us", c_double),
    ]


class Args(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("q", c_void_p),
        ("q_row_stride", c_int64),
        ("q_head_stride", c_int64),
        ("q_rope", c_void_p),
        ("q_rope_row_stride", c_int64),
        ("q_rope_head_stride", c_int64),
        ("out", c_void_p),
        ("out_row_stride", c_int64),
        ("out_head_stride", c_int64),
        ("lse", c_void_p),
        ("lse_row_stride", c_int64),
        ("lse_base_e", c_int),
        ("qo_indptr", c_void_p),
        ("batch", c_int),
        ("total_q", c_int),
        ("width", c_int),
        ("kv", c_void_p),
        ("kv_token_stride", c_int64),
        ("kv_page_stride", c_int64),
        ("kv_pages", c_int),
        ("kv_head_stride", c_int64),
        ("v", c_void_p),
        ("v_token_stride", c_int64),
        ("v_page_stride", c_int64),
        ("v_head_stride", c_int64),
        ("kv_rope", c_void_p),
        ("kv_rope_token_stride", c_int64),
        ("kv_rope_page_stride", c_int64),
        ("addressing", c_int),
        ("kv_indptr", c_void_p),
        ("kv_indices", c_void_p),
        ("index64", c_int),
        ("draft_slots", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("table_columns", c_int),
        ("kv_len", c_void_p),
        ("lengths_include_drafts", c_int),
        ("drafts_elsewhere", c_int),
        ("mask_kind", c_int),
        ("mask", c_void_p),
        ("mask_row_stride", c_int64),
        ("mask_request_stride", c_int64),
        ("mask_shared", c_int),
        ("mask_indptr", c_void_p),
        ("mask_size", c_int64),
        ("softmax_scale", c_float),
        ("soft_cap", c_float),
        ("window", c_int),
        ("positions", c_void_p),
        ("sinks", c_void_p),
        ("overlap_prologue", c_int),
        ("workspace", c_void_p),
        ("workspace_size", c_size_t),
        ("report", c_void_p),
        ("kv_len_count", c_int64),
        ("qo_indptr_count", c_int64),
        ("kv_indptr_count", c_int64),
        ("block_table_count", c_int64),
        ("kv_indices_count", c_int64),
        ("draft_slots_count", c_int64),
        ("kv_scale", c_void_p),
        ("v_scale", c_void_p),
    ]


class States(Structure):
    _fields_ = [
        ("out", c_void_p),
        ("lse", c_void_p),
        ("count", c_int),
        ("dtype", c_int),
        ("lse_base_e", c_int),
        ("out_part_stride", c_int64),
        ("out_row_stride", c_int64),
        ("out_head_stride", c_int64),
        ("lse_part_stride", c_int64),
        ("lse_row_stride", c_int64),
        ("lse_head_stride", c_int64),
    ]


class MergeArgs(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("states", States * 4),
        ("state_kinds", c_int),
        ("rows", c_int),
        ("heads", c_int),
        ("v", c_int),
        ("out", c_void_p),
        ("lse", c_void_p),
        ("dtype", c_int),
        ("lse_base_e", c_int),
        ("out_row_stride", c_int64),
        ("out_head_stride", c_int64),
        ("lse_row_stride", c_int64),
        ("lse_head_stride", c_int64),
    ]


class Planes(Structure):
    _fields_ = [
        ("bases", c_void_p),
        ("count", c_int),
        ("row_bytes", c_int64),
        ("token_stride", c_int64),
        ("page_stride", c_int64),
    ]


class CompactArgs(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("planes", Planes * 4),
        ("plane_kinds", c_int),
        ("page", c_int),
        ("batch", c_int),
        ("width", c_int),
        ("qo_indptr", c_void_p),
        ("kv_len", c_void_p),
        ("lengths_include_drafts", c_int),
        ("addressing", c_int),
        ("kv_indptr", c_void_p),
        ("kv_indices", c_void_p),
        ("index64", c_int),
        ("draft_slots", c_void_p),
        ("block_table", c_void_p),
        ("block_table_stride", c_int64),
        ("table_columns", c_int),
        ("accept_index", c_void_p),
        ("accept_stride", c_int64),
        ("accept_columns", c_int),
        ("next_drafts", c_int),
        ("new_len", c_void_p),
        ("accept_count", c_void_p),
        ("overlap_prologue", c_int),
    ]


class ExpandArgs(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("parents", c_void_p),
        ("qo_indptr", c_void_p),
        ("batch", c_int),
        ("width", c_int),
        ("kv_len", c_void_p),
        ("lengths_include_drafts", c_int),
        ("depths", c_void_p),
        ("positions", c_void_p),
        ("positions64", c_int),
        ("mask", c_void_p),
        ("mask_row_stride", c_int64),
    ]


class AcceptArgs(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("parents", c_void_p),
        ("draft_tokens", c_void_p),
        ("target_tokens", c_void_p),
        ("root_tokens", c_void_p),
        ("tokens64", c_int),
        ("qo_indptr", c_void_p),
        ("batch", c_int),
        ("width", c_int),
        ("accept_index", c_void_p),
        ("accept_stride", c_int64),
        ("accept_columns", c_int),
        ("accept_count", c_void_p),
        ("bonus_tokens", c_void_p),
    ]


class Move(Structure):
    _fields_ = [
        ("from", c_int32),
        ("to", c_int32),
    ]


class MoveList(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("bytes", c_size_t),
        ("teams", c_int),
        ("moves", c_int),
    ]


class MoveArgs(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("planes", Planes * 4),
        ("plane_kinds", c_int),
        ("page", c_int),
        ("by_slot", c_int),
        ("list", c_void_p),
        ("teams", c_int),
    ]


class Pool(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("pages", c_int),
        ("page", c_int),
        ("requests", c_int),
        ("table", c_void_p),
        ("table_stride", c_int64),
        ("indptr", c_void_p),
        ("tokens", c_void_p),
        ("pinned", c_void_p),
    ]


class Defrag(Structure):
    _fields_ = [
        ("moves", c_void_p),
        ("count", c_int),
        ("least", c_int),
        ("new_place", c_void_p),
        ("list", MoveList),
    ]


# name: (result, arguments)
FUNCTIONS = {
    "dw_status_name": (c_char_p, (c_int,)),
    "dw_status_text": (c_char_p, (c_int,)),
    "dw_error_clear": (None, (c_void_p,)),
    "dw_version": (c_char_p, ()),
    "dw_shape_parse": (c_int, (c_char_p, c_void_p, c_void_p)),
    "dw_shape_print": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "dw_shape_check": (c_int, (c_void_p, c_void_p)),
    "dw_preset_count": (c_size_t, ()),
    "dw_preset_name": (c_char_p, (c_size_t,)),
    "dw_preset_shape": (c_int, (c_char_p, c_void_p, c_void_p)),
    "dw_variant_parse": (c_int, (c_char_p, c_void_p, c_void_p)),
    "dw_variant_print": (c_size_t, (c_void_p, c_void_p, c_size_t)),
    "dw_variant_applicable": (c_int, (c_void_p, c_void_p, c_void_p)),
    "dw_variant_choose": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_variant_enumerate": (c_int, (c_void_p, c_size_t, c_void_p)),
    "dw_compile_target": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_shared_bytes": (c_size_t, (c_void_p, c_void_p)),
    "dw_ctx_create": (c_int, (c_void_p, c_void_p, c_void_p)),
    "dw_ctx_destroy": (None, (c_void_p,)),
    "dw_source_generate": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_free": (None, (c_void_p,)),
    "dw_cubin_build": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_cubin_free": (None, (c_void_p,)),
    "dw_bundle_add_file": (c_int, (c_void_p, c_char_p, c_void_p, c_void_p)),
    "dw_bundle_add_memory": (c_int, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "dw_stats_get": (None, (c_void_p, c_void_p)),
    "dw_kernel_get": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_kernel_variant": (None, (c_void_p, c_void_p)),
    "dw_workspace_size": (c_size_t, (c_void_p,)),
    "dw_prepare": (c_int, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "dw_freeze": (c_int, (c_void_p, c_void_p)),
    "dw_miss_list": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_explain": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_tune": (c_int, (c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)),
    "dw_variant_tuned": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_plan_digest": (c_int, (c_void_p, c_void_p, c_void_p)),
    "dw_args_check": (c_int, (c_void_p, c_void_p, c_void_p)),
    "dw_launch": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_pack_mask": (c_int, (c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p)),
    "dw_report_check": (c_int, (c_void_p, c_void_p)),
    "dw_companions_build": (c_int, (c_void_p, c_int, c_void_p, c_void_p)),
    "dw_companions_get": (c_int, (c_void_p, c_int, c_void_p, c_void_p)),
    "dw_merge_states": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_kv_compact": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_accept_check": (c_int, (c_void_p, c_int, c_int, c_int64, c_void_p, c_int, c_void_p)),
    "dw_tree_check": (c_int, (c_void_p, c_int, c_void_p)),
    "dw_tree_depths": (c_int, (c_void_p, c_int, c_void_p, c_void_p)),
    "dw_tree_positions": (c_int, (c_void_p, c_int, c_int32, c_void_p, c_void_p)),
    "dw_tree_mask": (c_int, (c_void_p, c_int, c_void_p, c_int64, c_void_p)),
    "dw_tree_walk": (c_int,
        (c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_int, c_void_p, c_void_p, c_void_p)),
    "dw_tree_from_paths": (c_int, (c_void_p, c_int, c_int, c_int, c_void_p, c_void_p)),
    "dw_tree_from_sets": (c_int, (c_void_p, c_int, c_int, c_void_p, c_void_p)),
    "dw_tree_expand": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_tree_accept": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_move_plan": (c_int, (c_void_p, c_int, c_int, c_void_p, c_void_p)),
    "dw_move_list_free": (None, (c_void_p,)),
    "dw_kv_move": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_pool_check": (c_int, (c_void_p, c_void_p)),
    "dw_defrag_plan": (c_int, (c_void_p, c_void_p, c_void_p)),
    "dw_defrag_apply": (c_int, (c_void_p, c_void_p, c_void_p, c_void_p)),
    "dw_defrag_free": (None, (c_void_p,)),
}
