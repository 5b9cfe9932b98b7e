"""CONS, where something is taken: a table has one entry for each place, and a lease is one holder of a block."""

from __future__ import annotations

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.records import Block, Row
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.source import Names, life
from kvscope.traces.schema import Kind


class Takes(Detector):
    """What is held already, in the same place, is not taken and counted once more."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)

    def on_share(self, row: Row, block: Block) -> None:
        since = block.entries.get((row.seq_id, row.lblock), -1)
        stands = self.ledger.sequence(row.seq_id).table.get(row.lblock) == (block.id, block.gen)
        if since < 0 or not stands or (0 <= row.gen != block.gen):
            return  # what is left in it from before an end, or an admission, is a leak
        how = "prefix hit" if row.kind == Kind.HIT else "share"
        who, place = self._names(row.seq_id), f"block {row.lblock}"
        self._again(row, block, since, f"this {how} takes it for {who} as its {place}", f"{who} has it there")

    on_hit = on_share

    def on_lease(self, row: Row, block: Block) -> None:
        if row.aux in block.leases:
            self._again(row, block, block.leases[row.aux][2], f"lease {row.aux} is taken", "it has been held")

    def _again(self, row: Row, block: Block, since: int, taken: str, held: str) -> None:
        if not block.known or not block.adds_one(row):
            return  # a count that goes otherwise is REF's
        count = f", counted {row.ref_before} -> {row.ref_after}" if row.ref_after >= 0 else ""
        self.ledger.find(
            "KV012", row, f"{life(block.id, block.gen)} is counted twice for one holder: {taken}{count}, but {held} "
            f"since seq {since}", block, taken=since,
        )  # fmt: skip
