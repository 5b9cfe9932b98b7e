"""Shared blocks: COW (writes), PUB (publication), INDEX (prefix hits), EVICT, LEASE."""

from __future__ import annotations

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.records import Block, Row
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.source import Names, joined, life
from kvscope.traces.schema import Kind, unpack_range


class Cow(Detector):
    """A write needs one table holder, an unpublished block, and no lease over its slots."""

    name, codes = "COW", ("KV006", "KV015")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)

    def on_write(self, row: Row, block: Block) -> None:
        if not block.known or self.ledger.dead(row, block):
            return
        lo, hi = unpack_range(row.aux)
        writer, name = self._names(row.seq_id), life(block.id, block.gen)
        if block.published:
            self.ledger.find("KV015", row, f"{writer} writes slots [{lo}:{hi}] of {name}, which is in the prefix index "
                             "and immutable from then on", block, slot_lo=lo, slot_hi=hi)  # fmt: skip
            return
        if (row.seq_id, row.lblock) not in block.entries:
            return  # a stranger: OWN's
        others = [k for k in block.entries if k != (row.seq_id, row.lblock)]
        leased = [i for i, (a, b, _) in block.leases.items() if a < hi and lo < b]
        if others or leased:
            held = [self._names(s) for s in dict.fromkeys(s for s, _ in others)] + [f"lease {i}" for i in leased]
            verb = "holds" if len(held) == 1 else "hold"
            why = f"{writer} writes slots [{lo}:{hi}] of {name} while {joined(held)} {verb} it too"
            self.ledger.find("KV006", row, why, block, slot_lo=lo, slot_hi=hi)


class Pub(Detector):
    """A block is published when all its slots are written, and hit when those writes come first."""

    name, codes = "PUB", ("KV016",)

    def on_publish(self, row: Row, block: Block) -> None:
        missing = self.ledger.full & ~block.written
        if block.known and missing and not self.ledger.dead(row, block):
            self.ledger.find("KV016", row, f"{life(block.id, block.gen)} is published with {missing.bit_count()} of "
                             f"{self.ledger.block_size} slots not written", block)  # fmt: skip

    def on_hit(self, row: Row, block: Block) -> None:
        if not block.known or not block.published or self.ledger.dead(row, block):
            return
        if self.ledger.ordered and block.unbound_write >= 0:
            why = f"a prefix hit on {life(block.id, block.gen)} before the step that writes it has begun"
            self.ledger.find("KV016", row, why, block, write=block.unbound_write)


class Index(Detector):
    """Every index entry leads to a live block that carries its content."""

    name, codes = "INDEX", ("KV011",)

    def on_alloc(self, row: Row, block: Block) -> None:
        if block.known and block.published and not block.held:
            self.ledger.find("KV011", row, f"{life(block.id, block.gen)} is handed out while the prefix index still "
                             "leads to it", block, gen=block.gen)  # fmt: skip

    def on_free(self, row: Row, block: Block) -> None:
        if block.known and block.published and not block.held and not 0 <= row.gen < block.gen:
            verb = "goes into quarantine" if row.kind == Kind.QUARANTINE else "is put on the free list"
            why = (
                f"{life(block.id, block.gen)} {verb} while the prefix index still leads to it: nobody withdrew it first"
            )
            self.ledger.find("KV011", row, why, block, gen=block.gen)

    on_quarantine = on_free

    def on_publish(self, row: Row, block: Block) -> None:
        if self.ledger.dead(row, block):
            self.ledger.find("KV011", row, f"{life(block.id, row.gen)} is published after its life was over", block)

    def on_hit(self, row: Row, block: Block) -> None:
        if not block.known:
            return
        name = life(block.id, row.gen)
        if self.ledger.dead(row, block):
            self.ledger.find("KV011", row, f"the prefix index leads to {name}, a life that is over", block)
        elif not block.published:
            self.ledger.find(
                "KV011", row, f"the prefix index leads to {name}, which was not published in this life", block
            )
        else:
            self._content(row, block, name)

    def _content(self, row: Row, block: Block, name: str) -> None:
        """The hit must be on what was published, behind the prefix it was published behind."""
        found = self.ledger.details[Kind.HIT].get(self.ledger.seq)
        if found is not None and block.published_as is not None and found[:3] != block.published_as[:3]:
            self.ledger.find("KV011", row, f"the hit on {name} expects other tokens or another prefix than it was "
                             "published with", block)  # fmt: skip
        elif 0 <= block.published_at != row.lblock >= 0:
            self.ledger.find("KV011", row, f"{name} holds logical block {block.published_at} of its writer, and is hit "
                             f"as block {row.lblock}", block)  # fmt: skip
        elif found is not None:
            before = self.ledger.sequence(row.seq_id).table.get(row.lblock - 1)
            if before is None:
                return
            parent = self.ledger.blocks[before[0]]
            if not parent.known or parent.published_as is None or parent.gen != before[1]:
                return
            if len(parent.published_as) > 2 and found[0] != parent.published_as[2]:
                self.ledger.find(
                    "KV011", row, f"{name} was computed behind another prefix than "
                    f"{life(parent.id, parent.gen)}, which stands in front of it here", block,
                )  # fmt: skip


class Key(Detector):
    """Who hits a block has the identity (adapter, tenant, inputs, weights) that it was published under."""

    name, codes = "KEY", ("KV011",)

    def on_hit(self, row: Row, block: Block) -> None:
        found, written = self.ledger.details[Kind.HIT].get(self.ledger.seq), block.published_as
        if not block.known or not block.published or found is None or written is None or self.ledger.dead(row, block):
            return
        if found[3:] != written[3:]:
            self.ledger.find("KV011", row, f"{life(block.id, row.gen)} was published under another identity (adapter, "
                             "tenant, inputs, weights) than that of who hits it", block)  # fmt: skip


class Evict(Detector):
    """Only unheld blocks are evicted."""

    name, codes = "EVICT", ("KV020",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)

    def on_evict(self, row: Row, block: Block) -> None:
        if block.known and block.entries:
            holders = joined(self._names(s) for s in block.holders)
            self.ledger.find(
                "KV020", row, f"{life(block.id, block.gen)} is evicted while {holders} still held it", block
            )


class Lease(Detector):
    """What a lease holds is neither freed nor evicted."""

    name, codes = "LEASE", ("KV017",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._early: set[tuple[int, int]] = set()

    def on_free(self, row: Row, block: Block) -> None:
        if block.known and block.leases and not block.entries and not 0 <= row.gen < block.gen:
            lease_id, (lo, hi, since) = next(iter(block.leases.items()))
            verb = Kind(row.kind).name.lower()
            over = f" of slots [{lo}:{hi}]" if lo < hi else ", which was taken before a slot was filled"
            self.ledger.find(
                "KV017", row, f"{verb} of {life(block.id, block.gen)} under lease {lease_id}{over}", block, lease=since
            )  # fmt: skip

    on_quarantine = on_evict = on_free

    def on_swap_out(self, row: Row, block: Block) -> None:
        lease = self.ledger.host.lease_of(row)
        if block.known and lease >= 0 and lease not in block.leases:
            way = "to" if row.kind == Kind.SWAP_OUT else "from"
            self.ledger.find("KV017", row, f"{life(block.id, row.gen)} moves {way} host slot {row.aux} without lease "
                             f"{lease}", block)  # fmt: skip

    on_swap_in = on_swap_out

    def on_step_end(self, row: Row, block: Block) -> None:
        """What a step read must have arrived by its end."""
        if not self.ledger.host.arriving or not self.ledger.open_steps or not self.ledger.steps_known:
            return
        ordinal = self.ledger.open_steps[0].ordinal
        for arrival in self.ledger.host.arriving:
            reader = self.ledger.sequences.get(arrival.seq_id)
            if reader is None or reader.sched_step != ordinal or (arrival.block, arrival.gen) in self._early:
                continue
            self._early.add((arrival.block, arrival.gen))
            found = self.ledger.blocks[arrival.block]
            if found.known and found.gen == arrival.gen:
                name = life(arrival.block, arrival.gen)
                self.ledger.find(
                    "KV017", row, f"a step read {name} while it was still on its way in from the host tier", found,
                    gen=arrival.gen, seq_id=arrival.seq_id, swap_in=arrival.since,
                )  # fmt: skip
