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

from kvscope.engine.block_arrays import ENTRY, FILL_MASK, NEXT_LIFE, STATE
from kvscope.engine.block_life import CACHED, COMMITTED, FREED, IN_TRANSIT, PUBLISHED, WRITING, BlockLife
from kvscope.engine.free_list import AHEAD, IntArray, numbers
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import Ints

_ALLOC, _RELEASE = int(Kind.ALLOC), int(Kind.RELEASE)
_BULK = 7  # rows from here on are cheaper as arrays
_HANDED_OUT = ENTRY | WRITING * STATE
_FRESH, _NOTHING = np.array(_HANDED_OUT), np.array(0)  # numpy is faster with these than with numbers
_add = np.add
_INDEXED = PUBLISHED * STATE  # words without an entry below this: not in the prefix index
_PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this


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
        blocks, lives = self.hand_out(count)
        if self.sink is not None and count:
            if lblock.__class__ is int:
                lblock = numbers(lblock, count)
            self.sink.emit_lives(_ALLOC, reason, lives, 0, 1, 0, seq_id, lblock)
        return blocks

    def hand_out(self, count: int) -> tuple[IntArray, IntArray]:
        """`take`, its caller records it: the blocks and their `lives`.

        Raises:
            OutOfBlocks: fewer are available; nothing was changed.
        """
        free = self._free
        if count > free.count:
            if count > self.num_available:
                raise OutOfBlocks(count, self.num_available, self.shortage(count))
            while free.count < count:
                self.evict()
        blocks = free.pop_many(count)
        lives = self.lives[blocks]
        _add(lives, NEXT_LIFE, lives)
        self.lives[blocks] = lives
        self.words[blocks] = _FRESH
        self.num_held += count
        if self.users:
            self.last_use_step[blocks] = -2 - self.newest_use
        return blocks, lives

    def take_one(self, seq_id: int, lblock: int, reason: Reason) -> int:
        """`take` of a single block, at a third of its cost.

        Raises:
            OutOfBlocks: none is available; nothing was changed.
        """
        try:
            block = self._free.ahead.pop()
        except IndexError:
            if not self._free.count:
                if not self._cached:
                    raise OutOfBlocks(1, 0, self.shortage(1)) from None
                self.evict()
            block = self._free.pop()
        self._words[block] = _HANDED_OUT
        self.num_held += 1
        if self.users:
            self._last_use[block] = -2 - self.newest_use
        gen = self._gen[block] + 1
        self._gen[block] = gen
        sink = self.sink
        if sink is not None:
            sink.emit_alloc(reason, block, gen, seq_id, lblock)
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

    def release(self, block: int, seq_id: int, lblock: int, reason: Reason) -> None:
        """One table entry gone; the last holder's release frees, quarantines or caches the block."""
        word = self._words[block]
        if (
            ENTRY <= word < _PLAIN_END  # its only holder, and not in the index
            and self.open_leases == 0
            and self.newest_use <= self.completed_step
        ):
            sink = self.sink
            if sink is not None:
                sink.emit_end(reason, block, self._gen[block], word & FILL_MASK, seq_id, lblock)
            self.num_held -= 1
            self._words[block] = 0
            behind = self._free.behind
            behind.append(block)
            if len(behind) == AHEAD:
                self._free.file()
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
        self._unheld(block, reason)

    def retain_row(self, blocks: IntArray, kind: Kind, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """`retain` of a table row from logical block `lblock` on; the blocks are distinct and in a table already."""
        words = self.words[blocks]
        low, high = _span(words) if len(blocks) >= _BULK else (0, 0)
        if low < ENTRY:
            for i, block in enumerate(blocks.tolist(), lblock):
                self.retain(block, kind, seq_id=seq_id, lblock=i, reason=reason)
            return
        alike = low == high  # as a rule: blocks of a prefix are full, and shared by the same tables
        self.words[blocks] = low + ENTRY if alike else words + ENTRY
        alone = (len(blocks) if low < 2 * ENTRY else 0) if alike else int(np.count_nonzero(words < 2 * ENTRY))
        self.num_shared += alone
        if self.sink is not None:
            before, after = self._references(blocks, words, low, high, 1)
            fill: Ints = low & FILL_MASK if alike else words & FILL_MASK
            logical = numbers(lblock, len(blocks))
            self.sink.emit_lives(kind, reason, self.lives[blocks], before, after, fill, seq_id, logical)

    def release_row(self, blocks: IntArray, *, seq_id: Ints, lblock: Ints, reason: Reason) -> None:
        """`release` of the end of a table row, from logical block `lblock` on, last first; the blocks are distinct.

        With arrays for `seq_id` and `lblock`: of one block of each of these sequences, the last one first.
        """
        words, count = self.words[blocks], len(blocks)
        low, high = _span(words) if count >= _BULK else (0, 0)
        if low < ENTRY:
            for i in range(count - 1, -1, -1):
                sequence = seq_id if isinstance(seq_id, int) else int(seq_id[i])
                logical = lblock + i if isinstance(lblock, int) else int(lblock[i])
                self.release(int(blocks[i]), seq_id=sequence, lblock=logical, reason=reason)
            return
        blocks, words = blocks[::-1], words if low == high else words[::-1]
        if self.users:
            self.use_row(blocks, seq_id)
        quiet = self.open_leases == 0 and self.newest_use <= self.completed_step
        plain = quiet and high < _PLAIN_END  # one entry each, not published: all of them are free now
        lives = blocks  # without a sink nobody asks
        if self.sink is not None:
            lives = self.lives[blocks]
            fill: Ints = low & FILL_MASK if low == high else words & FILL_MASK
            holders = seq_id if isinstance(seq_id, int) else seq_id[::-1]
            places = (numbers(lblock, count) if isinstance(lblock, int) else lblock)[::-1]
            if plain:
                self.sink.emit_ends(reason, lives, fill, holders, places)
            else:
                before, after = self._references(blocks, words, low, high, -1)
                self.sink.emit_lives(_RELEASE, reason, lives, before, after, fill, holders, places)
        if plain:
            self.num_held -= count
            self.words[blocks] = _NOTHING
            self._free.push_many(blocks)
        else:
            self._let_go(blocks, words - ENTRY, lives, reason, quiet=quiet)

    def _let_go(self, blocks: IntArray, words: IntArray, lives: IntArray, reason: Reason, *, quiet: bool) -> None:
        """`words` are these blocks' from now on: some are free, some are kept, some still held.

        quiet: no block is leased, and no step is open.
        """
        alone = int(np.count_nonzero(words < ENTRY))
        self.num_held -= alone
        self.num_shared -= int(np.count_nonzero(words < 2 * ENTRY)) - alone
        self.words[blocks] = words
        unheld = words < ENTRY
        plain = unheld & (words < _INDEXED)
        if not quiet:
            plain &= (self.leases[blocks] == 0) & (self.last_use_step[blocks] <= self.completed_step)
        if plain.any():
            self._free_many(blocks[plain], lives[plain], reason)
        for block in blocks[unheld & ~plain].tolist():
            self._unheld(block, reason)

    def _references(self, blocks: IntArray, words: IntArray, low: int, high: int, change: int) -> tuple[Ints, Ints]:
        """References of these blocks before and after each gets `change` table entries; numbers where all are alike.

        low, high: the least and the greatest of their `words`.
        """
        alike = self.open_leases == 0 and low == high
        before: int | IntArray = low >> 32 if alike else (words >> 32) + self.leases[blocks]
        return before, before + change

    def _free_many(self, blocks: IntArray, lives: IntArray, reason: Reason) -> None:
        """Blocks without a holder go to the free list."""
        if self.sink is not None:
            self.sink.emit_lives(FREED, reason, lives, 0, 0, 0)
        self.words[blocks] = _NOTHING
        self._free.push_many(blocks)


def _span(words: IntArray) -> tuple[int, int]:
    """The least and the greatest of some words; at a sixth of the cost where all are equal."""
    data = words.tobytes()
    if data[8:] == data[:-8]:
        word: int = words.item(0)
        return word, word
    return words.item(words.argmin()), words.item(words.argmax())  # quicker than the reductions
