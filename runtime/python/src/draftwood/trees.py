"""Draft trees on the host. A tree is a list of parents: local ids, -1 for a root, -2 for a dead padding node; a parent comes
before its children. Lists may be any sequence of ints; results are array.array, which NumPy and torch take without a copy.
Functions raise BadArgument that names the node."""
from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from typing import Any, Sequence

from ._library import call
from .errors import bad_argument

Ints = Sequence[int]


def buffer(values: array[int]) -> Any:
    """Its address as an argument; NULL where there are no elements."""
    return ctypes.c_void_p(values.buffer_info()[0]) if len(values) else None


def ints(name: str, values: Any, code: str = "i") -> array[int]:
    try:
        return array(code, (int(value) for value in values))
    except (TypeError, OverflowError, ValueError) as error:
        raise bad_argument(name, str(error), "integers of 64 bits" if code in "qQ" else "integers of 32 bits") from None


def _zeros(count: int, code: str = "i") -> array[int]:
    return array(code, bytes(count * array(code).itemsize))


def tree_check(parents: Ints) -> None:
    """Raises BadArgument for a parent that is its own node, comes after it, is below -2, or is dead."""
    given = ints("parents", parents)
    call("dw_tree_check", buffer(given), len(given))


def tree_depths(parents: Ints) -> array[int]:
    """A depth for each node: 0 for a root, -1 for a dead one."""
    given = ints("parents", parents)
    depths = _zeros(len(given))
    call("dw_tree_depths", buffer(given), len(given), buffer(depths))
    return depths


def tree_positions(parents: Ints, prefix: int) -> array[int]:
    """prefix + depth for each node; of a dead one prefix."""
    given = ints("parents", parents)
    positions = _zeros(len(given))
    call("dw_tree_positions", buffer(given), len(given), prefix, buffer(positions))
    return positions


def tree_mask(parents: Ints) -> array[int]:
    """u32 words, ceil(nodes / 32) a row: bit j of row i says that node i sees node j. What Mask.BITS takes."""
    given = ints("parents", parents)
    bits = _zeros(len(given) * ((len(given) + 31) // 32), "I")
    call("dw_tree_mask", buffer(given), len(given), buffer(bits), 0)
    return bits


@dataclass(frozen=True)
class Accepted:
    """path: accepted nodes, root first; bonus: the target's token after the last, -1 without one."""

    path: tuple[int, ...]
    bonus: int


def tree_walk(parents: Ints, draft_tokens: Ints, target_tokens: Ints, root_token: int | None = None,
              columns: int = 1025) -> Accepted:
    """Acceptance as Companions.tree_accept does it, of one request."""
    given = ints("parents", parents)
    drafts, targets = ints("draft_tokens", draft_tokens, "q"), ints("target_tokens", target_tokens, "q")
    for name, tokens in (("draft_tokens", drafts), ("target_tokens", targets)):
        if len(tokens) != len(given):
            raise bad_argument(name, f"{len(tokens)} tokens", f"one for each of {len(given)} nodes")
    root = ctypes.c_int64(root_token) if root_token is not None else None
    path, count, bonus = _zeros(columns), ctypes.c_int(), ctypes.c_int64()
    call("dw_tree_walk", buffer(given), buffer(drafts), buffer(targets), len(given),
         ctypes.byref(root) if root is not None else None, buffer(path), columns, ctypes.byref(count), ctypes.byref(bonus))
    return Accepted(tuple(path[:count.value]), bonus.value)


def tree_from_paths(paths: Sequence[Ints], nodes: int) -> array[int]:
    """Parents of a tree that is given as paths of node ids from root to leaf; nodes on no path are dead."""
    columns = max((len(path) for path in paths), default=0) or 1
    flat = ints("paths", (node for path in paths for node in [*path, *[-1] * (columns - len(path))]))
    parents = _zeros(nodes)
    call("dw_tree_from_paths", buffer(flat), len(paths), columns, nodes, buffer(parents))
    return parents


def tree_from_sets(sets: Sequence[Ints]) -> array[int]:
    """Parents of a tree that is given as u64 words a node: bit p % 64 of word p / 64 says that it is on path p."""
    words = max((len(row) for row in sets), default=0) or 1
    flat = ints("sets", (word for row in sets for word in [*row, *[0] * (words - len(row))]), "Q")
    parents = _zeros(len(sets))
    call("dw_tree_from_sets", buffer(flat), len(sets), words, buffer(parents))
    return parents


def accept_check(accept_index: Sequence[Ints], width: int, rows: Ints | None = None) -> None:
    """Raises BadArgument where the lists [batch, columns] are not what Companions.kv_compact takes."""
    columns = len(accept_index[0]) if accept_index else 0
    if any(len(row) != columns for row in accept_index):
        raise bad_argument("accept_index", "rows of different lengths", "a list of equal rows")
    flat = ints("accept_index", (node for row in accept_index for node in row))
    counts = ints("rows", rows) if rows is not None else None
    if counts is not None and len(counts) != len(accept_index):
        raise bad_argument("rows", f"{len(counts)} entries", f"one for each of {len(accept_index)} requests")
    call("dw_accept_check", buffer(flat), len(accept_index), columns, 0, buffer(counts) if counts is not None else None, width)
