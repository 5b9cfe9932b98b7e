"""Where a worker's table row leads elsewhere than the scheduler's, found again from its digest.

A row that a check has found to differ (KV018) is one that was right before: the row that the sequence had when it gave
way, was forked off or had an entry replaced, or such a row of another sequence that had the place; the whole of it, its
beginning or its end. Or a single entry of it differs, or it has its own entries in another order.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvscope.inspector.findings import CheckResult
from kvscope.inspector.permuted_rows import Entries, Life, permuted
from kvscope.traces.schema import digest_word, to_signed

_KEPT = 64  # former rows of a sequence that are remembered


class FormerRows:
    """The rows that sequences had before."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Entries]] = {}

    def note(self, seq_id: int, entries: Entries) -> None:
        """The sequence has this row, and may soon have another."""
        if entries:
            rows = self._rows.setdefault(seq_id, [])
            rows.append(dict(entries))
            del rows[:-_KEPT]

    def find(self, seq_id: int, own: Entries, digest: int) -> Entries | None:
        """The row that has this digest, made of `own` and of a row from before; None where there is none."""
        theirs = (rows[-1] for other, rows in self._rows.items() if other != seq_id)
        for former in (*reversed(self._rows.get(seq_id, ())), *theirs):
            found = _mixed(own, former, digest)
            if found is not None:
                return found
        return None


def _mixed(own: Entries, former: Entries, digest: int) -> Entries | None:
    """`former`, then `own` behind a place; or `own`, then `former` behind it."""
    end = max([*own, *former], default=-1) + 1
    words = [[_word(row, lblock) for lblock in range(end)] for row in (former, own)]
    ways = (former, own, words[0], words[1]), (own, former, words[1], words[0])
    for front, back, first, then in ways:
        total = sum(then)
        for place in range(end + 1):
            if to_signed(total) == digest:
                rows: Iterable[tuple[int, Life]] = (
                    *((lblock, life) for lblock, life in front.items() if lblock < place),
                    *((lblock, life) for lblock, life in back.items() if lblock >= place),
                )
                return dict(rows)
            if place < end:
                total += first[place] - then[place]
    return None


def _word(row: Entries, lblock: int) -> int:
    return digest_word(*row[lblock], lblock) if lblock in row else 0


class WorkerRows:
    """The rows of workers that a check has found to differ."""

    def __init__(self, result: CheckResult | None) -> None:
        self._found: dict[int, list[tuple[int, Life]]] = {}  # by sequence: since which event, and an entry of the row
        self._former = FormerRows()
        # By sequence: place -> from where its entry is, in the order found last; None: the row differs otherwise.
        self._order: dict[int, dict[int, int] | None] = {}
        for finding in result.findings if result is not None else ():
            if finding.code == "KV018" and finding.seq_id >= 0:
                self._found.setdefault(finding.seq_id, []).append((finding.seq, (finding.block, finding.gen)))

    def note(self, seq_id: int, entries: Entries) -> None:
        """The sequence has this row, and may soon have another."""
        if self._found:
            self._former.note(seq_id, entries)

    def odd(self, seq_id: int, seq: int, digest: int, entries: Entries) -> dict[int, int] | None:
        """Logical block -> block where the row that has this digest differs from these entries.

        Args:
            seq: of the SCHED event.
            digest: that its details tell.

        Returns:
            None where it differs, and nobody knows in what.
        """
        found = [life for at, life in self._found.get(seq_id, ()) if at <= seq]
        words = {lblock: digest_word(*entry, lblock) for lblock, entry in entries.items()} if found else {}
        own = sum(words.values())
        if not found or to_signed(own) == digest:
            return {}
        for life in reversed(found):
            for lblock, word in words.items():
                if life[0] >= 0 and to_signed(own - word + digest_word(*life, lblock)) == digest:
                    return {lblock: life[0]}
        row = self._former.find(seq_id, entries, digest) or self._in_order(seq_id, entries, digest)
        if row is None:
            return None
        return {lblock: life[0] for lblock, life in row.items() if entries.get(lblock) != life}

    def _in_order(self, seq_id: int, entries: Entries, digest: int) -> Entries | None:
        """The row with its own entries in another order; looked for until there is none."""
        before = self._order.get(seq_id, {})
        if before is None:
            return None
        row = entries | {to: entries[source] for to, source in before.items() if to in entries and source in entries}
        if to_signed(sum(digest_word(*entry, lblock) for lblock, entry in row.items())) == digest:
            return row
        found = permuted(entries, digest)
        places = {entry: lblock for lblock, entry in entries.items()}
        self._order[seq_id] = None if found is None else {to: places[entry] for to, entry in found.items()}
        return found
