"""Where a worker's table row leads elsewhere than the scheduler's: the one entry that a check (KV018) has found."""

from __future__ import annotations

from kvscope.inspector.findings import CheckResult
from kvscope.traces.schema import digest_word, to_signed

Entries = dict[int, tuple[int, int]]  # logical block -> block, life


class WorkerRows:
    """The lives that workers' rows were found to lead to, by sequence, each from the event of its finding on."""

    def __init__(self, result: CheckResult | None) -> None:
        self._found: dict[int, list[tuple[int, tuple[int, int]]]] = {}
        for finding in result.findings if result is not None else ():
            if finding.code == "KV018" and finding.block >= 0 and finding.seq_id >= 0:
                self._found.setdefault(finding.seq_id, []).append((finding.seq, (finding.block, finding.gen)))

    def odd(self, seq_id: int, seq: int, digest: int, entries: Entries) -> tuple[int, int] | None:
        """(logical block, block) where the row that has this digest differs from these entries; None where it does not.

        Args:
            seq: of the SCHED event.
            digest: that its details tell.
        """
        lives = [life for at, life in self._found.get(seq_id, ()) if at <= seq]
        if not lives:
            return None
        words = {lblock: digest_word(*entry, lblock) for lblock, entry in entries.items()}
        own = sum(words.values())
        if to_signed(own) == digest:
            return None
        for life in reversed(lives):
            for lblock, word in words.items():
                if to_signed(own - word + digest_word(*life, lblock)) == digest:
                    return lblock, life[0]
        return None
