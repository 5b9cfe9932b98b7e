"""What the engine says of itself between two steps, in DESIGN's measures: read in its thread, shown by everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.engine.block_arrays import BlockState as InPool
from kvscope.inspector.state import STATE_NAMES, BlockState
from kvscope.inspector.state import classify as states_of

if TYPE_CHECKING:
    from kvscope.engine.block_arrays import BlockArrays
    from kvscope.engine.engine import Engine
    from kvscope.engine.sequence import Request, Sequence


@dataclass(frozen=True, slots=True)
class Gauges:
    """The pool and the queue at one moment. A ratio with nothing under it is None."""

    next_seq: int  # the event that comes next; -1 where nothing is recorded
    step: int  # the last step begun
    blocks: dict[str, int]
    num_blocks: int
    block_size: int
    block_bytes: int
    entries: int  # of all tables
    distinct: int  # blocks in tables
    lost: int  # blocks that are counted as held by tables, and are in none
    held: int  # blocks in use: in tables, under leases alone, or lost
    filled: int  # slots of blocks in tables or under leases
    running: int
    waiting: int
    preemptions: int

    @property
    def saved_blocks(self) -> int:
        """Table entries beyond one per block."""
        return self.entries - self.distinct

    @property
    def tail_waste(self) -> float | None:
        """Unfilled slots over slots, of blocks in tables or under leases."""
        slots = (self.held - self.lost) * self.block_size
        return 1 - self.filled / slots if slots else None

    @property
    def utilization(self) -> float | None:
        """Filled slots over slots, of blocks in use."""
        slots = self.held * self.block_size
        return self.filled / slots if slots else None

    @property
    def pool_utilization(self) -> float:
        """Filled slots over all slots of the pool."""
        return self.filled / (self.num_blocks * self.block_size)

    @property
    def sharing_factor(self) -> float | None:
        """Table entries per distinct block."""
        return self.entries / self.distinct if self.distinct else None

    def to_json(self) -> dict[str, Any]:
        """By the names that the measures have everywhere."""
        return {
            "seq": self.next_seq - 1 if self.next_seq >= 0 else None, "step": self.step, "blocks": self.blocks,
            "num_blocks": self.num_blocks, "block_size": self.block_size, "block_bytes": self.block_bytes,
            "table_entries": self.entries, "saved_blocks": self.saved_blocks,
            "saved_bytes": self.saved_blocks * self.block_bytes, "lost_blocks": self.lost, "filled_slots": self.filled,
            "tail_waste": self.tail_waste, "sharing_factor": self.sharing_factor, "utilization": self.utilization,
            "pool_utilization": self.pool_utilization, "running": self.running, "waiting": self.waiting,
            "preemptions": self.preemptions,
        }  # fmt: skip


def gauges(engine: Engine) -> Gauges:
    """Read them; in the engine's thread."""
    pool, scheduler = engine.manager.pool, engine.scheduler
    size = pool.num_blocks
    entries, leases = pool.entries[:size], pool.leases[:size]
    held = (entries > 0) | (leases > 0)
    in_tables = _in_tables(engine, entries)
    reached = held if in_tables is entries else (in_tables > 0) | (leases > 0)
    blocks = pool.counts() | {"lost": 0}
    if in_tables is not entries:
        states = np.bincount(_states(pool, in_tables, entries), minlength=len(STATE_NAMES))
        blocks = dict(zip(STATE_NAMES, states.tolist(), strict=True))
    return Gauges(
        next_seq=-1 if engine.sink is None else engine.sink.next_seq, step=pool.newest_use, blocks=blocks,
        num_blocks=size, block_size=pool.block_size, block_bytes=pool.block_size * engine.cache.bytes_per_token,
        entries=int(in_tables.sum()), distinct=int(np.count_nonzero(in_tables)), lost=blocks["lost"],
        held=int(np.count_nonzero(held)), filled=int(pool.fill[:size][reached].sum()),
        running=len(scheduler.running), waiting=len(scheduler.waiting),
        preemptions=scheduler.preemptions,
    )  # fmt: skip


def _in_tables(engine: Engine, counted: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """How many entries of all tables name each block; `counted` itself where the pool counts as many as there are.

    The tables are asked one by one only where it counts another number.
    """
    manager = engine.manager
    if sum(manager.held().values()) == int(counted.sum()):
        return counted
    blocks = np.asarray([b for s in manager.sequences() for b in manager.table(s) if 0 <= b < len(counted)], np.int64)
    return np.bincount(blocks, minlength=len(counted)).astype(np.int32)


def _states(pool: BlockArrays, in_tables: npt.NDArray[Any], counted: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """The one state of each block."""
    leases = pool.leases[: pool.num_blocks]
    return states_of(in_tables, leases, _is(pool, "CACHED"), _is(pool, "QUARANTINED"), counted - in_tables)


class PoolNow(NamedTuple):
    """Every block of the pool, one element per block, as `inspector.state.PoolState` has them."""

    next_seq: int
    columns: dict[str, npt.NDArray[Any]]


def pool_now(engine: Engine) -> PoolNow:
    """A copy of the pool's arrays; in the engine's thread."""
    pool = engine.manager.pool
    size = pool.num_blocks
    entries, leases = pool.entries[:size].astype(np.int32), pool.leases[:size].copy()
    in_tables = _in_tables(engine, entries)
    state = _states(pool, in_tables, entries)
    columns: dict[str, npt.NDArray[Any]] = {
        "state": state, "gen": pool.gen[:size].copy(), "entries": entries, "leases": leases,
        "lost": np.maximum(entries - in_tables, 0).astype(np.int32),
        "fill": np.where(state == BlockState.FREE, 0, pool.fill[:size]).astype(np.int32),
        "published": _is(pool, "PUBLISHED") | _is(pool, "CACHED"), "writing": _is(pool, "WRITING"),
    }  # fmt: skip
    return PoolNow(-1 if engine.sink is None else engine.sink.next_seq, columns)


def _is(pool: BlockArrays, name: str) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pool.state[: pool.num_blocks] == int(InPool[name])
    return found


def state_now(engine: Engine) -> dict[str, Any]:
    """Counts of the pool, tables, and the requests that are queued or running; in the engine's thread."""
    manager = engine.manager
    tables = {str(seq_id): manager.table(seq_id) for seq_id in manager.sequences()}
    requests = [_request(request, engine.sequences(request.request_id)) for request in engine.live()]
    return {**gauges(engine).to_json(), "sequences": tables, "requests": requests}


def _request(request: Request, sequences: tuple[Sequence, ...]) -> dict[str, Any]:
    return {
        "request": request.request_id, "name": request.name, "prompt_tokens": len(request.prompt),
        "max_tokens": request.params.max_tokens, "samples": request.params.n,
        "sequences": [
            {"seq_id": s.seq_id, "sample": s.sample, "status": _status(s), "output_tokens": len(s.output),
             "computed": s.computed, "cached_tokens": s.cached_tokens, "preemptions": s.preemptions}
            for s in sequences
        ],
    }  # fmt: skip


def _status(sequence: Sequence) -> str:
    """queued, prefill, decode, or preempted: waiting once more, its blocks given up or swapped out."""
    if sequence.status.value == "waiting":
        return "preempted" if sequence.preemptions else "queued"
    return "prefill" if sequence.prefilling else "decode"
