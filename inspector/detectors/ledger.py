"""Who holds what: OWN (ownership), REF (counts), FREE (free list), CONS (conservation and leaks)."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.origins import Origins
from kvscope.inspector.detectors.records import FREE, QUARANTINED, UNPLACED, Block, Row
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.detectors.takes import Takes
from kvscope.inspector.limits import limits_of
from kvscope.inspector.longrun import counts_at
from kvscope.inspector.measures import series
from kvscope.inspector.source import IntArray, joined, life
from kvscope.inspector.units import agrees, counted
from kvscope.traces.schema import DETAIL_FIELDS, Kind, Reason, to_signed


class Own(Origins):
    """Every block has one state and named holders: no hand-out of a held block, no touch by a stranger."""

    name, codes = "OWN", ("KV010", "KV014")

    def on_alloc(self, row: Row, block: Block) -> None:
        if not block.known or not block.held:
            return
        holders = self._who(block)
        self.ledger.find(
            "KV014", row, f"{life(block.id, block.gen)} was handed out again, to {self._names(row.seq_id)}, while "
            f"{holders} still held it", block, gen=block.gen,
        )  # fmt: skip

    def on_write(self, row: Row, block: Block) -> None:
        if self.ledger.dead(row, block) or block.published or not block.known:
            return
        if (row.seq_id, row.lblock) not in block.entries:
            self._foreign(row, block, "writes")

    def on_share(self, row: Row, block: Block) -> None:
        if not block.known:
            return
        if self.ledger.dead(row, block) or not block.held:
            self._foreign(row, block, "takes a share of")
        elif row.reason != Reason.RESIZED:
            self._inherits(row, block)

    def on_release(self, row: Row, block: Block) -> None:
        key = (row.seq_id, row.lblock)
        if not block.known or key in block.entries or key in block.left or key in block.released or not block.held:
            return  # a second release is REF's
        if row.gen < 0 or row.gen == block.gen:
            self._foreign(row, block, "releases")

    def _foreign(self, row: Row, block: Block, verb: str) -> None:
        does = agrees(len(block.holders) + len(block.leases) or 1, "does", "do")
        self.ledger.find(
            "KV010", row, f"{self._names(row.seq_id)} {verb} {life(block.id, row.gen)} as its block {row.lblock}, but "
            f"its table does not hold it there: {self._who(block)} {does}", block,
        )  # fmt: skip

    def _who(self, block: Block) -> str:
        held = [self._names(s) for s in block.holders] + [f"lease {i}" for i in block.leases]
        return joined(held) or "nobody"


# How an operation changes the count of holders; a hand-out begins it.
_DELTA = {Kind.SHARE: 1, Kind.HIT: 1, Kind.LEASE: 1, Kind.RELEASE: -1, Kind.UNLEASE: -1, Kind.WRITE: 0}


class Ref(Detector):
    """`ref` is table entries plus leases: the chain of counts has no break, and nobody is released twice."""

    name, codes = "REF", ("KV004", "KV007")

    def on_alloc(self, row: Row, block: Block) -> None:
        if row.ref_before >= 0 and (row.ref_before, row.ref_after) != (0, 1):
            self._lost(row, block, f"a hand-out counts {row.ref_before} -> {row.ref_after} instead of 0 -> 1")

    def on_share(self, row: Row, block: Block) -> None:
        self._chain(row, block)

    on_hit = on_lease = on_write = on_share

    def on_release(self, row: Row, block: Block) -> None:
        key = (row.seq_id, row.lblock)
        stale = 0 <= row.gen < block.gen
        holds = key in block.entries or key in block.left or block.extra.get(key)
        if block.known and (stale or not holds) and (stale or key in block.released or not block.held):
            now = f"it is {life(block.id, block.gen)} by now" if stale else f"its count is {block.ref}"
            first = -1 if stale else block.released.get(key, block.story.get("released", -1))
            self.ledger.find(
                "KV004", row, f"a release of {life(block.id, row.gen)} (counted {row.ref_before} -> {row.ref_after}) "
                f"without a holder: {now}" + (f", this one was released at seq {first} already" if first >= 0 else ""),
                block, first_release=first,
            )  # fmt: skip
            return
        self._chain(row, block)

    def on_unlease(self, row: Row, block: Block) -> None:
        if block.known and row.aux not in block.leases:
            self.ledger.find("KV004", row, f"lease {row.aux} on {life(block.id, row.gen)} ends, but is not held", block)
            return
        self._chain(row, block)

    def _chain(self, row: Row, block: Block) -> None:
        if row.ref_before < 0 or (self.ledger.dead(row, block) and row.gen != block.gen):
            return
        if block.known and row.ref_before not in (block.ref, block.ref_other if block.ref_other >= 0 else block.ref):
            self._lost(row, block, f"the count was {block.ref} after the event before, and is {row.ref_before} here")
        elif row.ref_after - row.ref_before != _DELTA[Kind(row.kind)]:
            what = Kind(row.kind).name.lower()
            self._lost(row, block, f"a {what} counts {row.ref_before} -> {row.ref_after}")

    def _lost(self, row: Row, block: Block, what: str) -> None:
        previous = max((s for s in block.story.values() if s < self.ledger.seq), default=-1)
        self.ledger.find("KV007", row, f"an update of the count of {life(block.id, row.gen)} is lost: {what}", block,
                         previous=previous)  # fmt: skip


class Free(Detector):
    """The free list has no duplicates."""

    name, codes = "FREE", ("KV003",)

    def on_free(self, row: Row, block: Block) -> None:
        if not block.known:
            return
        stale = 0 <= row.gen < block.gen
        if stale or (block.place in (FREE, QUARANTINED) and not block.held):
            now = f"it is {life(block.id, block.gen)} by now" if stale else f"it was {block.place} already"
            self.ledger.find("KV003", row, f"{life(block.id, row.gen)} is put on the free list, but {now}", block)

    def on_settle(self, row: Row, block: Block) -> None:
        if block.known and (block.place != QUARANTINED or 0 <= row.gen < block.gen):
            self.ledger.find(
                "KV003", row, f"{life(block.id, row.gen)} leaves quarantine for the free list, but it was not in "
                f"quarantine: it was {block.place if not block.held else 'held'}", block,
            )  # fmt: skip

    def on_quarantine(self, row: Row, block: Block) -> None:
        if block.known and (block.place == FREE or 0 <= row.gen < block.gen):
            self.ledger.find("KV003", row, f"{life(block.id, row.gen)} is quarantined, but was free already", block)


class Cons(Takes):
    """The states add up to the pool, the pool's own counters agree with its events, and nothing is left behind."""

    name, codes = "CONS", ("KV005", "KV012")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._witnesses: list[tuple[int, Row]] = []
        self._said: tuple[int, ...] | None = None
        self._host_said = -1

    def on_free(self, row: Row, block: Block) -> None:
        if block.known and block.entries and not 0 <= row.gen < block.gen:
            where = "quarantine" if row.kind == Kind.QUARANTINE else "the free list"
            holders = joined(self._names(s) for s in block.holders)
            self.ledger.find(
                "KV012", row, f"{life(block.id, block.gen)} is counted twice: in {where} and in the table of {holders}",
                block,
            )  # fmt: skip

    on_quarantine = on_free

    def on_shrink(self, row: Row, block: Block) -> None:
        for number, gone in sorted(self.ledger.blocks.items()):
            if number < row.aux or not gone.known or number >= self.ledger.num_blocks:
                continue
            if gone.held or gone.published or gone.place == QUARANTINED:
                holders = joined([*(self._names(s) for s in gone.holders), *(f"lease {i}" for i in gone.leases)])
                how = f"held by {holders}" if gone.held else "cached" if gone.published else "in quarantine"
                self.ledger.find("KV012", row, f"the pool gives up {life(number, gone.gen)}, which is {how}", gone)

    def on_witness(self, row: Row, block: Block) -> None:
        if self.ledger.unknown_blocks:
            self.ledger.unjudged += 1
        else:
            self._witnesses.append((self.ledger.seq, row))
        self._tables(row)

    def _tables(self, row: Row) -> None:
        """Compare the number of entries and the digest of all tables."""
        self.ledger.close_tables()
        detail = self.ledger.details[Kind.WITNESS].get(self.ledger.seq)
        if detail is None:
            return
        if self.ledger.unknown_tables and (
            self.ledger.unknown_blocks or not all(s.known for s in self.ledger.sequences.values())
        ):  # a sequence that was admitted among the lost events may hold blocks that had no event since
            return
        fields = dict(zip(DETAIL_FIELDS[Kind.WITNESS], detail, strict=False))
        wrong = (fields.get("table_entries", self.ledger.entries) - self.ledger.entries,
                 int(fields.get("tables_digest", 0) not in (0, to_signed(self.ledger.digest))))  # fmt: skip
        if any(wrong) and wrong != self._said:
            self.ledger.find(
                "KV012", row, f"the pool counts {fields['table_entries']} table entries, its events make "
                f"{self.ledger.entries}" + ("" if wrong[0] else ", and they lead to other blocks"),
            )  # fmt: skip
        self._said = wrong if any(wrong) else None
        host, own = self.ledger.host, fields.get("host_used", -1)
        off = host.known and own >= 0 and own != host.used
        if off and own != self._host_said:
            self.ledger.find(
                "KV012", row, f"the host tier counts {counted(own, 'slot')} in use, its events make {host.used}"
            )
        self._host_said = own if off else -1

    def finish(self) -> None:
        self._compare_counts()
        self._leaks()

    def _compare_counts(self) -> None:
        """The pool's counters at each witness against the events' (which add up by construction)."""
        if not self._witnesses or not self._sizes_known():
            self.ledger.unjudged += len(self._witnesses)
            return
        names = DETAIL_FIELDS[Kind.WITNESS][:6]
        made, sizes = self._without_reserved(
            *self._counted(names, np.asarray([seq for seq, _ in self._witnesses], np.int64))
        )
        said: tuple[int, ...] = ()
        for (seq, row), own_counts, size in zip(self._witnesses, made.tolist(), sizes.tolist(), strict=True):
            own = self.ledger.details[Kind.WITNESS].get(seq)
            if own is None or len(own) < len(names):
                continue
            wrong = tuple(a - b for a, b in zip(own, own_counts, strict=False))
            total = sum(own[: len(names)])
            if total != size:
                wrong = (*wrong, total)
            if any(wrong) and wrong != said:
                parts = [
                    f"{n} {own[i]} (its events: {own_counts[i]})"
                    for i, n in enumerate(names)
                    if own[i] != own_counts[i]
                ]
                off = f"; they add up to {total}, the pool has {size}" if len(wrong) > 6 else ""
                self.ledger.find("KV012", row, f"the pool's own counters differ: {', '.join(parts)}{off}", seq=seq)
            said = wrong if any(wrong) else ()

    def _without_reserved(self, made: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
        """Blocks that are never handed out are not free either."""
        reserved = np.asarray(sorted(limits_of(self.ledger.trace.facts).reserved), dtype=np.int64)
        there = np.searchsorted(reserved, sizes)
        made[:, 0] -= there
        return made, sizes - there

    def _counted(self, names: tuple[str, ...], seqs: IntArray) -> tuple[IntArray, IntArray]:
        """([event, measure], pool's size) just after some events, as the events make them."""
        trace = self.ledger.trace
        if getattr(trace, "on_demand", False):
            rows = np.searchsorted(np.asarray(trace.seqs), seqs)
            found = counts_at(trace.source, rows, as_counted=True)  # type: ignore[attr-defined]
            return np.stack([found[name] for name in names], axis=1), found["blocks"]
        measured = series(trace, as_counted=True)
        rows = np.searchsorted(measured.seq, seqs)
        return np.stack([getattr(measured, name)[rows] for name in names], axis=1), measured.blocks[rows]

    def _sizes_known(self) -> bool:
        """Whether the pool's size is known at every event: among lost ones may be a GROW or SHRINK."""
        details = self.ledger.details[Kind.WITNESS]
        totals = {sum(details.get(seq, ())[:6]) for seq, _ in self._witnesses}
        return not self.ledger.lost or totals <= {0, self.ledger.trace.num_blocks}

    @property
    def _complete(self) -> bool:
        """Whether the trace ends where its writer ended it: what is held then is never given back."""
        return bool(getattr(self.ledger.trace, "complete", self.ledger.trace.clean))

    def _leaks(self) -> None:
        for _, block in sorted(self.ledger.blocks.items()):
            if not block.known:
                continue
            for (seq_id, lblock), since in block.entries.items():
                self._leaked_entry(block, seq_id, lblock, since)
            for (seq_id, lblock), ends in block.left.items():
                for ended, kind in ends:
                    self._left(block, seq_id, lblock, ended, kind)
            if self._complete:
                for lease_id, (_, _, since) in block.leases.items():
                    if not self._over(since):
                        continue
                    self._leak(block, since, f"lease {lease_id} on {life(block.id, block.gen)} was never ended")
                if not block.held and block.ref > 0 and not block.left and not self.ledger.lost:
                    extra = [take for takes in block.extra.values() for take in takes]
                    last = max(extra or [block.story.get(role, 0) for role in ("hit", "shared", "allocated")])
                    self._leak(block, last, f"{life(block.id, block.gen)} is counted as held by {block.ref}, "
                               "but no table and no lease holds it")  # fmt: skip
                if not block.held and not block.published and block.place == UNPLACED and "released" in block.story:
                    self._leak(block, block.story["released"], f"the last holder of {life(block.id, block.gen)} is "
                               "gone, but it went neither to the free list nor to quarantine")  # fmt: skip
                if block.place == QUARANTINED and not block.held and self._fence_passed(block):
                    self._leak(block, block.story["quarantined"], f"{life(block.id, block.gen)} is still in "
                               "quarantine, though the last step that used it has ended")  # fmt: skip

    def _over(self, since: int) -> bool:
        """Whether the step that a lease was taken for has ended (no step: whether the trace has)."""
        return (
            self.ledger.steps_known
            and not self.ledger.open_steps
            and (self.ledger.begun < 0 or self.ledger.last_begin_seq > since)
        )

    def _fence_passed(self, block: Block) -> bool:
        return (
            self.ledger.steps_known
            and block.last_use <= self.ledger.completed
            and block.story["quarantined"] < self.ledger.last_step_seq
        )

    def _leaked_entry(self, block: Block, seq_id: int, lblock: int, since: int) -> None:
        """An entry whose sequence has ended, or that is left from before it was admitted last."""
        sequence = self.ledger.sequences[seq_id]
        complete = self._complete or max(sequence.ended, since) < self.ledger.last_step_seq
        if not complete or not (sequence.over or since < sequence.began):
            return
        if sequence.over or since < sequence.ended:
            self._left(block, seq_id, lblock, sequence.ended, sequence.ended_kind)
        else:
            name, who = life(block.id, block.gen), self._names(seq_id)
            self._leak(block, since, f"{who} took {name} before it was admitted, and never released it")

    def _left(self, block: Block, seq_id: int, lblock: int, ended: int, kind: int) -> None:
        """An entry that was there when its sequence ended."""
        name, how = life(block.id, block.gen), Kind(kind).name.lower()
        how = f"was preempted (seq {ended})" if kind == Kind.PREEMPT else f"has ended ({how}, seq {ended})"
        again = (seq_id, lblock) in block.extra
        never = "was not released as often as it was taken" if again else "was never released"
        self._leak(block, ended, f"{self._names(seq_id)} {how}, but its block {lblock}, {name}, {never}")

    def _leak(self, block: Block, seq: int, why: str) -> None:
        self.ledger.find("KV005", self.ledger.row_at(seq), why, block, seq=seq, gen=block.gen)
