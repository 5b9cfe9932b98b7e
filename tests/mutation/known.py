"""Survivors that no test can tell apart from the original, or that change nothing but speed, and why."""

from __future__ import annotations

# `module: before -> after`. Each is argued for itself: a kind of mutant is never excused.
KNOWN: dict[str, str] = {
    (
        "inspector/detectors/records.py: last_use: int = -1  # ordinal of the last step that used it, known once it is "
        "released -> last_use: int = - 2  # ordinal of the last step that used it, known once it is released"
    ): "the same: any number below that of the first step says that none used it",
    (
        "engine/tables.py: if keep == self.first or gone >= _MANY: -> if keep != self.first or gone >= _MANY:"
    ): "the same digest, computed anew or by subtraction",
    (
        "inspector/screen/runs.py: ROW_BITS = 20  # a chunk has less than 2**20 rows "
        "-> ROW_BITS = 19  # a chunk has less than 2**20 rows"
    ): "smaller chunks, the same findings",
    (
        "inspector/screen/sequences.py: _MOST = 1 << 40  # positions -> _MOST = 1 << 41  # positions"
    ): "positions beyond 2**40 are left to the replay; keys have room for 2**43",
    "engine/free_list.py: if end <= self._capacity: -> if end < self._capacity:": (
        "a run that ends where the ring does is put together of itself and of nothing"
    ),
    "engine/free_list.py: self._capacity = 2 * num_blocks + 16 -> self._capacity = 1 * num_blocks + 16": (
        "a ring of as many places as there are blocks never overflows, however far round it goes"
    ),
    "engine/tables.py: if keep == self.first or gone >= _MANY: -> if keep < self.first or gone >= _MANY:": (
        "the same digest, computed anew or by subtraction"
    ),
    (
        "engine/block_life.py: seq_id=seq_id, lblock=lblock, aux=slots | slots + 1 << 32, "
        "-> seq_id=seq_id, lblock=lblock, aux=slots ^ slots + 1 << 32,"
    ): "a slot is below 2**32: no bit is in both",
    (
        'engine/block_arrays.py: _EMPTY = {"leases": 0, "leased_slots": 0, "last_use_step": -1} '
        '-> _EMPTY = {"leases": 0, "leased_slots": 0, "last_use_step": ~1}'
    ): "any number below that of the first step says that none used it",
    "engine/block_life.py: if self._leases[block] > 0: -> if self._leases[block] != 0:": "never less than 0",
    "engine/block_life.py: if self._leases[block] == 0: -> if self._leases[block] <= 0:": "never less than 0",
    (
        "engine/pool.py: quiet = self.open_leases == 0 and self.newest_use <= self.completed_step "
        "-> quiet = self.open_leases <= 0 and self.newest_use <= self.completed_step"
    ): "leases are never less than 0",
    (
        "engine/pool.py: plain &= (self.leases[blocks] == 0) & (self.last_use_step[blocks] <= self.completed_step) "
        "-> plain &= (self.leases[blocks] <= 0) & (self.last_use_step[blocks] <= self.completed_step)"
    ): "leases are never less than 0",
    (
        "engine/pool.py: if data[8:] == data[:-8]: -> if data[8:] == data[:- 7]:"
    ): "never equal, as the lengths differ: least and greatest are then looked for",
    (
        "engine/prefix.py: _LENGTHS = [_length(bytes(count)) for count in range(256)] "
        "-> _LENGTHS = [_length(bytes(count)) for count in range( 255)]"
    ): "made in advance: longer ones are made when they are needed",
    (
        "inspector/screen/blocks.py: alone = (self.entries == 1) & (keys == key) & (self.published == 0) "
        "-> alone = (self.entries == 1) & (keys == key) & (self.published <= 0)"
    ): "published is 0 or 1",
    (
        "inspector/screen/blocks.py: return seq_id.astype(np.uint64) << np.uint64(32) | lblock.astype(np.uint64) "
        "-> return seq_id.astype(np.uint64) << np.uint64(32) ^ lblock.astype(np.uint64)"
    ): "of rows that are looked at the logical block is below 2**32: no bit is in both",
    "inspector/screen/plain.py: has = end > index -> has = end != index": "no piece ends in front of its beginning",
}  # fmt: skip

# Lines of which every mutant that ends, and gives room for what there is, does the same at another speed.
LINES: dict[str, str] = {
    "engine/free_list.py: _FIRST_NUMBERS = np.arange(1 << 13, dtype=np.int32)": (
        "numbers made in advance: a larger pool makes its own"
    ),
    "engine/pool.py: low, high = _span(words) if len(blocks) >= _BULK else (0, 0)": (
        "as arrays or one by one: test_arrays_or_one_by_one shows that both are the same"
    ),
    "engine/pool.py: low, high = _span(words) if count >= _BULK else (0, 0)": (
        "as arrays or one by one: test_arrays_or_one_by_one shows that both are the same"
    ),
    "engine/tables.py: if end - start < _MANY:": "the sum of the words, one by one or as arrays",
    "inspector/screen/sequences.py: more = SequenceStates(max(count, 2 * have) - have)": (
        "how much room is added at once"
    ),
    "inspector/screen/screen.py: self.blocks, self.sequences = BlockStates(0), SequenceStates(64)": (
        "room at the start: it grows"
    ),
    "inspector/online.py: self._every = min(2 * self._every, _MOST)": "how often it looks, not what it sees",
    "inspector/online.py: self._every = max(self._every // 2, _LEAST)": "how often it looks, not what it sees",
    "inspector/online.py: since, self._looked_at = now - self._looked_at, now": "how often it looks, not what it sees",
}


def known(module: str, shown: tuple[str, str]) -> str | None:
    """Why a survivor is none, if that is known."""
    return KNOWN.get(f"{module}: {shown[0]} -> {shown[1]}") or LINES.get(f"{module}: {shown[0]}")
