"""What becomes of one block: kept or evicted when nobody holds it, leased, written, committed, published, settled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvscope.engine.block_arrays import FILL_MASK, STATE, BlockArrays, BlockState
from kvscope.engine.free_list import IntArray
from kvscope.engine.orphans import leaf, withdraw_behind
from kvscope.engine.prefix import Extras, PrefixIndex
from kvscope.errors import FaultyCall
from kvscope.traces.schema import Kind, Reason, pack_range
from kvscope.traces.sink import EventSink, Ints

# Plain ints: an enum member costs more than the store it is for.
FREE, WRITING, COMMITTED, PUBLISHED, CACHED, QUARANTINED, IN_TRANSIT = (int(state) for state in BlockState)
FREED = int(Kind.FREE)
_BULK = 7  # rows from here on are cheaper as arrays

Published = tuple[int, int, int, tuple[int, ...]]  # block, sequence, logical block, what PrefixIndex.words says


class BlockLife(BlockArrays):
    """The transitions of a single block behind its allocation; every one is one event."""

    __slots__ = ("index", "sink")

    def __init__(
        self, num_blocks: int, block_size: int, *, sink: EventSink | None = None, index: PrefixIndex | None = None
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.index = index if index is not None else PrefixIndex(block_size)
        self.index.expect(num_blocks)
        self.sink = sink

    def resize(self, num_blocks: int) -> None:
        """As `BlockArrays.resize`; the index is told."""
        super().resize(num_blocks)
        self.index.expect(num_blocks)

    def _unheld(self, block: int, reason: Reason) -> None:
        """The last table entry is gone: decide what becomes of the block."""
        state = self._state[block]
        if self._leases[block] > 0:
            self._state[block] = IN_TRANSIT
            return
        fenced = self._last_use[block] > self.completed_step
        if state >= PUBLISHED and self.index.holds(block):  # in transit, only the index knows
            self._state[block] = CACHED
            if fenced:
                self._fenced[block] = None
            else:
                self._cached.add(block)
        elif fenced:
            self._state[block] = QUARANTINED
            self._quarantined[block] = reason
            self._record(Kind.QUARANTINE, block, reason)
        else:
            self._to_free_list(block)
            if self.sink is not None:
                self.sink.emit(FREED, reason, block, self._gen[block], 0, 0, 0)

    def _to_free_list(self, block: int) -> None:
        self._state[block] = FREE
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
            self._state[block] = QUARANTINED
            self._quarantined[block] = reason
            self._record(Kind.QUARANTINE, block, reason)
            return
        del self._cached[block]
        self._to_free_list(block)
        self._record(Kind.FREE, block, reason)

    def unpublish(self, block: int, reason: Reason) -> None:
        """Take a held block out of the index: its content stays its holders', but is not found any more."""
        self.index.remove(block)
        if self._state[block] == PUBLISHED:
            self._state[block] = COMMITTED
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
            identity = self.index.identity_word(extras)
            self.sink.detail(seq, self.index.words(entry.parent, entry.tokens, entry.digest, identity))

    # -- leases -------------------------------------------------------------------------------------------------

    def lease(
        self, block: int, lease_id: int, slot_lo: int, slot_hi: int, *, reason: Reason, seq_id: int,
        deadline: int | None = None,
    ) -> None:  # fmt: skip
        """Hold slots [slot_lo, slot_hi) of a held or cached block; forbids its free, eviction and reuse."""
        before = self.ref(block)
        self._leases[block] += 1
        self.open_leases += 1
        self.leased_slots[block] = max(int(self.leased_slots[block]), slot_hi)
        if self._state[block] == CACHED:
            self._cached.discard(block)
            self._fenced.pop(block, None)
            self._state[block] = IN_TRANSIT
        if self.sink is not None:
            seq = self.sink.emit(
                Kind.LEASE, reason, block, self._gen[block], before, before + 1,
                self._fill[block], seq_id, -1, lease_id,
            )  # fmt: skip
            self.sink.detail(seq, (slot_lo, slot_hi, -1 if deadline is None else deadline))

    def unlease(self, block: int, lease_id: int, *, reason: Reason, seq_id: int) -> None:
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
        self.open_leases -= 1
        if self._leases[block] == 0:
            self.leased_slots[block] = 0
        if self.ref(block) == 0:
            self._unheld(block, reason)

    # -- content ------------------------------------------------------------------------------------------------

    def write(self, block: int, slot_lo: int, slot_hi: int, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """Record that slots [slot_lo, slot_hi) are about to be written by this step."""
        self._fill[block] = max(self._fill[block], slot_hi)
        if self._state[block] == COMMITTED:
            self._state[block] = WRITING
        if self.sink is not None:
            ref = self.ref(block)
            self.sink.emit(
                Kind.WRITE, reason, block, self._gen[block], ref, ref, self._fill[block], seq_id, lblock,
                pack_range(slot_lo, slot_hi),
            )  # fmt: skip

    def commit(self, block: int, gen: int, *, seq_id: int, lblock: int) -> bool:
        """The step that wrote the block has completed: its bytes exist. False if that life is over."""
        if self._gen[block] != gen or self._state[block] not in (WRITING, COMMITTED):
            return False
        self._state[block] = COMMITTED
        if self.sink is not None:
            ref = self.ref(block)
            self.sink.emit(Kind.COMMIT, 0, block, gen, ref, ref, self._fill[block], seq_id, lblock)
        return True

    def publish(self, block: int, digest: bytes, parent: bytes, tokens: Sequence[int]) -> bool:
        """Enter a full, committed block in the prefix index; False if that prefix is served already.

        What was entered is recorded by `record_published`.
        """
        if self._state[block] != COMMITTED or not self.index.publish(block, digest, parent, tokens):
            return False
        self._state[block] = PUBLISHED
        return True

    def record_published(self, entered: Sequence[Published]) -> None:
        """The rows of blocks that were entered."""
        if self.sink is None or not entered:
            return
        if len(entered) < _BULK:
            for block, seq_id, lblock, words in entered:
                ref = self.ref(block)
                seq = self.sink.emit(
                    Kind.PUBLISH, 0, block, self._gen[block], ref, ref, self._fill[block], seq_id, lblock
                )
                self.sink.detail(seq, words)
            return
        blocks, seq_ids, lblocks, details = zip(*entered, strict=True)
        at = np.array(blocks)
        words = self.words[at]
        refs = (words >> 32) + self.leases[at]
        self.sink.emit_many(
            Kind.PUBLISH, 0, block=at, gen=self.gen[at], ref_before=refs, ref_after=refs, fill=words & FILL_MASK,
            seq_id=np.array(seq_ids), lblock=np.array(lblocks), details=np.array(details, dtype=np.int64),
        )  # fmt: skip

    # -- fences -------------------------------------------------------------------------------------------------

    def begin_use(self, number: int, seq_ids: frozenset[int]) -> None:
        """Step `number` uses the blocks in the tables of these sequences, until it is settled.

        They are not marked now: a block becomes free by the release of its holders, and that is when it is asked for.
        """
        self.newest_use = number
        self.users.append((number, seq_ids))

    def forget_user(self, seq_id: int) -> None:
        """The sequence has released its table: what comes under its id later is not used by the open steps."""
        self.users = [(number, seq_ids - {seq_id} if seq_id in seq_ids else seq_ids) for number, seq_ids in self.users]

    def used_by(self, block: int, seq_id: int) -> int:
        """The last open step that uses the block through the table of this sequence, which holds it; -1 = none."""
        for number, seq_ids in reversed(self.users):
            if seq_id in seq_ids:
                return number if -2 - self._last_use[block] < number else -1
        return -1

    def use_row(self, blocks: IntArray, seq_id: Ints) -> None:
        """Before a release: mark the blocks that an open step uses through the table of this sequence."""
        for number, seq_ids in reversed(self.users):
            if not isinstance(seq_id, int) or seq_id in seq_ids:
                known = self.last_use_step[blocks]
                self.last_use_step[blocks] = np.where(-2 - known < number, np.maximum(known, number), known)
                return

    def commit_many(self, blocks: IntArray, gens: IntArray, *, seq_id: IntArray, lblock: IntArray) -> list[bool]:
        """`commit` of each of these blocks, which are distinct."""
        words = self.words[blocks]
        state = words >> 16 & 255
        valid = (self.gen[blocks] == gens) & ((state == WRITING) | (state == COMMITTED))
        if not valid.all():
            blocks, gens, words, seq_id, lblock = (a[valid] for a in (blocks, gens, words, seq_id, lblock))
        self.words[blocks] = words & ~(255 * STATE) | COMMITTED * STATE
        if self.sink is not None:
            ref = (words >> 32) + self.leases[blocks]
            self.sink.emit_many(
                Kind.COMMIT, 0, block=blocks, gen=gens, ref_before=ref, ref_after=ref, fill=words & FILL_MASK,
                seq_id=seq_id, lblock=lblock,
            )  # fmt: skip
        committed: list[bool] = valid.tolist()
        return committed

    def settle(self, completed_step: int) -> None:
        """Steps up to `completed_step` are done: what only they still used is free, or evictable, again."""
        self.completed_step = completed_step
        while self.users and self.users[0][0] <= completed_step:
            del self.users[0]
        if not self._quarantined and not self._fenced:
            return
        for block in [b for b in self._quarantined if self._last_use[b] <= completed_step]:
            reason = self._quarantined.pop(block)
            self._to_free_list(block)
            self._record(Kind.SETTLE, block, reason)
        for block in [b for b in self._fenced if self._last_use[b] <= completed_step]:
            del self._fenced[block]
            self._cached.add(block)

    def _record(self, kind: Kind, block: int, reason: Reason) -> None:
        if self.sink is not None:
            self.sink.emit(kind, reason, block, self._gen[block], 0, 0, self._fill[block])
