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
    (
        "engine/block_life.py: while self.users and self.users[0][0] <= completed_step: "
        "-> while self.users and self.users[0][0] == completed_step:"
    ): "steps end one by one, in the order they began: the oldest open one is the one that ends",
    (
        "engine/block_life.py: while self.users and self.users[0][0] <= completed_step: "
        "-> while self.users and self.users[ -1][0] <= completed_step:"
    ): "a step that has ended keeps its users for a while: its number fences nothing any more",
    "engine/free_list.py: if len(self.behind) >= AHEAD: -> if len(self.behind) > AHEAD:": (
        "one more id lies in the list before all go into the ring"
    ),
    "engine/free_list.py: room = self._capacity - start -> room = self._capacity % start": (
        "the ring overflows in its second half only, and there both are the same"
    ),
    "engine/pool.py: _HANDED_OUT = ENTRY | WRITING * STATE -> _HANDED_OUT = ENTRY ^ WRITING * STATE": (
        "no bit is in both"
    ),
    (
        "engine/pool.py: "
        "if before > 1 or self._state[block] >= PUBLISHED or self._last_use[block] > self.completed_step: "
        "-> if before != 1 or self._state[block] >= PUBLISHED or self._last_use[block] > self.completed_step:"
    ): "whoever gets here held an entry: there was at least one reference",
    (
        "engine/pool.py: fill: Ints = low & FILL_MASK if low == high else words & FILL_MASK "
        "-> fill: Ints = low & FILL_MASK if low >= high else words & FILL_MASK"
    ): "the least is never above the greatest",
    (
        "engine/pool.py: plain = unheld & (words < _PLAIN_END - ENTRY) "
        "-> plain = unheld & (words == _PLAIN_END - ENTRY)"
    ): "what is not freed as arrays is freed one by one, with the same rows",
    (
        "engine/prefix.py: for parent, block in zip(front, numbers, strict=True): "
        "-> for parent, block in zip(front, numbers, strict=False):"
    ): "both are made of the same blocks, and as long",
    (
        "engine/prefix_store.py: self._width = 1 + 4 * block_size  # of packed tokens "
        "-> self._width = 0 + 4 * block_size  # of packed tokens"
    ): "the first entry widens it",
    (
        "engine/prefix_store.py: size = 1 + (4 if self._tokens[at] == NARROW else 8) * self.block_size "
        "-> size = 1 | (4 if self._tokens[at] == NARROW else 8) * self.block_size"
    ): "the product is even",
    (
        "engine/table_core.py: "
        "own = type(self)._write is TableCore._write and type(self)._needs_copy is TableCore._needs_copy "
        "-> own = type(self)._write == TableCore._write and type(self)._needs_copy is TableCore._needs_copy"
    ): "functions are equal when they are the same",
    (
        'inspector/detectors/ledger.py: host, own = self.ledger.host, fields.get("host_used", -1) '
        '-> host, own = self.ledger.host, fields.get("host_used", ~1)'
    ): "any number below 0 says that none is told",
    (
        "inspector/detectors/life.py: for lblock in range(start // size, (hi + size - 1) // size): "
        "-> for lblock in range(start // size, (hi + size + 1) // size):"
    ): "no slot of the block behind is read: at most what was looked at is looked at again",
    (
        "inspector/detectors/passing.py: if not self._lo <= seq < self._hi: "
        "-> if not self._lo >= seq < self._hi:"
    ): "read again more often, and the same",
    (
        "inspector/detectors/replay.py: self.id_end, self.lost = 2**31, True "
        "-> self.id_end, self.lost = 2** 32, True"
    ): "no id is 2**31 or more: the column has 32 bits",
    (
        "inspector/detectors/replay.py: self.id_end, self.lost = 2**31, True "
        "-> self.id_end, self.lost = 3**31, True"
    ): "no id is 2**31 or more: the column has 32 bits",
    "inspector/detectors/replay.py: if block.place == QUARANTINED: -> if block.place >= QUARANTINED:": (
        "of the words only `unplaced` comes behind it, and that is what it becomes"
    ),
    (
        "inspector/detectors/replay.py: block.ref, block.ref_other = row.ref_after, -1 "
        "-> block.ref, block.ref_other = row.ref_after, - 2"
    ): "any number below 0 says that there is no other count",
    (
        "inspector/detectors/sharing.py: elif found is not None and row.lblock > 0: "
        "-> elif found is not None and row.lblock != 0:"
    ): "nothing stands in front of a block that tells no place",
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
        "inspector/screen/entries.py: if low >= 0 and (int(places.max()) - low).bit_length() + bits < 63: "
        "-> if low != 0 and (int(places.max()) - low).bit_length() + bits < 63:"
    ): "the same order, by one way of sorting or the other",
    "inspector/screen/plain.py: index = (~plain).nonzero()[0] -> index = (~plain).nonzero()[ -1]": (
        "of an array of one dimension it is a tuple of one"
    ),
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
        "inspector/detectors/records.py: self.ref, self.ref_other, self.last_use, self.unbound_write = 0, -1, -1, -1 "
        "-> self.ref, self.ref_other, self.last_use, self.unbound_write = 0, - 0, -1, -1"
    ): "the other count is then what the count is",
    (
        "inspector/detectors/replay.py: self.num_blocks = size_after(trace, 0)  # now; GROW and SHRINK change it "
        "-> self.num_blocks = size_after(trace, -1)  # now; GROW and SHRINK change it"
    ): "no row stands in front of the first one",
    (
        "inspector/detectors/replay.py: sequence.checked_to = min(sequence.checked_to, row.lblock * self.block_size) "
        "-> sequence.checked_to = min(sequence.checked_to, row.lblock // self.block_size)"
    ): "never more, and what lies below is looked at again",
    (
        "inspector/detectors/replay.py: sequence.checked_to = min(sequence.checked_to, row.lblock * self.block_size) "
        "-> sequence.checked_to = min(sequence.checked_to, row.lblock - self.block_size)"
    ): "never more, and what lies below is looked at again",
    (
        "inspector/screen/details.py: "
        "_LEAST = {int(kind): 8 if kind == Kind.WITNESS else width for kind, width in DETAILED.items()}  "
        "# what is not told is -1 "
        "-> _LEAST = {int(kind): 8 if kind >= Kind.WITNESS else width for kind, width in DETAILED.items()}  "
        "# what is not told is -1"
    ): "no kind whose details are looked at has a greater number",
    (
        "engine/pool.py: low, high = low >> 32, high >> 32 -> low, high = low >> 32, high >> 31"
    ): "never equal then: the same references are told as an array of equal numbers",
    (
        "engine/pool.py: alike = low == high  # as a rule: blocks of a prefix are full, and shared by the same tables "
        "-> alike = low >= high  # as a rule: blocks of a prefix are full, and shared by the same tables"
    ): "the least is never above the greatest",
    (
        "engine/tables.py: if keep == self.first or gone >= _MANY: -> if keep > self.first or gone >= _MANY:"
    ): "the same digest, computed anew or by subtraction",
    (
        "engine/prefix.py: self._key = secrets.token_bytes(32) if key is None else key "
        "-> self._key = secrets.token_bytes( 31) if key is None else key"
    ): "a random key, a byte shorter",
    (
        "inspector/screen/blocks.py: "
        'sound &= (copied[:, 0] >= 0) & (chunk.at("gen", after) == copied[:, 1]) '
        '-> sound &= (copied[:, -1] >= 0) & (chunk.at("gen", after) == copied[:, 1])'
    ): "where nothing is known of a copy, source and slots are both -1",
    (
        "inspector/screen/entries.py: "
        "self.since = np.full(chunk.length, -1, dtype=np.int64)  # per RELEASE row: when the entry was taken "
        "-> self.since = np.full(chunk.length, - 0, dtype=np.int64)  # per RELEASE row: when the entry was taken"
    ): "every RELEASE row is given its own, and others are not looked at",
    (
        "inspector/screen/columns.py: "
        "if at[0] >= 0 and at[-1] - at[0] == len(rows) - 1:  # as a rule "
        "-> if at[0] >= 1 and at[-1] - at[0] == len(rows) - 1:  # as a rule"
    ): "the same words, row by row or side by side",
    (
        "inspector/online.py: "
        "if self._drops() > self._dropped:  # what is left tells no whole story "
        "-> if self._drops() != self._dropped:  # what is left tells no whole story"
    ): "what was dropped is never less than before",
    (
        "inspector/online.py: "
        "lost = self._drops() > self._dropped "
        "-> lost = self._drops() != self._dropped"
    ): "what was dropped is never less than before",
    (
        "inspector/online.py: "
        "_AT_ONCE = 256  # events: so few are looked at without waiting for more, where a look costs little "
        "-> _AT_ONCE = 257  # events: so few are looked at without waiting for more, where a look costs little"
    ): "a look asks for 256 events or for 4,096",
    (
        "inspector/screen/details.py: "
        "if kind[0] in _DETAILED: "
        "-> if kind[ -1] in _DETAILED:"
    ): "they are of one kind; where they are not, nothing is looked up",
    (
        "inspector/screen/screen.py: "
        "taken = np.bincount(since[sign > 0], minlength=count) - np.bincount(since[sign < 0], minlength=count) "
        "-> taken = np.bincount(since[sign > 0], minlength=count) - np.bincount(since[sign < 1], minlength=count)"
    ): "of entries that are taken or given back none has the sign 0",
}  # fmt: skip

# Lines of which every mutant that ends, and gives room for what there is, does the same at another speed.
LINES: dict[str, str] = {
    (
        "engine/free_list.py: "
        "return _FIRST_NUMBERS[lo:end] if end <= len(_FIRST_NUMBERS) else np.arange(lo, end, dtype=np.int32)"
    ): "numbers made in advance or now",
    "inspector/detectors/passing.py: _PIECE = 1 << 16": "how many are read at once",
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
