"""Survivors in the detectors that no test can tell apart from the original, and why."""

from __future__ import annotations

# `module: before -> after`. Each is argued for itself: a kind of mutant is never excused.
REPLAY: dict[str, str] = {
    (
        "inspector/detectors/records.py: last_use: int = -1  # ordinal of the last step that used it, known once it is "
        "released -> last_use: int = - 2  # ordinal of the last step that used it, known once it is released"
    ): "the same: any number below that of the first step says that none used it",
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
        "inspector/detectors/ledger.py: "
        'first = -1 if stale else block.released.get(key, block.story.get("released", -1)) '
        '-> first = - 2 if stale else block.released.get(key, block.story.get("released", -1))'
    ): "any number below 0 names no event",
    (
        "inspector/detectors/ledger.py: "
        'first = -1 if stale else block.released.get(key, block.story.get("released", -1)) '
        '-> first = ~1 if stale else block.released.get(key, block.story.get("released", -1))'
    ): "any number below 0 names no event",
    (
        "inspector/detectors/ledger.py: if block.known and (block.place == FREE or 0 <= row.gen < block.gen): "
        "-> if block.known and (block.place <= FREE or 0 <= row.gen < block.gen):"
    ): "of the words for places `free` comes first",
    (
        "inspector/detectors/life.py: size, full = self.ledger.block_size, True "
        "-> size, full = self.ledger.block_size, False"
    ): "where no block is looked at, it ends below what was looked at already: nothing is raised",
    (
        "inspector/detectors/replay.py: block.written, block.last_use, block.unbound_write = 0, -1, -1 "
        "-> block.written, block.last_use, block.unbound_write = 0, -1, - 2"
    ): "any number below 0 names no event",
    (
        "inspector/detectors/replay.py: block.written, block.last_use, block.unbound_write = 0, -1, -1 "
        "-> block.written, block.last_use, block.unbound_write = 0, -1, ~1"
    ): "any number below 0 names no event",
    (
        "inspector/detectors/replay.py: block.written, block.last_use, block.unbound_write = 0, -1, -1 "
        "-> block.written, block.last_use, block.unbound_write = 0, - 2, -1"
    ): "any number below that of the first step says that none used it",
    (
        "inspector/detectors/replay.py: block.written, block.last_use, block.unbound_write = 0, -1, -1 "
        "-> block.written, block.last_use, block.unbound_write = 0, ~1, -1"
    ): "any number below that of the first step says that none used it",
    "inspector/detectors/replay.py: if row.kind == Kind.HIT: -> if row.kind >= Kind.HIT:": (
        "hits and shares come here, and a share has the smaller number"
    ),
    "inspector/online.py: later = end < self._sink.next_seq -> later = end != self._sink.next_seq": (
        "no more is looked at than there is"
    ),
    "inspector/online.py: later = end < self._sink.next_seq -> later = end <= self._sink.next_seq": (
        "what is kept is picked by its number all the same"
    ),
    (
        "inspector/detectors/ledger.py: previous = max((s for s in block.story.values() if s < self.ledger.seq), "
        "default=-1) "
        "-> previous = max((s for s in block.story.values() if s != self.ledger.seq), default=-1)"
    ): "no story tells of an event that is still to come",
    (
        'inspector/detectors/ledger.py: host, own = self.ledger.host, fields.get("host_used", -1) '
        '-> host, own = self.ledger.host, fields.get("host_used", - 2)'
    ): "any number below 0 says that none is told",
    (
        "inspector/detectors/ledger.py: for (seq, row), counted, size in zip(self._witnesses, made.tolist(), "
        "sizes.tolist(), strict=True): "
        "-> for (seq, row), counted, size in zip(self._witnesses, made.tolist(), sizes.tolist(), strict=False):"
    ): "counts and sizes are of the same witnesses, and as many",
    (
        "inspector/detectors/replay.py: self.blocks[write.block].unbound_write = -1 "
        "-> self.blocks[write.block].unbound_write = ~1"
    ): "any number below 0 names no event",
    (
        "inspector/detectors/replay.py: self.blocks[write.block].unbound_write = -1 "
        "-> self.blocks[write.block].unbound_write = - 2"
    ): "any number below 0 names no event",
    (
        "inspector/detectors/replay.py: block.unbound_write = -1 "
        "-> block.unbound_write = ~1"
    ): "any number below 0 names no event",
    (
        "inspector/detectors/replay.py: block.unbound_write = -1 "
        "-> block.unbound_write = - 2"
    ): "any number below 0 names no event",
    (
        'inspector/online.py: if new and self._reaction == "raise": '
        '-> if new and self._reaction >= "raise":'
    ): "of the two reactions `raise` is the greater word",
    (
        "inspector/detectors/ledger.py: self._host_said = own if off else -1 "
        "-> self._host_said = own if off else - 2"
    ): "any number below 0 says that none was wrong",
    (
        "inspector/detectors/ledger.py: self._host_said = own if off else -1 "
        "-> self._host_said = own if off else ~1"
    ): "any number below 0 says that none was wrong",
    (
        "inspector/detectors/beside.py: values = (*told, *(0, 0, -1, -1, -1, -1)[len(told) :]) "
        "-> values = (*told, *(0, 0, -1, -1, ~1, -1)[len(told) :])"
    ): "any number below 0 names no sequence",
    (
        "inspector/detectors/beside.py: values = (*told, *(0, 0, -1, -1, -1, -1)[len(told) :]) "
        "-> values = (*told, *(0, 0, -1, -1, - 2, -1)[len(told) :])"
    ): "any number below 0 names no sequence",
    "inspector/detectors/beside.py: if row.reason == Reason.POISON: -> if row.reason >= Reason.POISON:": (
        "of the two reasons that it looks at it is the greater"
    ),
    (
        "inspector/detectors/ledger.py: first = -1 if stale else block.released.get(key, "
        'block.story.get("released", -1)) '
        '-> first = -1 if stale else block.released.get(key, block.story.get("released", ~1))'
    ): "any number below 0 names no event",
    (
        "inspector/detectors/ledger.py: first = -1 if stale else block.released.get(key, "
        'block.story.get("released", -1)) '
        '-> first = -1 if stale else block.released.get(key, block.story.get("released", - 2))'
    ): "any number below 0 names no event",
    (
        "inspector/detectors/ledger.py: previous = max((s for s in block.story.values() if s < "
        "self.ledger.seq), default=-1) "
        "-> previous = max((s for s in block.story.values() if s < self.ledger.seq), default=~1)"
    ): "any number below 0 names no event",
    (
        "inspector/detectors/ledger.py: previous = max((s for s in block.story.values() if s < "
        "self.ledger.seq), default=-1) "
        "-> previous = max((s for s in block.story.values() if s < self.ledger.seq), default=- 2)"
    ): "any number below 0 names no event",
    "inspector/detectors/ledger.py: self._host_said = -1 -> self._host_said = - 2": (
        "any number below 0 says that none was wrong"
    ),
    "inspector/detectors/ledger.py: self._host_said = -1 -> self._host_said = ~1": (
        "any number below 0 says that none was wrong"
    ),
    (
        'inspector/detectors/ledger.py: if getattr(trace, "on_demand", False): '
        '-> if getattr(trace, "on_demand", True):'
    ): "every trace that is replayed says which it is",
    (
        "inspector/detectors/ledger.py: and (self.ledger.begun < 0 or self.ledger.last_begin_seq > since) "
        "-> and (self.ledger.begun < 0 or self.ledger.last_begin_seq >= since)"
    ): "no event is the begin of a step and a lease",
    (
        "inspector/detectors/ledger.py: if not complete or not (sequence.over or since < sequence.began): "
        "-> if not complete or not (sequence.over or since <= sequence.began):"
    ): "no event takes an entry and begins a sequence",
    (
        "inspector/detectors/ledger.py: if sequence.over or since < sequence.ended: "
        "-> if sequence.over or since <= sequence.ended:"
    ): "no event takes an entry and ends a sequence",
    (
        "inspector/detectors/life.py: if not read or not found.known or (found.gen == gen and found.place != "
        "FREE): "
        "-> if not read or not found.known or (found.gen == gen and found.place > FREE):"
    ): "of the words for places `free` is the least",
    (
        "inspector/detectors/replay.py: block.ref, block.ref_other = row.ref_after, -1 "
        "-> block.ref, block.ref_other = row.ref_after, ~1"
    ): "any number below 0 says that there is no other count",
    (
        "inspector/detectors/replay.py: sequence.slid = -1 if row.kind == Kind.FORK else 0  # the first entry"
        " that a fork is given says "
        "-> sequence.slid = -1 if row.kind <= Kind.FORK else 0  # the first entry that a fork is given says"
    ): "of the kinds that begin a sequence FORK has the least number",
    (
        "inspector/detectors/replay.py: sequence.slid = -1 if row.kind == Kind.FORK else 0  # the first entry"
        " that a fork is given says "
        "-> sequence.slid = ~1 if row.kind == Kind.FORK else 0  # the first entry that a fork is given says"
    ): "any number below 0 says that it is not known yet",
    (
        "inspector/detectors/replay.py: sequence.slid = -1 if row.kind == Kind.FORK else 0  # the first entry"
        " that a fork is given says "
        "-> sequence.slid = - 2 if row.kind == Kind.FORK else 0  # the first entry that a fork is given says"
    ): "any number below 0 says that it is not known yet",
    (
        'inspector/online.py: self.every = every if every is not None else 1 if reaction == "raise" else '
        "self._screen.least "
        '-> self.every = every if every is not None else 1 if reaction >= "raise" else self._screen.least'
    ): "of the two reactions `raise` is the greater word",
    "inspector/online.py: if since < _OFTEN_S: -> if since <= _OFTEN_S:": "how often it looks, not what it sees",
    "inspector/online.py: elif since > _SELDOM_S: -> elif since >= _SELDOM_S:": "how often it looks, not what it sees",
    (
        'inspector/online.py: return rows is not None and len(rows) > 0 and int(rows["kind"][0]) == _WITNESS '
        '-> return rows is not None and len(rows) != 0 and int(rows["kind"][0]) == _WITNESS'
    ): "no number of rows is below 0",
    "inspector/detectors/life.py: if entry is None or lo >= hi: -> if entry is None or lo > hi:": (
        "of a block of which nothing is read nothing follows"
    ),
    "inspector/detectors/replay.py: if row.kind != Kind.PREEMPT: -> if row.kind > Kind.PREEMPT:": (
        "of the kinds that end a sequence PREEMPT has the least number"
    ),
    (
        "inspector/detectors/sharing.py: if self._ordered and block.unbound_write >= 0: "
        "-> if self._ordered and block.unbound_write >= 1:"
    ): "a block is handed out before it is written: no write is the first event",
    (
        "inspector/detectors/sharing.py: if self._ordered and block.unbound_write >= 0: "
        "-> if self._ordered and block.unbound_write > 0:"
    ): "a block is handed out before it is written: no write is the first event",
    (
        'inspector/detectors/ledger.py: f"without a holder: {now}" + (f", this one was released at seq '
        '{first} already" if first >= 0 else ""), '
        '-> f"without a holder: {now}" + (f", this one was released at seq {first} already" if first >= 1 '
        'else ""),'
    ): "what is released was handed out before: no release is the first event",
    (
        'inspector/detectors/ledger.py: f"without a holder: {now}" + (f", this one was released at seq '
        '{first} already" if first >= 0 else ""), '
        '-> f"without a holder: {now}" + (f", this one was released at seq {first} already" if first > 0 else'
        ' ""),'
    ): "what is released was handed out before: no release is the first event",
    (
        "inspector/detectors/replay.py: return (not block.held and not block.published) or block.place == "
        "FREE "
        "-> return (not block.held and not block.published) or block.place <= FREE"
    ): "of the words for places `free` is the least",
    "inspector/detectors/replay.py: if sequence.slid < 0: -> if sequence.slid != 0:": (
        "where the number of entries is not the one told, the last entry says it"
    ),
    (
        "inspector/detectors/replay.py: if since is not None and since < sequence.sched_seq: "
        "-> if since is not None and since <= sequence.sched_seq:"
    ): "no event takes an entry and reads it",
    "inspector/detectors/replay.py: if row.ref_after == 0: -> if row.ref_after <= 0:": (
        "what is held stands nowhere else already"
    ),
    (
        "inspector/detectors/replay.py: if not 0 <= lo < hi <= self.block_size: "
        "-> if not -1 <= lo < hi <= self.block_size:"
    ): "the lower end of a packed range is never below 0",
    (
        "inspector/detectors/life.py: if not 0 <= lo < hi <= self.ledger.block_size: "
        "-> if not -1 <= lo < hi <= self.ledger.block_size:"
    ): "the lower end of a packed range is never below 0",
    (
        'inspector/detectors/ledger.py: and block.story["quarantined"] < self.ledger.last_step_seq '
        '-> and block.story["quarantined"] <= self.ledger.last_step_seq'
    ): "no event puts a block in quarantine and ends a step",
    "inspector/detectors/passing.py: self._lo = self._hi = 0 -> self._lo = self._hi = 1": (
        "no event is known yet, wherever the stretch of none begins"
    ),
}  # fmt: skip
