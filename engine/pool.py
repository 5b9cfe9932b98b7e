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
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.engine.block_arrays import ENTRY, FILL_MASK, STATE
from kvscope.engine.block_life import CACHED, COMMITTED, FREED, IN_TRANSIT, PUBLISHED, WRITING, BlockLife
from kvscope.engine.free_list import IntArray, numbers
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import Ints

_ALLOC, _RELEASE = int(Kind.ALLOC), int(Kind.RELEASE)
_BULK = 7  # rows from here on are cheaper as arrays
_HANDED_OUT = ENTRY | WRITING * STATE
_ONE, _FRESH = np.array(1, dtype=np.int32), np.array(_HANDED_OUT)  # numpy is faster with these than with numbers
_PLAIN_END = ENTRY | PUBLISHED * STATE  # words of at most one entry below this: not in the prefix index
_least, _most = np.minimum.reduce, np.maximum.reduce


class BlockPool(BlockLife):
    """`num_blocks` blocks of `block_size` slots: handed out, shared by count, given back, evicted."""

    def take(self, count: int, *, seq_id: Ints, lblock: Ints, reason: Reason) -> IntArray:
        """Hand out `count` blocks, evicting cached ones if needed.

        Args:
            seq_id, lblock: one sequence, which gets them as its logical blocks `lblock...`; or arrays [count], for as
            many sequences a block each.

        Raises:
            OutOfBlocks: fewer are available; nothing was changed.
        """
        blocks, gens = self.hand_out(count)
        if self.sink is not None and count:
            if lblock.__class__ is int:
                lblock = numbers(lblock, count)
            self.sink.emit_many(
                _ALLOC, reason, block=blocks, gen=gens, ref_before=0, ref_after=1, fill=0, seq_id=seq_id, lblock=lblock
            )  # fmt: skip
        return blocks

    def hand_out(self, count: int) -> tuple[IntArray, npt.NDArray[np.int32]]:
        """`take`, its caller records it: the blocks and their lives.

        Raises:
            OutOfBlocks: fewer are available; nothing was changed.
        """
        if count > self._free.count:
            if count > self.num_available:
                raise OutOfBlocks(count, self.num_available, self.shortage(count))
            while self._free.count < count:
                self.evict()
        blocks = self._free.pop_many(count)
        gens = self.gen[blocks]
        gens += _ONE
        self.gen[blocks] = gens
        self.words[blocks] = _FRESH
        self.num_held += count
        if self.users:
            self.last_use_step[blocks] = -2 - self.newest_use
        return blocks, gens

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
        self._words[block] = _HANDED_OUT
        self.num_held += 1
        if self.users:
            self._last_use[block] = -2 - self.newest_use
        gen = self._gen[block] + 1
        self._gen[block] = gen
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
        if state == CACHED:
            self._cached.discard(block)
            self._fenced.pop(block, None)
            self._state[block] = PUBLISHED
        elif state == IN_TRANSIT:
            self._state[block] = PUBLISHED if self.index.holds(block) else COMMITTED
        elif self._entries[block] == 0:
            raise FaultyCall(f"block {self.name(block)} is {self.state_name(block)}: only a live block can be shared")
        held = self._entries[block] + 1
        self._entries[block] = held
        if held == 1:
            self.num_held += 1
        elif held == 2:
            self.num_shared += 1

    def release(self, block: int, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """One table entry gone; the last holder's release frees, quarantines or caches the block."""
        if (
            ENTRY <= self._words[block] < _PLAIN_END  # its only holder, and not in the index
            and self.open_leases == 0
            and self.newest_use <= self.completed_step
        ):
            if self.sink is not None:
                gen = self._gen[block]
                self.sink.emit(_RELEASE, reason, block, gen, 1, 0, self._fill[block], seq_id, lblock)
                self.sink.emit(FREED, reason, block, gen, 0, 0, 0)
            self.num_held -= 1
            self._words[block] = 0
            self._free.push(block)
            return
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
        if self.users:
            used = self.used_by(block, seq_id)
            if used > max(self._last_use[block], -1):
                self._last_use[block] = used
        self._entries[block] = held - 1
        if held > 1:
            self.num_shared -= held == 2
            return
        self.num_held -= 1
        if before > 1 or self._state[block] >= PUBLISHED or self._last_use[block] > self.completed_step:
            self._unheld(block, reason)
            return
        self._words[block] = 0
        self._free.push(block)
        if self.sink is not None:
            self.sink.emit(FREED, reason, block, self._gen[block], 0, 0, 0)

    def retain_row(self, blocks: IntArray, kind: Kind, *, seq_id: int, reason: Reason, lblock: int = 0) -> None:
        """`retain` of a table row from logical block `lblock` on; the blocks are distinct and in a table already."""
        words = self.words[blocks]
        low = int(_least(words)) if len(blocks) >= _BULK else 0
        if low < ENTRY:
            for i, block in enumerate(blocks.tolist(), lblock):
                self.retain(block, kind, seq_id=seq_id, lblock=i, reason=reason)
            return
        alike = int(_most(words)) == low  # as a rule: blocks of a prefix are full, and shared by the same tables
        self.words[blocks] = low + ENTRY if alike else words + ENTRY
        alone = (len(blocks) if low < 2 * ENTRY else 0) if alike else int(np.count_nonzero(words < 2 * ENTRY))
        self.num_shared += alone
        if self.sink is not None:
            before, after = self._references(blocks, words, 1)
            self.sink.emit_many(
                kind, reason, block=blocks, gen=self.gen[blocks], ref_before=before, ref_after=after,
                fill=low & FILL_MASK if alike else words & FILL_MASK, seq_id=seq_id,
                lblock=numbers(lblock, len(blocks)),
            )  # fmt: skip

    def release_row(self, blocks: IntArray, *, seq_id: Ints, lblock: Ints, reason: Reason) -> None:
        """`release` of the end of a table row, from logical block `lblock` on, last first; the blocks are distinct.

        With arrays for `seq_id` and `lblock`: of one block of each of these sequences, the last one first.
        """
        words = self.words[blocks]
        if len(blocks) < _BULK or _least(words) < ENTRY:
            for i in range(len(blocks) - 1, -1, -1):
                sequence = seq_id if isinstance(seq_id, int) else int(seq_id[i])
                logical = lblock + i if isinstance(lblock, int) else int(lblock[i])
                self.release(int(blocks[i]), seq_id=sequence, lblock=logical, reason=reason)
            return
        blocks = blocks[::-1].copy()
        words = words[::-1]
        if self.users:
            self.use_row(blocks, seq_id)
        low, high = int(_least(words)), int(_most(words))
        gens: npt.NDArray[Any] = self.gen[blocks] if self.sink is not None else blocks
        if self.sink is not None:
            before, after = self._references(blocks, words, -1)
            self.sink.emit_many(
                _RELEASE, reason, block=blocks, gen=gens, ref_before=before, ref_after=after,
                fill=low & FILL_MASK if low == high else words & FILL_MASK,
                seq_id=seq_id if isinstance(seq_id, int) else seq_id[::-1],
                lblock=(numbers(lblock, len(blocks)) if isinstance(lblock, int) else lblock)[::-1],
            )  # fmt: skip
        quiet = self.open_leases == 0 and self.newest_use <= self.completed_step
        if quiet and high < _PLAIN_END:  # one entry each, not published: all of them are free now
            self.num_held -= len(blocks)
            self._free_many(blocks, gens, reason)
        elif low == high >= 2 * ENTRY:  # others hold all of them
            self.words[blocks] = low - ENTRY
            self.num_shared -= len(blocks) if low < 3 * ENTRY else 0
        else:
            self._let_go(blocks, words - ENTRY, gens, reason, quiet=quiet)

    def _let_go(
        self, blocks: IntArray, words: IntArray, gens: npt.NDArray[Any], reason: Reason, *, quiet: bool
    ) -> None:
        """`words` are these blocks' from now on: some are free, some are kept, some still held.

        quiet: no block is leased, and no step is open.
        """
        alone = int(np.count_nonzero(words < ENTRY))
        self.num_held -= alone
        self.num_shared -= int(np.count_nonzero(words < 2 * ENTRY)) - alone
        self.words[blocks] = words
        unheld = words < ENTRY
        plain = unheld & (words < _PLAIN_END - ENTRY)
        if not quiet:
            plain &= (self.leases[blocks] == 0) & (self.last_use_step[blocks] <= self.completed_step)
        if plain.any():
            self._free_many(blocks[plain], gens[plain], reason)
        for block in blocks[unheld & ~plain].tolist():
            self._unheld(block, reason)

    def _references(self, blocks: IntArray, words: IntArray, change: int) -> tuple[Ints, Ints]:
        """References of these blocks before and after each gets `change` table entries; numbers where all are equal."""
        low, high = int(_least(words)) >> 32, int(_most(words)) >> 32
        if self.open_leases == 0 and low == high:
            return low, low + change
        before = (words >> 32) + self.leases[blocks]
        return before, before + change

    def _free_many(self, blocks: IntArray, gens: npt.NDArray[Any], reason: Reason) -> None:
        """Blocks without a holder go to the free list."""
        if self.sink is not None:
            self.sink.emit_many(FREED, reason, block=blocks, gen=gens, ref_before=0, ref_after=0, fill=0)
        self.words[blocks] = 0
        self._free.push_many(blocks)
