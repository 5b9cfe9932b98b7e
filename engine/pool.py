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

from collections.abc import Sequence

import numpy as np

from kvscope.engine.block_arrays import BlockArrays, BlockState
from kvscope.engine.free_list import IntArray
from kvscope.engine.orphans import leaf, withdraw_behind
from kvscope.engine.prefix import Extras, PrefixIndex
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.traces.schema import Kind, Reason, pack_range
from kvscope.traces.sink import EventSink

# Plain ints: an enum member costs more than the store it is for.
_FREE, _WRITING, _COMMITTED, _PUBLISHED, _CACHED, _QUARANTINED, _IN_TRANSIT = (int(state) for state in BlockState)
_ALLOC, _RELEASE, _FREED = int(Kind.ALLOC), int(Kind.RELEASE), int(Kind.FREE)
_BULK = 7  # rows from here on are cheaper as arrays


class BlockPool(BlockArrays):
    """`num_blocks` blocks of `block_size` slots: handed out, shared by count, given back, evicted."""

    def __init__(
        self, num_blocks: int, block_size: int, *, sink: EventSink | None = None, index: PrefixIndex | None = None
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.index = index if index is not None else PrefixIndex(block_size)
        self.sink = sink

    # -- taking and giving back ---------------------------------------------------------------------------------

    def take(self, count: int, *, seq_id: int, lblock: int, reason: Reason) -> IntArray:
        """Hand `count` blocks to one sequence as its logical blocks `lblock...`, evicting cached ones if needed.

        Raises:
            OutOfBlocks: fewer are available; nothing was changed.
        """
        if count > self.num_available:
            raise OutOfBlocks(count, self.num_available, self.shortage(count))
        while len(self._free) < count:
            self.evict()
        blocks = self._free.pop_many(count)
        self.state[blocks] = _WRITING
        gens = self.gen[blocks] + 1
        self.gen[blocks] = gens
        self.entries[blocks] = 1
        self.fill[blocks] = 0
        if self.sink is not None and count:
            self.sink.emit_many(
                Kind.ALLOC, reason, block=blocks, gen=gens, ref_before=0, ref_after=1, fill=0, seq_id=seq_id,
                lblock=np.arange(lblock, lblock + count),
            )  # fmt: skip
        return blocks

    def take_one(self, *, seq_id: int, lblock: int, reason: Reason) -> int:
        """`take` of a single block, at a third of its cost.

        Raises:
            OutOfBlocks: none is available; nothing was changed.
        """
        if self._free.count == 0:
            if not self._cached:
                raise OutOfBlocks(1, 0, self.shortage(1))
            self.evict()
        block = self._free.pop()
        self._state[block] = _WRITING
        gen = self._gen[block] + 1
        self._gen[block] = gen
        self._entries[block] = 1
        self._fill[block] = 0
        if self.sink is not None:
            self.sink.emit(_ALLOC, reason, block, gen, 0, 1, 0, seq_id, lblock)
        return block

    def retain(
        self, block: int, kind: Kind, *, seq_id: int, lblock: int, reason: Reason, details: Sequence[int] = ()
    ) -> None:
        """One more table entry: `kind` is SHARE (fork) or HIT (prefix cache, `details` say of which prefix)."""
        before = self.ref(block)
        if self.sink is not None:
            seq = self.sink.emit(
                kind, reason, block, self._gen[block], before, before + 1, self._fill[block], seq_id, lblock
            )
            if details:
                self.sink.detail(seq, details)
        state = self._state[block]
        if state == _CACHED:
            self._cached.pop(block, None)
            self._fenced.pop(block, None)
            self._state[block] = _PUBLISHED
        elif state == _IN_TRANSIT:
            self._state[block] = _PUBLISHED if self.index.holds(block) else _COMMITTED
        elif self._entries[block] == 0:
            raise FaultyCall(f"block {self.name(block)} is {self.state_name(block)}: only a live block can be shared")
        self._entries[block] += 1

    def release(self, block: int, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """One table entry gone; the last holder's release frees, quarantines or caches the block."""
        held = self._entries[block]
        before = held + self._leases[block]
        if self.sink is not None:
            self.sink.emit(
                _RELEASE, reason, block, self._gen[block], before, before - 1, self._fill[block], seq_id, lblock
            )
        if held < 1:
            raise FaultyCall(
                f"release of block {self.name(block)} by sequence {seq_id}: no table entry is left "
                f"(state {self.state_name(block)}, ref {before}); it was released twice"
            )
        self._entries[block] = held - 1
        if held == 1:
            self._unheld(block, reason)

    def retain_row(self, blocks: IntArray, kind: Kind, *, seq_id: int, reason: Reason, lblock: int = 0) -> None:
        """`retain` of a table row from logical block `lblock` on; the blocks are distinct and in a table already."""
        if len(blocks) < _BULK or not self.entries[blocks].all():
            for i, block in enumerate(blocks.tolist(), lblock):
                self.retain(block, kind, seq_id=seq_id, lblock=i, reason=reason)
            return
        entries = self.entries[blocks]
        self.entries[blocks] = entries + 1
        if self.sink is not None:
            before = entries + self.leases[blocks]
            self.sink.emit_many(
                kind, reason, block=blocks, gen=self.gen[blocks], ref_before=before, ref_after=before + 1,
                fill=self.fill[blocks], seq_id=seq_id, lblock=np.arange(lblock, lblock + len(blocks)),
            )  # fmt: skip

    def release_row(self, blocks: IntArray, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """`release` of the end of a table row, from logical block `lblock` on, last first; the blocks are distinct."""
        if len(blocks) < _BULK or not self.entries[blocks].all():
            for i in range(len(blocks) - 1, -1, -1):
                self.release(int(blocks[i]), seq_id=seq_id, lblock=lblock + i, reason=reason)
            return
        blocks = blocks[::-1]
        entries, leases = self.entries[blocks] - 1, self.leases[blocks]
        self.entries[blocks] = entries
        if self.sink is not None:
            after = entries + leases
            self.sink.emit_many(
                Kind.RELEASE, reason, block=blocks, gen=self.gen[blocks], ref_before=after + 1, ref_after=after,
                fill=self.fill[blocks], seq_id=seq_id, lblock=np.arange(lblock + len(blocks) - 1, lblock - 1, -1),
            )  # fmt: skip
        unheld = entries == 0
        plain = unheld & (leases == 0) & (self.last_use_step[blocks] <= self.completed_step)
        plain &= self.state[blocks] < _PUBLISHED
        self._free_many(blocks[plain], reason)
        for block in blocks[unheld & ~plain].tolist():
            self._unheld(block, reason)

    def _free_many(self, blocks: IntArray, reason: Reason) -> None:
        if self.sink is not None and len(blocks):
            self.sink.emit_many(
                Kind.FREE, reason, block=blocks, gen=self.gen[blocks], ref_before=0, ref_after=0, fill=0
            )
        self.state[blocks] = _FREE
        self.fill[blocks] = 0
        self._free.push_many(blocks)

    def _unheld(self, block: int, reason: Reason) -> None:
        """The last table entry is gone: decide what becomes of the block."""
        state = self._state[block]
        if self._leases[block] > 0:
            self._state[block] = _IN_TRANSIT
            return
        fenced = self._last_use[block] > self.completed_step
        if state >= _PUBLISHED and self.index.holds(block):  # in transit, only the index knows
            self._state[block] = _CACHED
            (self._fenced if fenced else self._cached)[block] = None
        elif fenced:
            self._state[block] = _QUARANTINED
            self._quarantined[block] = None
            self._record(Kind.QUARANTINE, block, reason)
        else:
            self._to_free_list(block)
            if self.sink is not None:
                self.sink.emit(_FREED, reason, block, self._gen[block], 0, 0, 0)

    def _to_free_list(self, block: int) -> None:
        self._state[block] = _FREE
        self._fill[block] = 0
        self._free.push(block)

    def evict(self, reason: Reason = Reason.CAPACITY) -> None:
        """Give up the cached block that was released longest ago.

        A sequence releases its blocks last to first, so along one prefix the leaf is always older here than its
        parent: eviction never cuts a chain in its middle. Windows and leases upset that order; then it is looked for.
        """
        block = next(iter(self._cached))
        if self.index.tracked:
            block = leaf(self, block)
            withdraw_behind(self, block, reason)
        self.give_up(block, reason)

    def give_up(self, block: int, reason: Reason) -> None:
        """Evict an unheld cached block: out of the index, and free, or in quarantine while an open step reads it."""
        self.index.remove(block)
        self._record(Kind.EVICT, block, reason)
        if block in self._fenced:
            del self._fenced[block]
            self._state[block] = _QUARANTINED
            self._quarantined[block] = None
            self._record(Kind.QUARANTINE, block, reason)
            return
        del self._cached[block]
        self._to_free_list(block)
        self._record(Kind.FREE, block, reason)

    def unpublish(self, block: int, reason: Reason) -> None:
        """Take a held block out of the index: its content stays its holders', but is not found any more."""
        self.index.remove(block)
        if self._state[block] == _PUBLISHED:
            self._state[block] = _COMMITTED
        if self.sink is not None:
            ref = self.ref(block)
            self.sink.emit(Kind.UNPUBLISH, reason, block, self._gen[block], ref, ref, self._fill[block])

    def move_entry(self, source: int, target: int, extras: Extras, *, seq_id: int, lblock: int) -> None:
        """`target` is a copy of the published `source` and serves its prefix from now on."""
        entry = self.index.entry(source)
        self.unpublish(source, Reason.RESIZED)
        self.index.publish(target, entry.digest, entry.parent, entry.tokens)
        if self.sink is not None:
            ref = self.ref(target)
            seq = self.sink.emit(
                Kind.PUBLISH, Reason.RESIZED, target, self._gen[target], ref, ref, self._fill[target], seq_id, lblock
            )
            self.sink.detail(seq, self.index.words(entry.parent, entry.tokens, entry.digest, extras))

    # -- leases -------------------------------------------------------------------------------------------------

    def lease(
        self, block: int, lease_id: int, slot_lo: int, slot_hi: int, *, reason: Reason = Reason.COPY_ON_WRITE,
        seq_id: int = -1, deadline: int | None = None,
    ) -> None:  # fmt: skip
        """Hold slots [slot_lo, slot_hi) of a held or cached block; forbids its free, eviction and reuse."""
        before = self.ref(block)
        self._leases[block] += 1
        self.leased_slots[block] = max(int(self.leased_slots[block]), slot_hi)
        if self._state[block] == _CACHED:
            self._cached.pop(block, None)
            self._fenced.pop(block, None)
            self._state[block] = _IN_TRANSIT
        if self.sink is not None:
            seq = self.sink.emit(
                Kind.LEASE, reason, block, self._gen[block], before, before + 1,
                self._fill[block], seq_id, -1, lease_id,
            )  # fmt: skip
            self.sink.detail(seq, (slot_lo, slot_hi, -1 if deadline is None else deadline))

    def unlease(self, block: int, lease_id: int, *, reason: Reason = Reason.COPY_ON_WRITE, seq_id: int = -1) -> None:
        """End a lease; an otherwise unheld block goes where its last release would have sent it."""
        before = self.ref(block)
        if self.sink is not None:
            self.sink.emit(
                Kind.UNLEASE, reason, block, self._gen[block], before, before - 1,
                self._fill[block], seq_id, -1, lease_id,
            )  # fmt: skip
        if self._leases[block] < 1:
            raise FaultyCall(f"lease {lease_id} on block {self.name(block)} ended twice")
        self._leases[block] -= 1
        if self._leases[block] == 0:
            self.leased_slots[block] = 0
        if self.ref(block) == 0:
            self._unheld(block, reason)

    # -- content ------------------------------------------------------------------------------------------------

    def write(self, block: int, slot_lo: int, slot_hi: int, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """Record that slots [slot_lo, slot_hi) are about to be written by this step."""
        self._fill[block] = max(self._fill[block], slot_hi)
        if self._state[block] == _COMMITTED:
            self._state[block] = _WRITING
        if self.sink is not None:
            ref = self.ref(block)
            self.sink.emit(
                Kind.WRITE, reason, block, self._gen[block], ref, ref, self._fill[block], seq_id, lblock,
                pack_range(slot_lo, slot_hi),
            )  # fmt: skip

    def commit(self, block: int, gen: int, *, seq_id: int, lblock: int) -> bool:
        """The step that wrote the block has completed: its bytes exist. False if that life is over."""
        if self._gen[block] != gen or self._state[block] not in (_WRITING, _COMMITTED):
            return False
        self._state[block] = _COMMITTED
        if self.sink is not None:
            ref = self.ref(block)
            self.sink.emit(Kind.COMMIT, 0, block, gen, ref, ref, self._fill[block], seq_id, lblock)
        return True

    def publish(
        self, block: int, digest: bytes, parent: bytes, tokens: list[int], extras: Extras, *, seq_id: int, lblock: int
    ) -> bool:
        """Enter a full, committed block in the prefix index; False if that prefix is served already."""
        if self._state[block] != _COMMITTED or not self.index.publish(block, digest, parent, tokens):
            return False
        self._state[block] = _PUBLISHED
        if self.sink is not None:
            ref = self.ref(block)
            gen = self._gen[block]
            seq = self.sink.emit(Kind.PUBLISH, 0, block, gen, ref, ref, self._fill[block], seq_id, lblock)
            self.sink.detail(seq, self.index.words(parent, tokens, digest, extras))
        return True

    # -- fences -------------------------------------------------------------------------------------------------

    def settle(self, completed_step: int) -> None:
        """Steps up to `completed_step` are done: what only they still used is free, or evictable, again."""
        self.completed_step = completed_step
        for block in [b for b in self._quarantined if self._last_use[b] <= completed_step]:
            del self._quarantined[block]
            self._to_free_list(block)
            self._record(Kind.SETTLE, block, Reason.NONE)
        for block in [b for b in self._fenced if self._last_use[b] <= completed_step]:
            del self._fenced[block]
            self._cached[block] = None

    def _record(self, kind: Kind, block: int, reason: Reason) -> None:
        if self.sink is not None:
            self.sink.emit(kind, reason, block, self._gen[block], 0, 0, self._fill[block])
