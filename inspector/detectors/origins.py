"""OWN, where content comes from: a fork, a copy and a transfer take what stands at their own place."""

from __future__ import annotations

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.records import Block, Row
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.source import Names, life


class Origins(Detector):
    """What is taken over is what its sequence has there, or its parent."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)

    def _inherits(self, row: Row, block: Block) -> None:
        """What a fork has of its parent, it has at the parent's place."""
        parent = self.ledger.sequences.get(self.ledger.sequence(row.seq_id).parent)
        if parent is None or not parent.known or parent.over:
            return
        entry, name = parent.table.get(row.lblock), life(block.id, row.gen)
        if entry != (block.id, row.gen if row.gen >= 0 else block.gen):
            has = f"has {life(*entry)} there" if entry is not None else "has none there"
            self.ledger.find(
                "KV010", row, f"{self._names(row.seq_id)} takes a share of {name} as its block {row.lblock}, but "
                f"{self._names(parent.id)}, whose fork it is, {has}", block,
            )  # fmt: skip

    def on_cow(self, row: Row, block: Block) -> None:
        source, gen, _, _ = self.ledger.copies.of(row)
        if not 0 <= source < self.ledger.num_blocks:
            return
        found = self.ledger.blocks[source]
        if not found.known or self.ledger.dead(row._replace(gen=gen), found):
            return  # a dead life is GEN's
        before = self.ledger.sequence(row.seq_id).replaced
        other = before[0] >= 0 and before != (source, gen, row.lblock)
        if source == block.id or (other and before[2] == row.lblock):
            into = "itself" if source == block.id else life(block.id, row.gen)
            but = "that is no copy" if source == block.id else f"{life(*before[:2])} stood there"
            self.ledger.find(
                "KV010", row, f"{self._names(row.seq_id)} copies {life(source, gen)} into {into} for its block "
                f"{row.lblock}, but {but}",
                found, gen=gen,
            )  # fmt: skip

    def on_swap_in(self, row: Row, block: Block) -> None:
        """What comes back comes out of the slot that it was put into."""
        host, slot = self.ledger.host, self.ledger.host.slot_of(row.seq_id, row.lblock)
        if not host.known or not block.known or slot in (row.aux, None):
            return
        own = f"went to slot {slot}" if slot is not None and slot >= 0 else "did not go there"
        whose = host.holds(row.aux)
        there = f", which has block {whose[1]} of {self._names(whose[0])}" if whose is not None else ""
        self.ledger.find(
            "KV010", row, f"{life(block.id, row.gen)}, block {row.lblock} of {self._names(row.seq_id)}, is filled from "
            f"host slot {row.aux}{there}; its own content {own}", block,
        )  # fmt: skip
