"""Moves of slots and pages, and the plan that makes a pool's requests contiguous; on the host."""
from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from typing import Sequence

from . import _abi
from ._library import call, lib
from .errors import bad_argument
from .trees import Ints, buffer, ints


@dataclass(frozen=True)
class MoveList:
    """Moves in the form that Companions.kv_move takes: data goes to the device as it is, 16-byte aligned. teams 0: nothing
    to move."""

    data: bytes
    teams: int
    moves: int


def _take_list(struct: _abi.MoveList) -> MoveList:
    return MoveList(ctypes.string_at(struct.data, struct.bytes) if struct.data else bytes(16), struct.teams, struct.moves)


def move_plan(moves: Sequence[tuple[int, int]], places: int) -> MoveList:
    """Orders moves (from, to) so that they act as if all at once. places: the pool's slots or pages. Raises BadArgument for
    a place outside the pool, or one that is source or destination twice."""
    structs = (_abi.Move * max(len(moves), 1))()
    for struct, (source, target) in zip(structs, moves):
        setattr(struct, "from", source)
        struct.to = target
    planned = _abi.MoveList()
    call("dw_move_plan", structs, len(moves), places, ctypes.byref(planned))
    try:
        return _take_list(planned)
    finally:
        lib.dw_move_list_free(ctypes.byref(planned))


class Pool:
    """A pool of pages and who uses it.

    pages   of the pool; page: tokens a page
    tables  a list of pages for each request
    tokens  in use, of each request: ceil(tokens / page) entries of its list
    pinned  pages that stay and are not written
    """

    def __init__(self, pages: int, tables: Sequence[Ints], tokens: Ints, *, page: int = 1, pinned: Ints = ()) -> None:
        if len(tokens) != len(tables):
            raise bad_argument("tokens", f"{len(tokens)} entries", f"one for each of {len(tables)} requests")
        starts = [0]
        for b, table in enumerate(tables):
            if -(-tokens[b] // max(page, 1)) > len(table):
                raise bad_argument(f"tables[{b}]", f"{len(table)} pages", f"enough for {tokens[b]} tokens of {page} a page")
            starts.append(starts[-1] + len(table))
        self._table = ints("tables", (entry for table in tables for entry in table))
        self._indptr, self._tokens = ints("indptr", starts), ints("tokens", tokens)
        marks = bytearray(max(pages, 0))
        for number in pinned:
            if not 0 <= number < pages:
                raise bad_argument("pinned", str(number), f"0 to {pages - 1}")
            marks[number] = 1
        self._pinned = array("B", marks)
        self._struct = _abi.Pool(size=ctypes.sizeof(_abi.Pool), pages=pages, page=page, requests=len(tables))
        self._struct.table, self._struct.indptr = self._table.buffer_info()[0], self._indptr.buffer_info()[0]
        self._struct.tokens = self._tokens.buffer_info()[0]
        self._struct.pinned = self._pinned.buffer_info()[0] if pinned else None

    def check(self) -> None:
        """Raises BadArgument for pages outside the pool, named twice, or shared in a way that cannot be."""
        call("dw_pool_check", ctypes.byref(self._struct))

    def defrag(self) -> Defrag:
        """The fewest moves after which each request's own pages are one ascending run. Raises as check does, and where pinned
        pages leave no room."""
        planned = _abi.Defrag()
        call("dw_defrag_plan", ctypes.byref(self._struct), ctypes.byref(planned))
        try:
            moves = (_abi.Move * planned.count).from_address(planned.moves) if planned.count else []
            table = array("i", self._table)
            call("dw_defrag_apply", ctypes.byref(planned), ctypes.byref(self._struct), buffer(table))
            return Defrag(moves=tuple((getattr(move, "from"), move.to) for move in moves), least=bool(planned.least),
                          list=_take_list(planned.list), tables=tuple(self._rows(table)))
        finally:
            lib.dw_defrag_free(ctypes.byref(planned))

    def _rows(self, table: array[int]) -> list[tuple[int, ...]]:
        return [tuple(table[begin:end]) for begin, end in zip(self._indptr, self._indptr[1:])]


@dataclass(frozen=True)
class Defrag:
    """moves: pages, as if all at once; least: no plan of this form has fewer; list: the same for Companions.kv_move;
    tables: each request's pages afterwards."""

    moves: tuple[tuple[int, int], ...]
    least: bool
    list: MoveList
    tables: tuple[tuple[int, ...], ...]
