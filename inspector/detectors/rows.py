"""TABLE: the digest of the table row that the worker used, against the table that the events make."""

from __future__ import annotations

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.records import WORD, Block, Row, Sequence, mixed
from kvscope.inspector.detectors.replay import Handler, Ledger
from kvscope.inspector.permuted_rows import Entries, permuted
from kvscope.inspector.source import Names, joined, life
from kvscope.inspector.units import counted
from kvscope.inspector.worker_rows import FormerRows
from kvscope.traces.schema import Kind, to_signed, unpack_range

_MOST_TRIED = 200_000  # entries times lives that are tried to find the one that differs
_SHOWN = 12  # entries of a table that are listed


class Table(Detector):
    """The table row that the worker used is the one that the events make."""

    name, codes = "TABLE", ("KV018",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._wrong: set[int] = set()
        self._lacking: set[int] = set()
        self._left: dict[int, tuple[int, Entries]] = {}  # a preemption, and the table it ended
        self._former = FormerRows()

    def handlers(self) -> dict[Kind, Handler]:
        """Preemptions are only remembered: a trace that has no step has no table to look at."""
        return super().handlers() | {Kind.PREEMPT: self._preempted}

    def _preempted(self, row: Row, block: Block) -> None:
        sequence = self.ledger.sequences.get(row.seq_id)
        if sequence is not None:
            self._left[row.seq_id] = (self.ledger.seq, dict(sequence.table))
            self._former.note(row.seq_id, sequence.table)

    def on_sched(self, row: Row, block: Block) -> None:
        detail = self.ledger.details[Kind.SCHED].get(self.ledger.seq)
        sequence = self.ledger.sequences.get(row.seq_id)
        if sequence is None or not sequence.known:
            return
        if detail is not None and len(detail) > 1:
            self._compare(row, sequence, detail)
        self._lacks(row, sequence)

    def _lacks(self, row: Row, sequence: Sequence) -> None:
        """What a step reads lies in blocks that its table has."""
        lo, hi = unpack_range(row.aux)
        size, table = self.ledger.block_size, sequence.table
        if not table or not 0 <= lo < hi or row.seq_id in self._wrong | self._lacking:
            return
        end = min(-(-hi // size), lo // size + len(table) + 1)
        lacking = next((lblock for lblock in range(lo // size, end) if lblock not in table), -1)
        if lacking < 0:
            return
        self._lacking.add(row.seq_id)
        self.ledger.find(
            "KV018", row, f"the step of {self._names(row.seq_id)} reads positions {lo} to {hi - 1}, but its table has "
            f"no block {lacking}",
        )  # fmt: skip

    def _compare(self, row: Row, sequence: Sequence, detail: tuple[int, ...]) -> None:
        """The worker's row, by its digest and length."""
        digest, length = detail[0], detail[1]
        have = max(sequence.slid, 0) + len(sequence.table)
        if length != have and sequence.table:  # a swapped sequence comes back without the entries that had slid away
            have = max(sequence.table) + 1
        made = self._digest(sequence, length, have)
        if made == digest and length <= have:
            self._wrong.discard(row.seq_id)
        elif row.seq_id not in self._wrong:
            self._wrong.add(row.seq_id)
            how = (
                f"{counted(length, 'block')}, by the events it has {have}"
                if length != have
                else f"{counted(length, 'block')}, not the same"
            )
            which, entry = self._which(sequence, length, have, digest, made)
            why = f"the worker's table of {self._names(row.seq_id)} has {how}: {which}"
            if entry is None:
                self.ledger.find("KV018", row, why)
                return
            preempted, before = self._left.get(row.seq_id, (-1, {}))
            stale = preempted if entry in before.values() else -1
            why += f"; it is the row from before {self._names(row.seq_id)} was preempted (seq {stale})" * (stale >= 0)
            self.ledger.find("KV018", row, why, self.ledger.blocks[entry[0]], gen=entry[1], preempted=stale)

    def _which(
        self, sequence: Sequence, length: int, have: int, digest: int, made: int
    ) -> tuple[str, tuple[int, int] | None]:
        """The entry that differs, found again from the digests where it is a single one; in words, and itself."""
        table, size = sequence.table, max(length, have)
        own = table if length == have else {i: table[i] for i in range(min(length, have)) if i in table}
        if length < have:
            last = ", ".join(f"block {i} {life(*table[i])}" for i in range(length, have) if i in table)
            lacking = next((table[i] for i in range(length, have) if i in table), None)
            return (f"it ends before {last}", lacking) if made == digest else (self._by_events(table, size), None)
        row = self._former.find(sequence.id, table, digest) if length == have else None
        other = {i: entry for i, entry in row.items() if table.get(i) != entry} if row is not None else {}
        if len(other) > 1:
            said = [f"block {i} is {life(*entry)}{self._state(entry)}" for i, entry in sorted(other.items())]
            said = said if len(said) <= _SHOWN else [*said[:_SHOWN], f"{len(said) - _SHOWN} more"]
            return f"for the worker its {joined(said)}; by the events it is {self._listed(table, size)}", min(
                other.items()
            )[1]
        odd = range(have, length) if length > have else range(have)
        many = sum(block.gen for block in self.ledger.blocks.values() if block.id >= 0)
        if len(odd) * many > _MOST_TRIED or (length > have and len(odd) > 1):
            return self._by_events(table, size), None
        lives = self._lives()
        diff = digest - (made if length == have else to_signed(sequence.digest))
        for lblock in odd:
            wanted = (diff + (mixed(*own[lblock], lblock) if lblock in own else 0)) & WORD
            found = next((each for each in lives if mixed(*each, lblock) == wanted), None)
            if found is not None:
                by_events = f", {life(*own[lblock])} by the events" if lblock in own else ", none by the events"
                return f"its block {lblock} is {life(*found)}{self._state(found)} for the worker{by_events}", found
        return self._in_order(table, size, digest) if length == have else (self._by_events(table, size), None)

    def _in_order(self, table: Entries, size: int, digest: int) -> tuple[str, tuple[int, int] | None]:
        """Where the row has its own entries in another order."""
        row = permuted(table, digest)
        moved = [(lblock, entry) for lblock, entry in sorted((row or {}).items()) if entry != table[lblock]]
        if not moved:
            return self._by_events(table, size), None
        said = [f"block {lblock} is {life(*entry)}" for lblock, entry in moved[:_SHOWN]]
        said += [f"{len(moved) - _SHOWN} more"] * (len(moved) > _SHOWN)
        order = f"it has its own entries in another order: for the worker its {joined(said)}"
        return f"{order}; by the events it is {self._listed(table, size)}", moved[0][1]

    def _lives(self) -> list[tuple[int, int]]:
        """Every life of every block so far, the latest of each first."""
        return [(b.id, gen) for b in list(self.ledger.blocks.values()) if b.id >= 0 for gen in range(b.gen, 0, -1)]

    def _state(self, entry: tuple[int, int]) -> str:
        """What that life is now, in brackets; a life that goes on and is held says by whom."""
        block = self.ledger.blocks[entry[0]]
        if entry[1] < block.gen:
            return f" (a life that is over: it is {life(block.id, block.gen)} by now)"
        held = joined(self._names(s) for s in block.holders)
        return f" (held by {held})" if held else " (held by nobody)"

    @classmethod
    def _by_events(cls, table: Entries, size: int) -> str:
        return f"more than one entry differs; by the events it is {cls._listed(table, size)}"

    @staticmethod
    def _listed(table: Entries, size: int) -> str:
        known = [f"{life(*table[i])}" for i in range(size) if i in table]
        shown = known if len(known) <= _SHOWN else [*known[: _SHOWN - 1], f"... {known[-1]}"]
        return " ".join(shown)

    def _digest(self, sequence: Sequence, length: int, have: int) -> int:
        """The digest of the first `length` entries."""
        if length == have:
            return to_signed(sequence.digest)
        words = (mixed(b, g, i) for i, (b, g) in sequence.table.items() if i < length)
        return to_signed(sum(words))
