"""Survivors in the screen that no test can tell apart from the original, and why."""

from __future__ import annotations

# `module: before -> after`. Each is argued for itself: a kind of mutant is never excused.
SCREEN: dict[str, str] = {
    (
        "inspector/screen/runs.py: ROW_BITS = 20  # a chunk has less than 2**20 rows "
        "-> ROW_BITS = 19  # a chunk has less than 2**20 rows"
    ): "smaller chunks, the same findings",
    (
        "inspector/screen/sequences.py: _MOST = 1 << 40  # positions -> _MOST = 1 << 41  # positions"
    ): "positions beyond 2**40 are left to the replay; keys have room for 2**43",
    (
        "inspector/screen/blocks.py: alone = (self.entries == 1) & (keys == key) & (self.published == 0) "
        "-> alone = (self.entries == 1) & (keys == key) & (self.published <= 0)"
    ): "published is 0 or 1",
    (
        "inspector/screen/blocks.py: return seq_id.astype(np.uint64) << np.uint64(32) | lblock.astype(np.uint64) "
        "-> return seq_id.astype(np.uint64) << np.uint64(32) ^ lblock.astype(np.uint64)"
    ): "of rows that are looked at the logical block is below 2**32: no bit is in both",
    "inspector/screen/plain.py: has = end > index -> has = end != index": "no piece ends in front of its beginning",
    (
        "inspector/screen/blocks.py: (_HIT, published & (place == HELD)), "
        "-> (_HIT, published & (place <= HELD)),"
    ): "HELD is the least of the places",
    (
        "inspector/screen/blocks.py: sound &= (fill < 0) | (fill >= copied[:, 2]) "
        "-> sound &= (fill < 0) ^ (fill >= copied[:, 2])"
    ): "both only where a copy is said to copy less than no slot, and that is suspected where it was decided",
    (
        "inspector/screen/columns.py: out = np.full(256, default, dtype=np.int8) "
        "-> out = np.full( 257, default, dtype=np.int8)"
    ): "a kind is a byte: the last element is never looked at",
    (
        "inspector/screen/entries.py: local = np.full(len(every), -1, dtype=np.int64) "
        "-> local = np.full(len(every), - 2, dtype=np.int64)"
    ): "any number below 0 says that an entry is of an earlier chunk",
    (
        "inspector/screen/screen.py: self.sequences.reserve(int(chunk.seq_id.max(initial=-1)) + 1) "
        "-> self.sequences.reserve(int(chunk.seq_id.max(initial=- 2)) + 1)"
    ): "room for none, or for less than none",
    (
        "inspector/screen/screen.py: if not asking.any() and len(self._unasked) < _MOST_UNASKED: "
        "-> if not asking.any() and len(self._unasked) > _MOST_UNASKED:"
    ): "gone through at once instead of when somebody asks, in the same order",
    (
        "inspector/screen/sequences.py: placed = write | copy | arrives | (ENTRY_SIGN.take(kind) != 0) "
        "-> placed = write | copy | arrives ^ (ENTRY_SIGN.take(kind) != 0)"
    ): "a row is of one kind: no two are true",
    "inspector/screen/sequences.py: full = joined == base + size -> full = joined >= base + size": (
        "no block has more slots written than it has"
    ),
    (
        "inspector/screen/sequences.py: self._behind = given[window & self.pass_of_entries.current[self.rows[given]]] "
        "-> self._behind = given[window * self.pass_of_entries.current[self.rows[given]]]"
    ): "the product of truth values is that both are true",
    "inspector/screen/sequences.py: tail = self.tail_sched >= 0 -> tail = self.tail_sched > 0": (
        "a tail stands behind the rows that it goes on with: it is not the chunk's first row"
    ),
    "inspector/screen/sequences.py: tail = self.tail_sched >= 0 -> tail = self.tail_sched >= 1": (
        "a tail stands behind the rows that it goes on with: it is not the chunk's first row"
    ),
    (
        "inspector/screen/blocks.py: "
        "code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + (self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + (self.place == QUARANTINED) * 3"
    ): "what nobody holds is in quarantine whether it is published or not",
    (
        "inspector/screen/details.py: "
        "_LEAST = {int(kind): 8 if kind == Kind.WITNESS else width for kind, width in DETAILED.items()}  "
        "# what is not told is -1 "
        "-> _LEAST = {int(kind): 8 if kind >= Kind.WITNESS else width for kind, width in DETAILED.items()}  "
        "# what is not told is -1"
    ): "no kind whose details are looked at has a greater number",
    (
        "inspector/screen/blocks.py: "
        'sound &= (copied[:, 0] >= 0) & (chunk.at("gen", after) == copied[:, 1]) '
        '-> sound &= (copied[:, -1] >= 0) & (chunk.at("gen", after) == copied[:, 1])'
    ): "where nothing is known of a copy, source and slots are both -1",
    (
        "inspector/screen/columns.py: "
        "if at[0] >= 0 and at[-1] - at[0] == len(rows) - 1:  # as a rule "
        "-> if at[0] >= 1 and at[-1] - at[0] == len(rows) - 1:  # as a rule"
    ): "the same words, row by row or side by side",
    (
        "inspector/screen/details.py: number = kind[0] -> number = kind[ -1]"
    ): "they are of one kind; where they are not, nothing is looked up",
    (
        "inspector/screen/screen.py: "
        "taken = np.bincount(since[sign > 0], minlength=count) - np.bincount(since[sign < 0], minlength=count) "
        "-> taken = np.bincount(since[sign > 0], minlength=count) - np.bincount(since[sign < 1], minlength=count)"
    ): "of entries that are taken or given back none has the sign 0",
    (
        "inspector/screen/blocks.py: _UNBOUND = table({Kind.ALLOC: 0, Kind.COMMIT: 0, Kind.WRITE: 1}, -1) "
        "-> _UNBOUND = table({Kind.ALLOC: 0, Kind.COMMIT: 0, Kind.WRITE: 1}, ~1)"
    ): "any number below 0 says that the kind changes nothing",
    (
        "inspector/screen/blocks.py: _UNBOUND = table({Kind.ALLOC: 0, Kind.COMMIT: 0, Kind.WRITE: 1}, -1) "
        "-> _UNBOUND = table({Kind.ALLOC: 0, Kind.COMMIT: 0, Kind.WRITE: 1}, - 2)"
    ): "any number below 0 says that the kind changes nothing",
    (
        "inspector/screen/columns.py: "
        "if at[0] >= 0 and at[-1] - at[0] == len(rows) - 1:  # as a rule "
        "-> if at[0] >= 0 and at[-1] - at[0] == len(rows) ^ 1:  # as a rule"
    ): "of an odd number the same; of an even one no rows are so far apart: the same words, row by row",
    "inspector/screen/entries.py: took = sign > 0 -> took = sign >= 0": "an entry is taken or given back: none has 0",
    "inspector/screen/entries.py: took = sign > 0 -> took = sign != -1": "an entry is taken or given back",
    (
        "inspector/screen/entries.py: sound_take = ~own | (before == 0) | ((before == 1) & replaces) "
        "-> sound_take = ~own | (before <= 0) | ((before == 1) & replaces)"
    ): "a place that holds less than nothing is suspected from the row on that made it so",
    (
        "inspector/screen/entries.py: same = found & (block[target] == block) & (gen[target] == gen) "
        "-> same = found & (block[target] == block) * (gen[target] == gen)"
    ): "the product of truth values is that both are true",
    (
        "inspector/screen/entries.py: two = previous[newest[ends[after[ends] == 2]]] "
        "-> two = previous[newest[ends[after[ends] >= 2]]]"
    ): "a place that holds three is suspected from the row on that made it so",
    (
        "inspector/screen/entries.py: if (int(places.max()) - low).bit_length() + bits < 63: "
        "-> if (int(places.max()) - low).bit_length() + bits <= 63:"
    ): "a number of 63 bits still fits",
    (
        "inspector/screen/entries.py: packed = (places - low) << bits | np.arange(len(places)) "
        "-> packed = (places - low) << bits ^ np.arange(len(places))"
    ): "no bit is in both",
    (
        "inspector/screen/runs.py: "
        "return (np.maximum.accumulate(segment | values) if len(values) else values) & ((1 << 40) - 1) "
        "-> return (np.maximum.accumulate(segment + values) if len(values) else values) & ((1 << 40) - 1)"
    ): "values are below 2**40: no bit is in both",
    (
        "inspector/screen/runs.py: "
        "return (np.maximum.accumulate(segment | values) if len(values) else values) & ((1 << 40) - 1) "
        "-> return (np.maximum.accumulate(segment ^ values) if len(values) else values) & ((1 << 40) - 1)"
    ): "values are below 2**40: no bit is in both",
    (
        "inspector/screen/screen.py: "
        '"block left": bool((unheld & blocks.touched & (blocks.place == HELD) & (blocks.published == 0)).any()), '
        '-> "block left": bool((unheld & blocks.touched & (blocks.place <= HELD) & (blocks.published == 0)).any()),'
    ): "HELD is the least of the places",
    (
        "inspector/screen/screen.py: "
        '"block left": bool((unheld & blocks.touched & (blocks.place == HELD) & (blocks.published == 0)).any()), '
        '-> "block left": bool((unheld & blocks.touched & (blocks.place == HELD) & (blocks.published <= 0)).any()),'
    ): "published is 0 or 1",
    (
        "inspector/screen/transfers.py: "
        "for row, kind, aux, block, gen, seq_id in zip(*(c.tolist() for c in columns), strict=True): "
        "-> for row, kind, aux, block, gen, seq_id in zip(*(c.tolist() for c in columns), strict=False):"
    ): "the columns are of the same rows, and as long",
    (
        "inspector/screen/transfers.py: lease = told.get(row, -1) -> lease = told.get(row, - 2)"
    ): "any number below 0 names no lease",
    (
        "inspector/screen/transfers.py: lease = told.get(row, -1) -> lease = told.get(row, ~1)"
    ): "any number below 0 names no lease",
    (
        "inspector/screen/transfers.py: sound = told.get(row, -1) < 0 or told[row] == len(self._used) "
        "-> sound = told.get(row, - 2) < 0 or told[row] == len(self._used)"
    ): "any number below 0 says that nothing is told",
    (
        "inspector/screen/transfers.py: sound = told.get(row, -1) < 0 or told[row] == len(self._used) "
        "-> sound = told.get(row, ~1) < 0 or told[row] == len(self._used)"
    ): "any number below 0 says that nothing is told",
    (
        "inspector/screen/plain.py: further = write[2:] & sched[1:-1] & write[:-2] & same "
        "-> further = write[2:] * sched[1:-1] & write[:-2] & same"
    ): "the product of truth values is that both are true",
    (
        "inspector/screen/blocks.py: at = runs.last(copy | self.is_(Kind.ALLOC)) "
        "-> at = runs.last(copy ^ self.is_(Kind.ALLOC))"
    ): "a row is of one kind: no two are true",
    (
        "inspector/screen/sequences.py: MOST_SEQUENCES = 1 << 24 "
        "-> MOST_SEQUENCES = 1 << 23"
    ): "sequences with greater numbers are left to the replay, which says the same of them",
    (
        "inspector/screen/runs.py: self.first[1:] = keys[1:] != keys[:-1] "
        "-> self.first[1:] = keys[1:] > keys[:-1]"
    ): "the keys are sorted",
    (
        "inspector/screen/screen.py: self.blocks.reserve(min(int(chunk.block.max(initial=-1)) + 1, self.num_blocks), "
        "self.num_blocks) "
        "-> self.blocks.reserve(min(int(chunk.block.max(initial=~1)) + 1, self.num_blocks), self.num_blocks)"
    ): "room for none, or for less than none",
    (
        "inspector/screen/screen.py: self.blocks.reserve(min(int(chunk.block.max(initial=-1)) + 1, self.num_blocks), "
        "self.num_blocks) "
        "-> self.blocks.reserve(min(int(chunk.block.max(initial=- 2)) + 1, self.num_blocks), self.num_blocks)"
    ): "room for none, or for less than none",
    (
        "inspector/screen/screen.py: self.sequences.reserve(int(chunk.seq_id.max(initial=-1)) + 1) "
        "-> self.sequences.reserve(int(chunk.seq_id.max(initial=~1)) + 1)"
    ): "room for none, or for less than none",
    (
        "inspector/screen/blocks.py: }, -1, "
        "-> }, ~1,"
    ): "any number below 0 says that the kind changes nothing",
    (
        "inspector/screen/blocks.py: }, -1, "
        "-> }, - 2,"
    ): "any number below 0 says that the kind changes nothing",
    (
        "inspector/screen/blocks.py: near, source = here >= 0, np.maximum(here, 0) "
        "-> near, source = here >= 0, np.maximum(here, -1)"
    ): "where none is near, what is known from before is taken",
    (
        "inspector/screen/blocks.py: copied = np.where((here >= 0)[:, None], fields[np.maximum(here, 0)], "
        "states.copied[runs.keys[done]]) "
        "-> copied = np.where((here >= 0)[:, None], fields[np.maximum(here, -1)], states.copied[runs.keys[done]])"
    ): "where none is near, what is known from before is taken",
    (
        "inspector/screen/columns.py: if at[0] >= 0 and at[-1] - at[0] == len(rows) - 1:  # as a rule "
        "-> if at[0] >= 0 and at[-1] - at[0] > len(rows) - 1:  # as a rule"
    ): "never: the same words, row by row",
}  # fmt: skip
