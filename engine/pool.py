"""The block pool: the life of every physical block, counted and recorded.

    FREE -> WRITING -> COMMITTED -> PUBLISHED -> CACHED -> (evicted) FREE
                 \\__________\\___________\\______-> QUARANTINED -> FREE

Who may be in which state, and what `ref = entries + leases` is there:

    state        entries   leases   on free list   in prefix index   fill
    FREE         0         0        yes            no                0
    WRITING      >= 1      any      no             no                0..B   slots issued
    COMMITTED    >= 1      any      no             no                1..B   slots that exist
    PUBLISHED    >= 1      any      no             yes               B
    CACHED       0         0        no             yes               B      evictable, oldest first
    QUARANTINED  0         0        no             no                any    an open step still uses it
    IN_TRANSIT   0         >= 1     no             any               any    held by leases alone

The pool does no locking and knows no tables: `BlockManager` calls it inside its one critical section. Every
transition is one event; nothing here changes without one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from kvscope.engine.prefix import Extras, PrefixIndex
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.traces.schema import Kind, Reason, pack_range
from kvscope.traces.sink import EventSink

MAX_BLOCKS = 1 << 24
MAX_BLOCK_SIZE = 1024


class BlockState(IntEnum):
    """Where a block is in its life (DESIGN: the life of a block)."""

    FREE = 0
    WRITING = 1
    COMMITTED = 2
    PUBLISHED = 3
    CACHED = 4
    QUARANTINED = 5
    IN_TRANSIT = 6


class BlockPool:
    """`num_blocks` blocks of `block_size` slots: handed out, shared by count, given back, evicted."""

    def __init__(
        self, num_blocks: int, block_size: int, *, sink: EventSink | None = None, index: PrefixIndex | None = None
    ) -> None:
        if not 1 <= num_blocks <= MAX_BLOCKS:
            raise UsageError(f"num_blocks is {num_blocks}: must be 1..{MAX_BLOCKS}")
        if not 1 <= block_size <= MAX_BLOCK_SIZE:
            raise UsageError(f"block_size is {block_size}: must be 1..{MAX_BLOCK_SIZE} slots")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.index = index if index is not None else PrefixIndex(block_size)
        self.sink = sink
        self.state = np.zeros(num_blocks, dtype=np.uint8)
        self.gen = np.zeros(num_blocks, dtype=np.int32)
        self.entries = np.zeros(num_blocks, dtype=np.int32)
        self.leases = np.zeros(num_blocks, dtype=np.int32)
        self.leased_slots = np.zeros(num_blocks, dtype=np.int32)  # leading slots that some lease covers
        self.fill = np.zeros(num_blocks, dtype=np.int32)
        self.last_use_step = np.full(num_blocks, -1, dtype=np.int64)
        self.completed_step = -1
        self._free: deque[int] = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # evictable now, least recently released first
        self._fenced: dict[int, None] = {}  # cached, but an open step reads it: not evictable yet
        self._quarantined: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Cached blocks that could be given up now."""
        return len(self._cached)

    @property
    def num_cached(self) -> int:
        """Unheld blocks that keep their content, those an open step still reads included."""
        return len(self._cached) + len(self._fenced)

    @property
    def num_quarantined(self) -> int:
        """Unheld blocks that wait for an open step."""
        return len(self._quarantined)

    @property
    def num_available(self) -> int:
        """Blocks an allocation could take now."""
        return len(self._free) + len(self._cached)

    def ref(self, block: int) -> int:
        """Table entries plus leases."""
        return int(self.entries[block] + self.leases[block])

    def free_list(self) -> list[int]:
        """Blocks on the free list, next one first."""
        return list(self._free)

    def is_evictable(self, block: int) -> bool:
        """Whether the block is cached and could be given up now."""
        return block in self._cached

    # -- taking and giving back ---------------------------------------------------------------------------------

    def take(self, count: int, *, seq_id: int, lblock: int, reason: Reason) -> list[int]:
        """Hand `count` blocks to one sequence as its logical blocks `lblock...`, evicting cached ones if needed.

        Raises:
            OutOfBlocks: fewer are available; nothing was changed.
        """
        if count > self.num_available:
            raise OutOfBlocks(count, self.num_available, self.shortage(count))
        while len(self._free) < count:
            self._evict()
        blocks = [self._free.popleft() for _ in range(count)]
        ids = np.asarray(blocks, dtype=np.int64)
        self.state[ids] = BlockState.WRITING
        self.gen[ids] += 1
        self.entries[ids] = 1
        self.fill[ids] = 0
        if self.sink is not None and count:
            lblocks = np.arange(lblock, lblock + count)
            self.sink.emit_many(
                Kind.ALLOC, reason, block=ids, gen=self.gen[ids], ref_before=0, ref_after=1, fill=0, seq_id=seq_id,
                lblock=lblocks,
            )  # fmt: skip
        return blocks

    def retain(
        self, block: int, kind: Kind, *, seq_id: int, lblock: int, reason: Reason, details: Sequence[int] = ()
    ) -> None:
        """One more table entry: `kind` is SHARE (fork) or HIT (prefix cache, `details` say of which prefix)."""
        if self.state[block] == BlockState.CACHED:
            self._cached.pop(block, None)
            self._fenced.pop(block, None)
            self.state[block] = BlockState.PUBLISHED
        elif self.state[block] == BlockState.IN_TRANSIT:
            self.state[block] = BlockState.PUBLISHED if self.index.holds(block) else BlockState.COMMITTED
        elif self.entries[block] == 0:
            raise FaultyCall(f"block {self.name(block)} is {self.state_name(block)}: only a live block can be shared")
        before = self.ref(block)
        self.entries[block] += 1
        if self.sink is not None:
            seq = self.sink.emit(
                kind, reason, block, int(self.gen[block]), before, before + 1, int(self.fill[block]), seq_id, lblock
            )
            if details:
                self.sink.detail(seq, details)

    def release(self, block: int, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """One table entry gone; the last holder's release frees, quarantines or caches the block."""
        before = self.ref(block)
        if self.sink is not None:
            self.sink.emit(
                Kind.RELEASE, reason, block, int(self.gen[block]), before, before - 1, int(self.fill[block]), seq_id,
                lblock,
            )  # fmt: skip
        if self.entries[block] < 1:
            raise FaultyCall(
                f"release of block {self.name(block)} by sequence {seq_id}: no table entry is left "
                f"(state {self.state_name(block)}, ref {before}); it was released twice"
            )
        self.entries[block] -= 1
        if self.entries[block] == 0:
            self._unheld(block, reason)

    def _unheld(self, block: int, reason: Reason) -> None:
        """The last table entry is gone: decide what becomes of the block."""
        if self.leases[block] > 0:
            self.state[block] = BlockState.IN_TRANSIT
            return
        fenced = self.last_use_step[block] > self.completed_step
        if self.index.holds(block):
            self.state[block] = BlockState.CACHED
            (self._fenced if fenced else self._cached)[block] = None
            return
        if fenced:
            self.state[block] = BlockState.QUARANTINED
            self._quarantined[block] = None
            self._record(Kind.QUARANTINE, block, reason)
            return
        self._to_free_list(block)
        self._record(Kind.FREE, block, reason)

    def _to_free_list(self, block: int) -> None:
        self.state[block] = BlockState.FREE
        self.fill[block] = 0
        self._free.append(block)

    def _evict(self) -> None:
        """Give up the cached block that was released longest ago.

        A sequence releases its blocks last to first, so along one prefix the leaf is always older here than its
        parent: eviction never cuts a chain in its middle.
        """
        block, _ = self._cached.popitem(last=False)
        self.index.remove(block)
        self._record(Kind.EVICT, block, Reason.CAPACITY)
        self._to_free_list(block)
        self._record(Kind.FREE, block, Reason.CAPACITY)

    # -- leases -------------------------------------------------------------------------------------------------

    def lease(self, block: int, lease_id: int, slot_lo: int, slot_hi: int) -> None:
        """Hold slots [slot_lo, slot_hi) for a copy or transfer; forbids free and reuse of the block."""
        before = self.ref(block)
        self.leases[block] += 1
        self.leased_slots[block] = max(int(self.leased_slots[block]), slot_hi)
        if self.sink is not None:
            seq = self.sink.emit(
                Kind.LEASE, Reason.COPY_ON_WRITE, block, int(self.gen[block]), before, before + 1,
                int(self.fill[block]), -1, -1, lease_id,
            )  # fmt: skip
            self.sink.detail(seq, (slot_lo, slot_hi))

    def unlease(self, block: int, lease_id: int) -> None:
        """End a lease; an otherwise unheld block goes where its last release would have sent it."""
        before = self.ref(block)
        if self.sink is not None:
            self.sink.emit(
                Kind.UNLEASE, Reason.COPY_ON_WRITE, block, int(self.gen[block]), before, before - 1,
                int(self.fill[block]), -1, -1, lease_id,
            )  # fmt: skip
        if self.leases[block] < 1:
            raise FaultyCall(f"lease {lease_id} on block {self.name(block)} ended twice")
        self.leases[block] -= 1
        if self.leases[block] == 0:
            self.leased_slots[block] = 0
        if self.ref(block) == 0:
            self._unheld(block, Reason.COPY_ON_WRITE)

    # -- content ------------------------------------------------------------------------------------------------

    def write(self, block: int, slot_lo: int, slot_hi: int, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """Record that slots [slot_lo, slot_hi) are about to be written by this step."""
        self.fill[block] = max(int(self.fill[block]), slot_hi)
        if self.state[block] == BlockState.COMMITTED:
            self.state[block] = BlockState.WRITING
        if self.sink is not None:
            ref = self.ref(block)
            self.sink.emit(
                Kind.WRITE, reason, block, int(self.gen[block]), ref, ref, int(self.fill[block]), seq_id, lblock,
                pack_range(slot_lo, slot_hi),
            )  # fmt: skip

    def commit(self, block: int, gen: int, *, seq_id: int, lblock: int) -> bool:
        """The step that wrote the block has completed: its bytes exist. False if that life is over."""
        if self.gen[block] != gen or self.state[block] not in (BlockState.WRITING, BlockState.COMMITTED):
            return False
        self.state[block] = BlockState.COMMITTED
        if self.sink is not None:
            ref = self.ref(block)
            self.sink.emit(Kind.COMMIT, 0, block, gen, ref, ref, int(self.fill[block]), seq_id, lblock)
        return True

    def publish(
        self, block: int, digest: bytes, parent: bytes, tokens: list[int], extras: Extras, *, seq_id: int, lblock: int
    ) -> bool:
        """Enter a full, committed block in the prefix index; False if that prefix is served already."""
        if self.state[block] != BlockState.COMMITTED or not self.index.publish(block, digest, parent, tokens):
            return False
        self.state[block] = BlockState.PUBLISHED
        if self.sink is not None:
            ref = self.ref(block)
            gen = int(self.gen[block])
            seq = self.sink.emit(Kind.PUBLISH, 0, block, gen, ref, ref, int(self.fill[block]), seq_id, lblock)
            self.sink.detail(seq, self.index.words(parent, tokens, digest, extras))
        return True

    # -- fences -------------------------------------------------------------------------------------------------

    def settle(self, completed_step: int) -> None:
        """Steps up to `completed_step` are done: what only they still used is free, or evictable, again."""
        self.completed_step = completed_step
        for block in [b for b in self._quarantined if self.last_use_step[b] <= completed_step]:
            del self._quarantined[block]
            self._to_free_list(block)
            self._record(Kind.SETTLE, block, Reason.NONE)
        for block in [b for b in self._fenced if self.last_use_step[b] <= completed_step]:
            del self._fenced[block]
            self._cached[block] = None

    # -- words --------------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """The pool's own counters; they add up to `num_blocks`."""
        held = self.entries > 0
        shared = int(np.count_nonzero(self.entries > 1))
        return {
            "free": self.num_free,
            "private": int(np.count_nonzero(held)) - shared,
            "shared": shared,
            "cached": self.num_cached,
            "quarantined": self.num_quarantined,
            "in_transit": int(np.count_nonzero(~held & (self.leases > 0))),
        }

    def name(self, block: int) -> str:
        """`b37#12`: block 37 in its twelfth life."""
        return f"b{block}#{int(self.gen[block])}"

    def state_name(self, block: int) -> str:
        """The block's state as a lower-case word."""
        return BlockState(int(self.state[block])).name.lower()

    def shortage(self, needed: int) -> str:
        """One line for an allocation that cannot be served."""
        return (
            f"pool exhausted: need {needed} blocks, {self.num_free} free of {self.num_blocks} "
            f"({self.num_evictable} cached are evictable); raise num_blocks or lower the load"
        )

    def _record(self, kind: Kind, block: int, reason: Reason) -> None:
        if self.sink is not None:
            self.sink.emit(kind, reason, block, int(self.gen[block]), 0, 0, int(self.fill[block]))
