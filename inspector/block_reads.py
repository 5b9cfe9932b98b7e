"""Which steps read foreign KV in one block: what `explain` compares, of the events that have to do with that block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvscope.inspector.reads import Reader
from kvscope.inspector.source import IntArray, TraceLike, gap_rows, named_detail
from kvscope.inspector.worker_rows import WorkerRows
from kvscope.traces.schema import EventArray, Kind

_OF_BLOCK = (
    Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.WRITE, Kind.COW, Kind.SWAP_OUT, Kind.SWAP_IN, Kind.MISMATCH,
)  # fmt: skip
_OF_SEQUENCE = (
    Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.RELEASE,  # where it has another block by then, it reads there
    Kind.FORK, Kind.ADMIT, Kind.RESUME, Kind.FINISH, Kind.ABORT, Kind.PREEMPT, Kind.TRUNCATE, Kind.SCHED,
)  # fmt: skip
_OF_ALL = (Kind.STEP_BEGIN, Kind.STEP_END, Kind.GROW, Kind.SHRINK)
_MOST_SLOTS = 1 << 24  # of the pool or of a table: eight bytes each
_UPPER = np.int64(32)  # bits of the lower end of a packed range


def foreign_reads(trace: TraceLike, block: int, lives: tuple[int, int] | None = None) -> dict[int, IntArray] | None:
    """SCHED row -> the slots of the block in which the step read another write than its sequence counts on.

    Args:
        lives: the first and the last that are asked about; all by default.

    Returns:
        None of a pool, or of a table, that is too large to be laid out.
    """
    if _most(trace) > _MOST_SLOTS:
        return None
    reads = Reader(trace, WorkerRows(None), only=_about(trace, block, lives)).play()
    first = block * trace.block_size
    found = {row: slots[(slots >= first) & (slots < first + trace.block_size)] - first
             for row, slots in reads.wrong.items()}  # fmt: skip
    return {row: slots for row, slots in found.items() if len(slots)}


def _most(trace: TraceLike) -> int:
    """How many slots the last block and the last place in a table that events name lie behind."""
    events = trace.events
    placed = events["lblock"][np.isin(events["kind"], _OF_BLOCK)]
    return (max(int(events["block"].max(initial=-1)), int(placed.max(initial=-1))) + 1) * trace.block_size


def _about(trace: TraceLike, block: int, lives: tuple[int, int] | None) -> IntArray:
    """The rows that decide what lies in a block in these lives, and what its holders count on there."""
    events, kinds = trace.events, trace.events["kind"]
    beyond = (kinds == Kind.WRITE) & (events["aux"] >> _UPPER > trace.block_size)  # over the end of its block
    here = events["block"] == block
    if lives is not None:
        here &= (events["gen"] >= lives[0]) & (events["gen"] <= lives[1]) | (events["kind"] == Kind.MISMATCH)
    here |= beyond
    looked: set[int] = set()
    while more := [row for row in np.flatnonzero(here & _moves(kinds)).tolist() if row not in looked]:
        for row in more:
            looked.add(row)
            here |= _comes_from(trace, events, row)
    seq_ids = np.unique(events["seq_id"][here & np.isin(kinds, _OF_BLOCK)])
    about = np.isin(kinds, _OF_SEQUENCE) & np.isin(events["seq_id"], seq_ids)
    about |= here | np.isin(kinds, _OF_ALL)
    about[[row for row, _ in gap_rows(trace)]] = True
    return np.flatnonzero(about)


def _moves(kinds: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    moves: npt.NDArray[np.bool_] = (kinds == Kind.COW) | (kinds == Kind.SWAP_IN)
    return moves


def _comes_from(trace: TraceLike, events: EventArray, row: int) -> npt.NDArray[np.bool_]:
    """The rows that decide on the content that a copy or a transfer brings: of the life it comes from, up to there."""
    event = events[row]
    if event["kind"] == Kind.COW:
        told = named_detail(trace, int(trace.seqs[row]), Kind.COW)
        source, gen = told.get("source", int(event["aux"])), told.get("source_gen", -1)
    else:
        same = (events["kind"][:row] == Kind.SWAP_OUT) & (events["aux"][:row] == event["aux"])
        went = np.flatnonzero(same)
        source, gen = (int(events[name][went[-1]]) for name in ("block", "gen")) if len(went) else (-1, -1)
    its = (events["block"] == source) & (events["gen"] >= gen)
    its[row:] = False
    return its if source >= 0 else np.zeros_like(its)
