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
    (
        "inspector/screen/blocks.py: return seq_id.astype(np.uint64) << np.uint64(32) | "
        "lblock.astype(np.uint64) "
        "-> return seq_id.astype(np.uint64) << np.uint64( 31) | lblock.astype(np.uint64)"
    ): "of rows that are looked at the logical block is below 2**31: no bit is in both",
    "inspector/screen/blocks.py: (_LEAVES, unheld & (place == HELD)), -> (_LEAVES, unheld & (place <= HELD)),": (
        "HELD is the least of the places"
    ),
    "inspector/screen/blocks.py: (_SETTLE, place == QUARANTINED), -> (_SETTLE, place >= QUARANTINED),": (
        "QUARANTINED is the greatest of the places"
    ),
    (
        'inspector/screen/blocks.py: self.must("hit before its writes", ~hit | (unbound == 0) if ordered else'
        " np.ones(len(hit), dtype=np.bool_)) "
        '-> self.must("hit before its writes", ~hit | (unbound <= 0) if ordered else np.ones(len(hit), '
        "dtype=np.bool_))"
    ): "unbound is 0 or 1",
    (
        "inspector/screen/blocks.py: fields = np.full((len(copy), 3), -1, dtype=np.int64) "
        "-> fields = np.full((len(copy), 3), - 2, dtype=np.int64)"
    ): "any number below 0 names no block",
    (
        "inspector/screen/blocks.py: fields = np.full((len(copy), 3), -1, dtype=np.int64) "
        "-> fields = np.full((len(copy), 3), not 1, dtype=np.int64)"
    ): "no life that begins has the number 0",
    (
        "inspector/screen/blocks.py: fields = np.full((len(copy), 3), -1, dtype=np.int64) "
        "-> fields = np.full((len(copy), 3), - 0, dtype=np.int64)"
    ): "no life that begins has the number 0",
    (
        "inspector/screen/blocks.py: code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + "
        "(self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 8 | (self.leases > 0) * 4 + (self.place == QUARANTINED) * 2"
    ): "no bit is in two of them",
    (
        "inspector/screen/blocks.py: code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + "
        "(self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 | (self.place == QUARANTINED) * 2"
    ): "no bit is in two of them",
    (
        "inspector/screen/blocks.py: code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + "
        "(self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 8 ^ (self.leases > 0) * 4 + (self.place == QUARANTINED) * 2"
    ): "no bit is in two of them",
    (
        "inspector/screen/blocks.py: code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + "
        "(self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 ^ (self.place == QUARANTINED) * 2"
    ): "no bit is in two of them",
    (
        "inspector/screen/blocks.py: state = _STATE.take(code + (self.published == 1)) "
        "-> state = _STATE.take(code + (self.published >= 1))"
    ): "published is 0 or 1",
    (
        "inspector/screen/blocks.py: state = _STATE.take(code + (self.published == 1)) "
        "-> state = _STATE.take(code + (self.published > 0))"
    ): "published is 0 or 1",
    (
        "inspector/screen/blocks.py: state = _STATE.take(code + (self.published == 1)) "
        "-> state = _STATE.take(code | (self.published == 1))"
    ): "no bit is in both",
    (
        "inspector/screen/blocks.py: state = _STATE.take(code + (self.published == 1)) "
        "-> state = _STATE.take(code ^ (self.published == 1))"
    ): "no bit is in both",
    (
        "inspector/screen/blocks.py: out = np.empty((3, 2, 2, 2), dtype=np.int8) "
        "-> out = np.empty(( 4, 2, 2, 2), dtype=np.int8)"
    ): "room that nothing is read from",
    (
        "inspector/screen/columns.py: words = self.events.view(np.int64).reshape(-1, dtype.itemsize // 8) "
        "-> words = self.events.view(np.int64).reshape(- 2, dtype.itemsize // 8)"
    ): "any number below 0 stands for as many rows as there are",
    "inspector/screen/columns.py: if len(there) == 1: -> if len(there) == 0:": "one kind is looked for as several are",
    "inspector/screen/columns.py: if len(there) == 1: -> if len(there) < 1:": "one kind is looked for as several are",
    "inspector/screen/columns.py: if len(there) == 1: -> if len(there) == -1:": "one kind is looked for as several are",
    "inspector/screen/columns.py: if len(there) == 1: -> if len(there) > 1:": "one kind is looked for as several are",
    "inspector/screen/columns.py: if len(there) == 1: -> if len(there) <= 1:": "there is one at least",
    (
        "inspector/screen/columns.py: same = self.kind[rows - 2] == NUMBERS[Kind.ALLOC] "
        "-> same = self.kind[rows - 2] <= NUMBERS[Kind.ALLOC]"
    ): "ALLOC is the least of the kinds",
    (
        "inspector/screen/details.py: number = numbers[seq - first] if first <= seq < end else -1 "
        "-> number = numbers[seq - first] if first <= seq < end else - 2"
    ): "no kind has a number below 0",
    "inspector/screen/entries.py: took = sign > 0 -> took = sign > -1": "an entry is taken or given back",
    "inspector/screen/entries.py: took = sign > 0 -> took = sign >= 1": "an entry is taken or given back",
    (
        "inspector/screen/entries.py: ends = np.minimum(doubled + 1, len(local) - 1) "
        "-> ends = np.minimum(doubled + 1, len(local) - 2)"
    ): "behind the last row of all only the block that is left there is written, or the write is doubted by itself",
    (
        "inspector/screen/entries.py: doubled[los < his].tolist(), los[los < his].tolist(), his[los < "
        "his].tolist(), strict=True "
        "-> doubled[los < his].tolist(), los[los < his].tolist(), his[los != his].tolist(), strict=True"
    ): "a stretch never ends in front of its beginning",
    (
        "inspector/screen/entries.py: doubled[los < his].tolist(), los[los < his].tolist(), his[los < "
        "his].tolist(), strict=True "
        "-> doubled[los < his].tolist(), los[los != his].tolist(), his[los < his].tolist(), strict=True"
    ): "a stretch never ends in front of its beginning",
    (
        "inspector/screen/entries.py: doubled[los < his].tolist(), los[los < his].tolist(), his[los < "
        "his].tolist(), strict=True "
        "-> doubled[los != his].tolist(), los[los < his].tolist(), his[los < his].tolist(), strict=True"
    ): "a stretch never ends in front of its beginning",
    (
        "inspector/screen/entries.py: doubled[los < his].tolist(), los[los < his].tolist(), his[los < "
        "his].tolist(), strict=True "
        "-> doubled[los < his].tolist(), los[los < his].tolist(), his[los < his].tolist(), strict=False"
    ): "of each as many are picked",
    (
        "inspector/screen/runs.py: ROW_BITS = 20  # a chunk has less than 2**20 rows "
        "-> ROW_BITS = 21  # a chunk has less than 2**20 rows"
    ): "larger chunks, the same findings; keys have room for it",
    (
        "inspector/screen/screen.py: return size_after(trace, 0) if resized or trace.before is not None else "
        "trace.num_blocks "
        "-> return size_after(trace, -1) if resized or trace.before is not None else trace.num_blocks"
    ): "no event is before the first",
    "inspector/screen/screen.py: while start < len(kinds): -> while start != len(kinds):": (
        "no piece ends behind the last row"
    ),
    (
        "inspector/screen/screen.py: self.blocks.reserve(min(int(chunk.block.max(initial=-1)) + 1, "
        "self.num_blocks), self.num_blocks) "
        "-> self.blocks.reserve(min(int(chunk.block.max(initial=- 0)) + 1, self.num_blocks), self.num_blocks)"
    ): "room for one that nobody speaks of",
    (
        "inspector/screen/screen.py: self.blocks.reserve(min(int(chunk.block.max(initial=-1)) + 1, "
        "self.num_blocks), self.num_blocks) "
        "-> self.blocks.reserve(min(int(chunk.block.max(initial=-1)) + 2, self.num_blocks), self.num_blocks)"
    ): "room for one more",
    (
        "inspector/screen/screen.py: self.sequences.reserve(int(chunk.seq_id.max(initial=-1)) + 1) "
        "-> self.sequences.reserve(int(chunk.seq_id.max(initial=-1)) + 2)"
    ): "room for one more",
    (
        "inspector/screen/screen.py: self.sequences.reserve(int(chunk.seq_id.max(initial=-1)) + 1) "
        "-> self.sequences.reserve(int(chunk.seq_id.max(initial=- 0)) + 1)"
    ): "room for one that nobody speaks of",
    (
        "inspector/screen/screen.py: if not asking.any() and len(self._unasked) < _MOST_UNASKED: "
        "-> if not asking.any() and len(self._unasked) <= _MOST_UNASKED:"
    ): "one more is kept until somebody asks",
    (
        "inspector/screen/screen.py: for kind, asks, seq, seq_id, aux in zip(*(column.tolist() for column in "
        "columns), strict=True): "
        "-> for kind, asks, seq, seq_id, aux in zip(*(column.tolist() for column in columns), strict=False):"
    ): "the columns are of the same rows, and as long",
    "inspector/screen/screen.py: unheld = blocks.ref == 0 -> unheld = blocks.ref <= 0": (
        "less than none is doubted where it becomes so"
    ),
    (
        'inspector/screen/screen.py: "block left": bool((unheld & blocks.touched & (blocks.place == HELD) & '
        "(blocks.published == 0)).any()), "
        '-> "block left": bool((unheld * blocks.touched & (blocks.place == HELD) & (blocks.published == '
        "0)).any()),"
    ): "the product of truth values is that both are true",
    (
        'inspector/screen/screen.py: "block left": bool((unheld & blocks.touched & (blocks.place == HELD) & '
        "(blocks.published == 0)).any()), "
        '-> "block left": bool((unheld & blocks.touched * (blocks.place == HELD) & (blocks.published == '
        "0)).any()),"
    ): "the product of truth values is that both are true",
    (
        'inspector/screen/screen.py: "block left": bool((unheld & blocks.touched & (blocks.place == HELD) & '
        "(blocks.published == 0)).any()), "
        '-> "block left": bool((unheld & blocks.touched & (blocks.place == HELD) * (blocks.published == '
        "0)).any()),"
    ): "the product of truth values is that both are true",
    (
        'inspector/screen/screen.py: "quarantine left": bool(((blocks.place == QUARANTINED) & '
        "(blocks.last_use <= done)).any()), "
        '-> "quarantine left": bool(((blocks.place == QUARANTINED) // (blocks.last_use <= done)).any()),'
    ): "the quotient of truth values, 0 where the second is not, is that both are true",
    (
        'inspector/screen/screen.py: "quarantine left": bool(((blocks.place == QUARANTINED) & '
        "(blocks.last_use <= done)).any()), "
        '-> "quarantine left": bool(((blocks.place >= QUARANTINED) & (blocks.last_use <= done)).any()),'
    ): "QUARANTINED is the greatest of the places",
    (
        "inspector/screen/sequences.py: _OVER = table(dict.fromkeys(BEGINS, 0) | dict.fromkeys(ENDS, 1), -1) "
        "-> _OVER = table(dict.fromkeys(BEGINS, 0) | dict.fromkeys(ENDS, 1), - 2)"
    ): "any number below 0 says that the kind changes nothing",
    (
        "inspector/screen/sequences.py: self.sched_step = np.full(count, -1, dtype=np.int64) "
        "-> self.sched_step = np.full(count, - 2, dtype=np.int64)"
    ): "any number below 0 says that it was in no step",
    (
        "inspector/screen/sequences.py: self.sched_seq = np.full(count, -1, dtype=np.int64) "
        "-> self.sched_seq = np.full(count, - 2, dtype=np.int64)"
    ): "any number below 0 names no event",
    (
        "inspector/screen/sequences.py: self.tail_sched = np.where(self.kept.last >= 0, "
        "sorted_[self.kept.last], -1) "
        "-> self.tail_sched = np.where(self.kept.last >= 0, sorted_[self.kept.last], - 2)"
    ): "any number below 0 says that there is none",
    (
        "inspector/screen/sequences.py: joins = self.is_(Kind.SHARE) | self.is_(Kind.HIT) "
        "-> joins = self.is_(Kind.SHARE) ^ self.is_(Kind.HIT)"
    ): "a row is of one kind: no two are true",
    (
        "inspector/screen/sequences.py: reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 1), "
        "self.kept.reach) "
        "-> reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 0), self.kept.reach)"
    ): "positions as far out are doubted where they are told",
    (
        "inspector/screen/sequences.py: reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 1), "
        "self.kept.reach) "
        "-> reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST ^ 1), self.kept.reach)"
    ): "positions as far out are doubted where they are told",
    (
        "inspector/screen/sequences.py: reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 1), "
        "self.kept.reach) "
        "-> reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 2), self.kept.reach)"
    ): "positions as far out are doubted where they are told",
    (
        "inspector/screen/sequences.py: said = np.full(chunk.length, -1, dtype=np.int64) "
        "-> said = np.full(chunk.length, - 2, dtype=np.int64)"
    ): "any number below 0 says that the row changes nothing",
    (
        "inspector/screen/sequences.py: self.left_over = (sign * (before == 1) + entries * (before != 1)) * "
        "(over == 1) "
        "-> self.left_over = (sign * (before == 1) + entries * (before != 1)) * (over >= 1)"
    ): "it is 0 or 1",
    (
        "inspector/screen/sequences.py: self.left_over = (sign * (before == 1) + entries * (before != 1)) * "
        "(over == 1) "
        "-> self.left_over = (sign * (before == 1) + entries * (before < 1)) * (over == 1)"
    ): "it is 0 or 1",
    (
        "inspector/screen/sequences.py: self.left_over = (sign * (before == 1) + entries * (before != 1)) * "
        "(over == 1) "
        "-> self.left_over = (sign * (before >= 1) + entries * (before != 1)) * (over == 1)"
    ): "it is 0 or 1",
    (
        "inspector/screen/sequences.py: self.used[rows] = np.where((since >= 0) & (since < seq[release]), "
        "step[release] + 1, 0) "
        "-> self.used[rows] = np.where((since >= 0) & (since <= seq[release]), step[release] + 1, 0)"
    ): "no event takes an entry and reads it",
    (
        'inspector/screen/blocks.py: self._suspect("copy details", self.rows[copy][(copies < 0) | (copies > '
        "size)]) "
        '-> self._suspect("copy details", self.rows[copy][(copies < 0) ^ (copies > size)])'
    ): "never both",
    (
        "inspector/screen/blocks.py: self.written = np.maximum(before * ~alloc, reach) "
        "-> self.written = np.maximum(before ** ~alloc, reach)"
    ): "what a hand-out has written nobody asks",
    (
        "inspector/screen/blocks.py: picked = np.flatnonzero((chunk.lblock[hits] > 0) & (detail.at >= 0)) "
        "-> picked = np.flatnonzero((chunk.lblock[hits] > 0) // (detail.at >= 0))"
    ): "the quotient of truth values, 0 where the second is not, is that both are true",
    (
        "inspector/screen/blocks.py: code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + "
        "(self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 5 + (self.place == QUARANTINED) * 2"
    ): "what is leased counts alike whether it is published or not",
    (
        "inspector/screen/columns.py: self.present = np.bincount(self.kind, minlength=256) if present is None"
        " else present "
        "-> self.present = np.bincount(self.kind, minlength= 255) if present is None else present"
    ): "no kind has so great a number",
    (
        "inspector/screen/columns.py: out: EventArray = words.take(rows, axis=0).reshape(-1).view(dtype) "
        "-> out: EventArray = words.take(rows, axis=0).reshape(- 2).view(dtype)"
    ): "any number below 0 stands for as many as there are",
    (
        "inspector/screen/columns.py: out[rows[whole]] = told[:, 0] + told[:, 1] * _ODD "
        "-> out[rows[whole]] = told[:, 0] ^ told[:, 1] * _ODD"
    ): "another word for each table, as different",
    (
        "inspector/screen/columns.py: out[rows[whole]] = told[:, 0] + told[:, 1] * _ODD "
        "-> out[rows[whole]] = told[:, 0] - told[:, 1] * _ODD"
    ): "another word for each table, as different",
    (
        "inspector/screen/details.py: return seqs, values.reshape(-1, width) "
        "-> return seqs, values.reshape(- 2, width)"
    ): "any number below 0 stands for as many as there are",
    (
        "inspector/screen/details.py: self.ragged |= kind.count(kind[:1]) != len(kind) "
        "-> self.ragged |= kind.count(kind[:1]) < len(kind)"
    ): "no more are of the first one's kind than there are",
    (
        "inspector/screen/entries.py: sound_take = ~own | (before == 0) | ((before == 1) & replaces) "
        "-> sound_take = ~own | (before == 0) | ((before <= 1) & replaces)"
    ): "a place that holds less than nothing is suspected from the row on that made it so",
    (
        "inspector/screen/plain.py: read &= (lo[2:] >= 0) & (hi[2:] >= lo[2:]) & (hi[2:] <= reach[1:-1]) "
        "-> read &= (lo[2:] >= 0) & (hi[2:] >= lo[2:]) & (hi[2:] == reach[1:-1])"
    ): "rows that read less are judged in full",
    (
        "inspector/screen/runs.py: segment = np.cumsum(self.first | resets) << 40 "
        "-> segment = np.cumsum(self.first | resets) << 41"
    ): "a bit of room more between the segments",
    (
        'inspector/screen/screen.py: found["resize"] = np.zeros(1, dtype=np.int64) '
        '-> found["resize"] = np.zeros( 2, dtype=np.int64)'
    ): "the same row, named twice",
    (
        "inspector/screen/screen.py: if not asking.any() and len(self._unasked) < _MOST_UNASKED: "
        "-> if not asking.any() and len(self._unasked) == _MOST_UNASKED:"
    ): "gone through at once instead of when somebody asks, in the same order",
    (
        "inspector/screen/sequences.py: self.tail_sched = np.where(self.kept.last >= 0, "
        "sorted_[self.kept.last], -1) "
        "-> self.tail_sched = np.where(self.kept.last >= 1, sorted_[self.kept.last], -1)"
    ): "a tail stands behind the rows that it goes on with: it is not the first",
    (
        "inspector/screen/sequences.py: self.tail_sched = np.where(self.kept.last >= 0, "
        "sorted_[self.kept.last], -1) "
        "-> self.tail_sched = np.where(self.kept.last > 0, sorted_[self.kept.last], -1)"
    ): "a tail stands behind the rows that it goes on with: it is not the first",
    (
        'inspector/screen/sequences.py: self.must("new block", ~alloc | chunk.starts_copy[self.rows] | (base '
        ">= before)) "
        '-> self.must("new block", ~alloc + chunk.starts_copy[self.rows] | (base >= before))'
    ): "the sum of truth values is that one of them is true",
    (
        "inspector/screen/sequences.py: rows = np.flatnonzero(behind | _BEGINS[chunk.kind]) "
        "-> rows = np.flatnonzero(behind ^ _BEGINS[chunk.kind])"
    ): "a row is of one kind: no two are true",
    (
        "inspector/screen/sequences.py: self.left_over = (sign * (before == 1) + entries * (before != 1)) * "
        "(over == 1) "
        "-> self.left_over = (sign * (before == 1) | entries * (before != 1)) * (over == 1)"
    ): "one of the two is 0",
    (
        "inspector/screen/sequences.py: self.left_over = (sign * (before == 1) + entries * (before != 1)) * "
        "(over == 1) "
        "-> self.left_over = (sign * (before == 1) ^ entries * (before != 1)) * (over == 1)"
    ): "one of the two is 0",
    (
        "inspector/screen/blocks.py: code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + "
        "(self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 8 + (self.leases != 0) * 4 + (self.place == QUARANTINED) * 2"
    ): "less than none is doubted before it is counted",
    (
        "inspector/screen/blocks.py: code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + "
        "(self.place == QUARANTINED) * 2 "
        "-> code = np.minimum(self.entries, 2) * 9 + (self.leases > 0) * 4 + (self.place == QUARANTINED) * 2"
    ): "of a number of entries all eight states are the same",
    "inspector/screen/columns.py: rows = rows[rows >= 2] -> rows = rows[rows >= 1]": (
        "no life begins behind what is copied into it"
    ),
    (
        'inspector/screen/entries.py: suspects["writer"] = np.concatenate([*bad, suspects.get("writer", '
        "bad[0][:0])]) "
        '-> suspects["writer"] = np.concatenate([*bad, suspects.get("writer", bad[0][: -1])])'
    ): "the same rows, some of them twice",
    (
        'inspector/screen/entries.py: suspects["writer"] = np.concatenate([*bad, suspects.get("writer", '
        "bad[0][:0])]) "
        '-> suspects["writer"] = np.concatenate([*bad, suspects.get("writer", bad[0][: 1])])'
    ): "the same rows, one of them twice",
    "inspector/screen/plain.py: same = sequences[2:] == sequences[:-2] -> same = sequences[2:] <= sequences[:-2]": (
        "the sequences are sorted"
    ),
    (
        "inspector/screen/runs.py: bits = int(rows[-1]).bit_length() if len(rows) else 1 "
        "-> bits = int(rows[-1]).bit_length() if len(rows) else 0"
    ): "there is nothing to sort",
    (
        "inspector/screen/runs.py: bits = int(rows[-1]).bit_length() if len(rows) else 1 "
        "-> bits = int(rows[-1]).bit_length() if len(rows) else 2"
    ): "there is nothing to sort",
    (
        "inspector/screen/screen.py: if at < len(begins) and begins[at] - start < (1 << ROW_BITS) - 1 - "
        "CHUNK: "
        "-> if at < len(begins) and begins[at] - start < (1 << ROW_BITS) - 1 ^ CHUNK:"
    ): "the bit of the one is set in the other",
    "inspector/screen/screen.py: self._begun = self._ended = 0  # steps -> self._begun = self._ended = 1  # steps": (
        "steps are compared with steps alone: all of them are counted from another number on"
    ),
    (
        "inspector/screen/sequences.py: reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 1), "
        "self.kept.reach) "
        "-> reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST ** 1), self.kept.reach)"
    ): "positions as far out are doubted where they are told",
    (
        "inspector/screen/sequences.py: gone = self.is_(Kind.RELEASE) & "
        "self.pass_of_entries.current[self.rows] "
        "-> gone = self.is_(Kind.RELEASE) * self.pass_of_entries.current[self.rows]"
    ): "the product of truth values is that both are true",
    (
        "inspector/screen/sequences.py: reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 1), "
        "self.kept.reach) "
        "-> reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST / 1), self.kept.reach)"
    ): "positions as far out are doubted where they are told",
    (
        'inspector/screen/sequences.py: self.must("new block", ~alloc | chunk.starts_copy[self.rows] | (base '
        ">= before)) "
        '-> self.must("new block", ~alloc ^ chunk.starts_copy[self.rows] | (base >= before))'
    ): "only a hand-out starts a copy: never both",
}  # fmt: skip
