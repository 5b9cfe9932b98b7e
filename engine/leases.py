"""Leases: named temporary holders of blocks, for work that no table speaks of.

    COPY_ON_WRITE   the source of a block copy, until the device has run it
    LOOKUP          what a prompt found in the prefix cache, until the prompt is admitted
    TRANSFER        work on another stream or by another thread: a send, a checkpoint
    RESIZED         the source of a move out of the part of the pool that goes
    SWAPPED         blocks on their way to or from host memory

A leased block is neither freed, nor evicted, nor handed out; its leased slots are not written in place. A lease may
have a deadline, by the clock of the book (engine steps, unless another clock is given). Nothing happens by itself when
it passes: `expire` reclaims what is overdue, and says whose it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.pool import BlockPool
from kvscope.errors import FaultyCall, UsageError
from kvscope.traces.schema import Kind, Reason

_REMEMBERED = 256  # leases that ended, kept to name both ends of a faulty call

KIND_WORDS = {
    Reason.COPY_ON_WRITE: "copy", Reason.LOOKUP: "lookup", Reason.TRANSFER: "transfer", Reason.RESIZED: "move",
    Reason.SWAPPED: "swap",
}  # fmt: skip


class Lease(NamedTuple):
    """One lease: which lives of which blocks, which slots, whose, since when and until when."""

    lease_id: int
    kind: Reason
    blocks: tuple[int, ...]
    gens: tuple[int, ...]
    slot_lo: int
    slot_hi: int
    holder: str
    seq_id: int  # the sequence it is for, -1 = none
    since: int
    deadline: int | None  # the last moment at which it holds, None = until it is ended

    def __str__(self) -> str:
        who = self.holder or (f"sequence {self.seq_id}" if self.seq_id >= 0 else "nobody named")
        until = "" if self.deadline is None else f", deadline {self.deadline}"
        return f"lease {self.lease_id} ({KIND_WORDS[self.kind]}) of {who}, since {self.since}{until}"


class Holder(NamedTuple):
    """One named reference to a block: a table entry (`lease` is None) or a lease."""

    seq_id: int
    lblock: int
    lease: Lease | None = None

    def __str__(self) -> str:
        if self.lease is None:
            return f"sequence {self.seq_id} as its block {self.lblock}"
        return f"{self.lease}, slots [{self.lease.slot_lo}:{self.lease.slot_hi}]"


class LeaseBook:
    """All leases of one pool, open ones and the last that ended; its owner locks.

    Args:
        pool: whose blocks are leased.
        clock: what `since` and deadlines are counted in.
    """

    def __init__(self, pool: BlockPool, clock: Callable[[], int]) -> None:
        self._pool = pool
        self.clock = clock
        self._open: dict[int, Lease] = {}
        self.lookups: dict[int, int] = {}  # sequence -> its open lookup lease
        self._ended: deque[tuple[Lease, Reason, int]] = deque(maxlen=_REMEMBERED)
        self._next = 0

    def __len__(self) -> int:
        return len(self._open)

    def take(
        self, kind: Reason, blocks: Sequence[int], slot_lo: int, slot_hi: int, *, holder: str = "", seq_id: int = -1,
        deadline: int | None = None,
    ) -> Lease:  # fmt: skip
        """Hold slots [slot_lo, slot_hi) of every one of `blocks`, which must be held or cached.

        Raises:
            FaultyCall: a block is nobody's (and nothing was changed). UsageError: no such block, or no such slots.
        """
        pool = self._pool
        if not 0 <= slot_lo <= slot_hi <= pool.block_size:
            raise UsageError(f"a lease of slots [{slot_lo}:{slot_hi}]: a block has slots 0..{pool.block_size - 1}")
        if not blocks or len(set(blocks)) < len(blocks):
            raise UsageError(f"a lease needs distinct blocks, got {list(blocks)}")
        for block in blocks:
            if not 0 <= block < pool.num_blocks:
                raise UsageError(f"block {block} does not exist: the pool has blocks 0..{pool.num_blocks - 1}")
            if pool.state[block] in (BlockState.FREE, BlockState.QUARANTINED):
                raise FaultyCall(
                    f"block {pool.name(block)} is {pool.state_name(block)}: only a live block can be leased"
                )
        # A leased block does not age with the others of its prefix. (Swaps and lookups of held blocks take a prefix
        # as a whole, and let go of it from its end.)
        if kind == Reason.TRANSFER or any(pool.state[block] == BlockState.CACHED for block in blocks):
            pool.index.track()
        lease_id, self._next = self._next, self._next + 1
        gens = tuple(int(pool.gen[block]) for block in blocks)
        lease = Lease(
            lease_id, kind, tuple(blocks), gens, slot_lo, slot_hi, holder, seq_id, self.clock(), deadline
        )  # fmt: skip
        for block in blocks:
            pool.lease(block, lease_id, slot_lo, slot_hi, reason=kind, seq_id=seq_id, deadline=deadline)
        self._open[lease_id] = lease
        if kind == Reason.LOOKUP:
            self.lookups[seq_id] = lease_id
        return lease

    def take_copy(self, source: int, slots: int, seq_id: int) -> int:
        """`take` of one held block for the copy-on-write of a sequence; returns the lease's id."""
        if self._pool.state[source] == BlockState.PUBLISHED:
            self._pool.index.track()
        lease_id, self._next = self._next, self._next + 1
        self._open[lease_id] = Lease(
            lease_id, Reason.COPY_ON_WRITE, (source,), (int(self._pool.gen[source]),), 0, slots, "", seq_id,
            self.clock(), None,
        )  # fmt: skip
        self._pool.lease(source, lease_id, 0, slots, reason=Reason.COPY_ON_WRITE, seq_id=seq_id)
        return lease_id

    def end(self, lease_id: int, reason: Reason | None = None) -> Lease:
        """The work is done: each block goes where its last release would have sent it, last block first.

        Args:
            reason: why it ends, its kind if None.

        Raises:
            FaultyCall: it ended before; recorded, and both ends are named.
        """
        lease = self._open.pop(lease_id, None)
        if lease is None:
            raise self._ended_twice(lease_id)
        if lease.kind == Reason.LOOKUP:
            del self.lookups[lease.seq_id]
        why = lease.kind if reason is None else reason
        for block in reversed(lease.blocks):
            self._pool.unlease(block, lease_id, reason=why, seq_id=lease.seq_id)
        self._ended.append((lease, why, self.clock()))
        return lease

    def end_lookup(self, seq_id: int) -> None:
        """End the lookup of a sequence, if it has one."""
        if seq_id in self.lookups:
            self.end(self.lookups[seq_id])

    def overdue(self, now: int) -> list[Lease]:
        """Open leases whose deadline has passed, oldest first."""
        return [lease for lease in self._open.values() if lease.deadline is not None and now > lease.deadline]

    def open(self) -> list[Lease]:
        """Leases that hold now, oldest first."""
        return list(self._open.values())

    def of(self, block: int) -> list[Lease]:
        """Leases over one block, oldest first."""
        return [lease for lease in self._open.values() if block in lease.blocks]

    def lives_of(self, lease_id: int) -> list[tuple[int, int]]:
        """(block, its life) of an open lease, last first, as they are let go; none if there is no such lease."""
        lease = self._open.get(lease_id)
        return [] if lease is None else list(zip(reversed(lease.blocks), reversed(lease.gens), strict=True))

    def kind_of(self, lease_id: int) -> Reason | None:
        """What an open lease is for; None if there is no such lease."""
        lease = self._open.get(lease_id)
        return None if lease is None else lease.kind

    def check_open(self, lease_ids: Sequence[int]) -> None:
        """Raises FaultyCall unless all of these are open and named once; what is wrong is recorded."""
        for i, lease_id in enumerate(lease_ids):
            if lease_id not in self._open:
                raise self._ended_twice(lease_id)
            if lease_id in lease_ids[:i]:
                raise FaultyCall(f"{self._open[lease_id]} is ended twice in one call")

    def state(self) -> tuple[object, ...]:
        """Everything it knows, for comparing before and after."""
        return tuple(self._open.values()), tuple(self._ended), self._next

    def _ended_twice(self, lease_id: int) -> FaultyCall:
        for lease, why, when in self._ended:
            if lease.lease_id == lease_id:
                self._record_again(lease)
                how = "expired" if why == Reason.EXPIRED else "was ended"
                return FaultyCall(f"{lease} {how} at {when} already; it is ended again at {self.clock()}")
        past = lease_id < self._next
        return FaultyCall(f"lease {lease_id} " + ("ended long ago" if past else "was never taken"))

    def _record_again(self, lease: Lease) -> None:
        """A faulty call is recorded before it is refused."""
        pool, sink = self._pool, self._pool.sink
        if sink is not None:
            for block, gen in zip(lease.blocks, lease.gens, strict=True):
                ref = pool.ref(block) if block < pool.num_blocks else 0
                sink.emit(Kind.UNLEASE, Reason.BAD_CALL, block, gen, ref, ref - 1, -1, lease.seq_id, -1, lease.lease_id)
