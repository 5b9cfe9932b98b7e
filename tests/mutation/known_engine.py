"""Survivors in the pool, the tables and the prefix cache that no test can tell apart from the original, and why."""

from __future__ import annotations

# `module: before -> after`. Each is argued for itself: a kind of mutant is never excused.
ENGINE: dict[str, str] = {
    "engine/free_list.py: if end <= self._capacity: -> if end < self._capacity:": (
        "a run that ends where the ring does is put together of itself and of nothing"
    ),
    "engine/free_list.py: self._capacity = 2 * num_blocks + 16 -> self._capacity = 1 * num_blocks + 16": (
        "a ring of as many places as there are blocks never overflows, however far round it goes"
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
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY + _INDEXED  # and words of one entry below this"
    ): "no bit is in both",
    (
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY ^ _INDEXED  # and words of one entry below this"
    ): "no bit is in both",
    "engine/pool.py: _HANDED_OUT = ENTRY | WRITING * STATE -> _HANDED_OUT = ENTRY + WRITING * STATE": (
        "no bit is in both"
    ),
    "engine/pool.py: elif held == 2: -> elif held <= 2:": "the first holder is told above, and there is one at least",
    "engine/pool.py: self.num_shared -= held == 2 -> self.num_shared -= held <= 2": "one is too few to get here",
    (
        "engine/pool.py: ENTRY <= word < _PLAIN_END  # its only holder, and not in the index "
        "-> ENTRY <= word == _PLAIN_END  # its only holder, and not in the index"
    ): "what is in the index is full, so its word is greater: all go the longer way, to the same rows",
    (
        "engine/pool.py: ENTRY <= word < _PLAIN_END  # its only holder, and not in the index "
        "-> ENTRY == word < _PLAIN_END  # its only holder, and not in the index"
    ): "a held block has a state, so its word is greater: all go the longer way, to the same rows",
    (
        "engine/pool.py: ENTRY <= word < _PLAIN_END  # its only holder, and not in the index "
        "-> ENTRY < word < _PLAIN_END  # its only holder, and not in the index"
    ): "a held block has a state, so its word is greater than that of an entry alone",
    (
        "engine/pool.py: ENTRY <= word < _PLAIN_END  # its only holder, and not in the index "
        "-> ENTRY <= word <= _PLAIN_END  # its only holder, and not in the index"
    ): "what is in the index is full, so its word is greater",
    (
        "engine/pool.py: and self.newest_use <= self.completed_step -> and self.newest_use == self.completed_step"
    ): "no step has ended that did not begin: it is never less",
    (
        "engine/pool.py: quiet = self.open_leases == 0 and self.newest_use <= self.completed_step "
        "-> quiet = self.open_leases == 0 and self.newest_use == self.completed_step"
    ): "no step has ended that did not begin: it is never less",
    "engine/pool.py: and self.open_leases == 0 -> and self.open_leases <= 0": "leases are never less than 0",
    (
        "engine/pool.py: alike = self.open_leases == 0 and low == high "
        "-> alike = self.open_leases <= 0 and low == high"
    ): "leases are never less than 0",
    (
        "engine/pool.py: alike = self.open_leases == 0 and low == high "
        "-> alike = self.open_leases == 0 and low >= high"
    ): "the least is never above the greatest",
    (
        "engine/pool.py: alike = self.open_leases == 0 and low == high "
        "-> alike = self.open_leases == 0 and low > high"
    ): "never: the same references are told as an array of equal numbers",
    "engine/pool.py: if data[8:] == data[:-8]: -> if data[ 9:] == data[:-8]:": (
        "never equal, as the lengths differ: least and greatest are then looked for"
    ),
    "engine/pool.py: if data[8:] == data[:-8]: -> if data[ 7:] == data[:-8]:": (
        "never equal, as the lengths differ: least and greatest are then looked for"
    ),
    "engine/pool.py: if data[8:] == data[:-8]: -> if data[8:] == data[:- 9]:": (
        "never equal, as the lengths differ: least and greatest are then looked for"
    ),
    "engine/block_arrays.py: if added > 0: -> if added > -1:": "none are added: the arrays are copied",
    "engine/block_arrays.py: if added > 0: -> if added >= 0:": "none are added: the arrays are copied",
    (
        "engine/free_list.py: self._head = start if start >= 0 else start + self._capacity "
        "-> self._head = start if start >= 1 else start + self._capacity"
    ): "the place behind the last one is the first one",
    (
        "engine/free_list.py: self._head = start if start >= 0 else start + self._capacity "
        "-> self._head = start if start > 0 else start + self._capacity"
    ): "the place behind the last one is the first one",
    (
        "engine/table_core.py: "
        "pool.entries[block] > 1 or pool.state[block] == BlockState.PUBLISHED or slot < pool.leased_slots[block] "
        "-> pool.entries[block] > 1 or pool.state[block] >= BlockState.PUBLISHED or slot < pool.leased_slots[block]"
    ): "a block that a table holds is in none of the states behind",
    "engine/table_core.py: return -1 -> return - 2": "no row has this number, and without a sink nobody looks for it",
    "engine/table_core.py: return -1 -> return - 0": "without a sink nobody asks for the number",
    "engine/table_core.py: return -1 -> return +1": "without a sink nobody asks for the number",
    "engine/table_core.py: return -1 -> return ~1": "without a sink nobody asks for the number",
    "engine/table_core.py: return -1 -> return 1": "without a sink nobody asks for the number",
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
        "engine/pool.py: alike = low == high  # as a rule: blocks of a prefix are full, and shared by the same tables "
        "-> alike = low >= high  # as a rule: blocks of a prefix are full, and shared by the same tables"
    ): "the least is never above the greatest",
    (
        "engine/prefix.py: self._key = secrets.token_bytes(32) if key is None else key "
        "-> self._key = secrets.token_bytes( 31) if key is None else key"
    ): "a random key, a byte shorter",
    (
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY >> _INDEXED  # and words of one entry below this"
    ): "no word of a held block is below it: all go the longer way, to the same rows",
    (
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY / _INDEXED  # and words of one entry below this"
    ): "no word of a held block is below it: all go the longer way, to the same rows",
    (
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY // _INDEXED  # and words of one entry below this"
    ): "no word of a held block is below it: all go the longer way, to the same rows",
    (
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY % _INDEXED  # and words of one entry below this"
    ): "no word of a held block is below it: all go the longer way, to the same rows",
    (
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY & _INDEXED  # and words of one entry below this"
    ): "no word of a held block is below it: all go the longer way, to the same rows",
    (
        "engine/pool.py: _PLAIN_END = ENTRY | _INDEXED  # and words of one entry below this "
        "-> _PLAIN_END = ENTRY - _INDEXED  # and words of one entry below this"
    ): "no word of a held block is below it: all go the longer way, to the same rows",
    (
        "engine/block_arrays.py: in_transit = int(np.count_nonzero(self.state == BlockState.IN_TRANSIT)) if "
        "self.open_leases else 0 "
        "-> in_transit = int(np.count_nonzero(self.state >= BlockState.IN_TRANSIT)) if self.open_leases else 0"
    ): "IN_TRANSIT is the greatest of the states",
    (
        "engine/pool.py: fill: Ints = low & FILL_MASK if low == high else words & FILL_MASK "
        "-> fill: Ints = low & FILL_MASK if low > high else words & FILL_MASK"
    ): "never: the same fill is told as an array of equal numbers",
    (
        "engine/prefix.py: self.plain = type(self).child is PrefixIndex.child and type(self).publish is "
        "PrefixIndex.publish "
        "-> self.plain = type(self).child is PrefixIndex.child and type(self).publish == PrefixIndex.publish"
    ): "functions are equal when they are the same",
    (
        "engine/prefix.py: self.plain = type(self).child is PrefixIndex.child and type(self).publish is "
        "PrefixIndex.publish "
        "-> self.plain = type(self).child == PrefixIndex.child and type(self).publish is PrefixIndex.publish"
    ): "functions are equal when they are the same",
    (
        "engine/prefix_store.py: self._width = 1 + 4 * block_size  # of packed tokens "
        "-> self._width = 1 % 4 * block_size  # of packed tokens"
    ): "the first entry widens it",
    (
        "engine/table_core.py: pool.entries[block] > 1 or pool.state[block] == BlockState.PUBLISHED or slot < "
        "pool.leased_slots[block] "
        "-> pool.entries[block] != 1 or pool.state[block] == BlockState.PUBLISHED or slot < pool.leased_slots[block]"
    ): "a block that a table holds has one entry at least",
    (
        "engine/table_core.py: own = type(self)._write is TableCore._write and type(self)._needs_copy is "
        "TableCore._needs_copy "
        "-> own = type(self)._write is TableCore._write and type(self)._needs_copy == TableCore._needs_copy"
    ): "functions are equal when they are the same",
    "engine/block_life.py: if self._state[block] == CACHED: -> if self._state[block] >= CACHED:": (
        "a block in transit stays there, and nobody leases one in quarantine"
    ),
    "engine/pool.py: elif self._entries[block] == 0: -> elif self._entries[block] <= 0:": (
        "entries are never less than 0"
    ),
    "engine/pool.py: and self.open_leases == 0 -> and self.open_leases < 0": (
        "never: all go the longer way, to the same rows"
    ),
    "engine/pool.py: if held > 1: -> if held != 1:": "whoever gets here held an entry",
    "engine/pool.py: if low < ENTRY: -> if low <= ENTRY:": (
        "a held block has a state, so its word is greater than that of an entry alone"
    ),
    (
        "engine/pool.py: plain = quiet and high < _PLAIN_END  # one entry each, not published: all of them "
        "are free now "
        "-> plain = quiet and high <= _PLAIN_END  # one entry each, not published: all of them are free now"
    ): "what is in the index is full, so its word is greater",
    "engine/tables.py: elif gone > 0: -> elif gone >= 0:": "nothing that was digested is gone: nothing is subtracted",
    "engine/tables.py: elif gone > 0: -> elif gone > -1:": "nothing that was digested is gone: nothing is subtracted",
    "engine/tables.py: if start < end: -> if start <= end:": "no entry is new: nothing is added",
    (
        "engine/tables.py: entries = zip(self.blocks[start:], self.gens[start:], range(start, end), "
        "strict=True) "
        "-> entries = zip(self.blocks[start:], self.gens[start:], range(start, end), strict=False)"
    ): "a row has as many lives as blocks, and ends where they do",
    "engine/tables.py: @dataclass(frozen=True, slots=True) -> @dataclass(frozen=True, slots=False)": (
        "the same fields, in a dictionary"
    ),
    "engine/prefix_cache.py: if i >= usable: -> if i == usable:": (
        "the walk goes block by block: it never gets beyond the first that is not usable"
    ),
    (
        "engine/prefix_store.py: return ROOT + parent if self._place[block] == FIRST else parent "
        "-> return ROOT + parent if self._place[block] <= FIRST else parent"
    ): "it is asked of blocks in the index alone",
    (
        "engine/prefix_store.py: self._width = 1 + 4 * block_size  # of packed tokens "
        "-> self._width = 1 * 4 * block_size  # of packed tokens"
    ): "the first entry widens it",
    (
        "engine/prefix_cache.py: lblock == 0 or (blocks[lblock - 1] >= 0 and index.serves(blocks[lblock - 1],"
        " parent)) "
        "-> lblock == 0 or (blocks[lblock // 1] >= 0 and index.serves(blocks[lblock - 1], parent))"
    ): "of the block -1 that stands for none no hash is kept",
    (
        "engine/prefix_cache.py: if self._computing and not self._computing.keys().isdisjoint(hashes): "
        "-> if self._computing or not self._computing.keys().isdisjoint(hashes):"
    ): "row by row instead, to the same entries",
    (
        "engine/block_arrays.py: self.newest_use = -1  # the step begun last "
        "-> self.newest_use = 1  # the step begun last"
    ): "until a step begins all go the longer way, to the same rows",
    "engine/pool.py: if lblock.__class__ is int: -> if lblock.__class__ == int:": (
        "classes are equal when they are the same"
    ),
    (
        "engine/pool.py: alike = low == high  # as a rule: blocks of a prefix are full, and shared by the "
        "same tables "
        "-> alike = low > high  # as a rule: blocks of a prefix are full, and shared by the same tables"
    ): "never: the same rows are told as arrays of equal numbers",
    (
        "engine/pool.py: alone = (len(blocks) if low < 2 * ENTRY else 0) if alike else "
        "int(np.count_nonzero(words < 2 * ENTRY)) "
        "-> alone = (len(blocks) if low < 2 * ENTRY else 0) if alike else int(np.count_nonzero(words <= 2 * "
        "ENTRY))"
    ): "a held block has a state, so its word is greater than that of its entries alone",
    (
        "engine/pool.py: alone = (len(blocks) if low < 2 * ENTRY else 0) if alike else "
        "int(np.count_nonzero(words < 2 * ENTRY)) "
        "-> alone = (len(blocks) if low <= 2 * ENTRY else 0) if alike else int(np.count_nonzero(words < 2 * "
        "ENTRY))"
    ): "a held block has a state, so its word is greater than that of its entries alone",
    "engine/pool.py: unheld = words < ENTRY -> unheld = words <= ENTRY": (
        "a held block has a state, so its word is greater than that of an entry alone"
    ),
    (
        "engine/pool.py: alike = self.open_leases == 0 and low == high "
        "-> alike = self.open_leases < 0 and low == high"
    ): "never: the same references are told as an array of equal numbers",
    "engine/prefix.py: elif known != block: -> elif known >= block:": "one block alone is kept as a set of one, too",
    (
        "engine/prefix.py: _KEY_BYTES = 7  # of a hash, in the dictionary: a number of 56 bits takes no more "
        "memory than a small one "
        "-> _KEY_BYTES = 6  # of a hash, in the dictionary: a number of 56 bits takes no more memory than a "
        "small one"
    ): "a shorter key, as rarely that of two hashes as can be tried",
    "engine/orphans.py: block = behind[0] -> block = behind[ -1]": (
        "another of several that stand behind the same block goes first"
    ),
    (
        "engine/block_life.py: valid = (self.gen[blocks] == gens) & ((state == WRITING) | (state == "
        "COMMITTED)) "
        "-> valid = (self.gen[blocks] == gens) & ((state == WRITING) ^ (state == COMMITTED))"
    ): "never both",
    "engine/free_list.py: if start >= self._capacity: -> if start > self._capacity:": (
        "at the ring's end there is room for none: all go to its beginning"
    ),
    (
        "engine/free_list.py: places = (self._head + np.arange(self._filed)) % self._capacity "
        "-> places = (self._head + np.arange(self._filed)) - self._capacity"
    ): "a place below 0 is counted from the ring's end",
    "engine/pool.py: if count > free.count: -> if count != free.count:": (
        "where there are more than that, nothing is evicted"
    ),
    (
        "engine/block_arrays.py: return dict(zip(_COUNTED, self.tally(), strict=True)) "
        "-> return dict(zip(_COUNTED, self.tally(), strict=False))"
    ): "there are as many names as counts",
    (
        "engine/free_list.py: blocks = np.concatenate([self._ring[head:], self._ring[: end - "
        "self._capacity]]) "
        "-> blocks = np.concatenate([self._ring[head:], self._ring[: end % self._capacity]])"
    ): "no run goes round the ring twice",
    (
        "engine/free_list.py: self._head = end if end < self._capacity else end - self._capacity "
        "-> self._head = end if end < self._capacity else end % self._capacity"
    ): "no run goes round the ring twice",
    "engine/pool.py: and self.newest_use <= self.completed_step -> and self.newest_use < self.completed_step": (
        "never: all go the longer way, to the same rows"
    ),
    (
        "engine/pool.py: alike = self.open_leases == 0 and low == high "
        "-> alike = self.open_leases == -1 and low == high"
    ): "never: the same references are told as an array of equal numbers",
    (
        "engine/prefix_store.py: size = 1 + (4 if self._tokens[at] == NARROW else 8) * self.block_size "
        "-> size = 1 + (4 if self._tokens[at] <= NARROW else 8) * self.block_size"
    ): "of the two letters it is the lesser",
}  # fmt: skip
