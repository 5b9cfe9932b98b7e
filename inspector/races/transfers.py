"""The simulated engine's transfers: blocks stored away, loaded from elsewhere, looked up; ordered with nothing."""

from __future__ import annotations

import threading

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.scheduler import Scheduler
from kvscope.engine.sequence import Sequence
from kvscope.errors import OutOfBlocks
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.shadow import Prefix, Shadow
from kvscope.inspector.races.control import point
from kvscope.inspector.races.script import Script

_LAYERS = 6  # a transfer takes a while: so many places where something else may happen
_LOADED = 1_000  # sequence ids from here on are the mover's


class Transfers:
    """What the mover of a `World` does; every read and write of a block is a switch point."""

    script: Script
    plant: str
    manager: BlockManager
    scheduler: Scheduler
    shadow: Shadow
    changed: threading.Condition
    requests: dict[int, list[Sequence]]
    landed: dict[tuple[int, int], int]
    loading: int | None
    submitted: int
    mover_done: bool
    over: bool

    def mover(self) -> None:
        """Stores, loads and lookups, one after another."""
        for number, (name, amount) in enumerate(self.script.mover):
            getattr(self, f"_{name}")(_LOADED + number, amount)
            with self.changed:
                self.mover_done = number + 1 == len(self.script.mover)
                self.changed.notify_all()

    def _store(self, _: int, amount: int) -> None:
        """Read full blocks of a running sequence, slowly, whatever becomes of the sequence meanwhile."""
        size = self.script.block_size
        least = 1 + amount % 2 if size == 1 else 1  # blocks worth a store
        with self.changed:
            while not (ready := [s for s in self.scheduler.running if len(self._stored(s)) >= least]):
                if self._idle():
                    return
                self.changed.wait()
            sequence = ready[amount % len(ready)]
            lblocks, table = self._stored(sequence), self.manager.table(sequence.seq_id)
            wanted = {table[i]: Prefix(list(sequence.tokens)).content((i + 1) * size - 1) for i in lblocks}
            lease = None
            if self.plant != "store-without-lease":
                ttl = 2 if self.plant != "no-deadline" else None
                dies = self.plant == "no-deadline" or amount == 7
                lease = self.manager.lease(
                    list(wanted), holder="store", seq_id=sequence.seq_id, ttl=ttl if dies else None
                )
                if dies:
                    return  # the sender is gone, and will never tell that it is done
        for number, (block, content) in enumerate(wanted.items()):
            for layer in range(_LAYERS):
                point(f"store reads layer {layer} of b{block}")
            if (found := self.shadow.slots.get((block, size - 1))) != content:
                raise Violation("KV017", f"a store of sequence {sequence.seq_id} reads b{block}: it should hold "
                                         f"{content[1]}, it holds {found[1] if found else 'nothing'}")  # fmt: skip
            if lease is not None and (number + 1 == len(wanted) or self.plant == "lease-ends-early"):
                self.manager.unlease(lease.lease_id)
                lease = None

    def _stored(self, sequence: Sequence) -> list[int]:
        """Logical blocks of a sequence that the device has filled and that are held still."""
        seq = sequence.seq_id
        full = min(self.landed.get((seq, sequence.preemptions), 0), sequence.computed) // self.script.block_size
        return [i for i, block in enumerate(self.manager.table(seq)[:full]) if block >= 0]

    def _load(self, seq: int, amount: int) -> None:
        """KV of another machine lands in blocks that were reserved for it, even if the request is aborted meanwhile."""
        tokens = [500 + seq + i for i in range(1 + amount % (2 * self.script.block_size))]
        lease = None
        with self.changed:
            try:
                self.manager.admit(seq, tokens)
                self.manager.write(seq, 0, len(tokens))
            except OutOfBlocks:
                return
            table, self.loading = self.manager.table(seq), seq
            self.changed.notify_all()
            if self.plant != "load-without-lease":
                lease = self.manager.lease(table, holder="load", seq_id=seq)
        prefix = Prefix(tokens)
        for position in range(len(tokens)):
            for layer in range(_LAYERS):
                point(f"load writes layer {layer} of position {position}")
            self.shadow.write(table, prefix, position)
        self.shadow.check(seq, table, prefix)
        with self.changed:
            if lease is not None:
                self.manager.unlease(lease.lease_id)
            if self.loading == seq:
                self.manager.free(seq)
                self.loading = None

    def _lookup(self, seq: int, amount: int) -> None:
        """What a lookup promised is there when the request is admitted."""
        which = amount % len(self.script.requests)
        tokens, lease = list(self.script.requests[which][0]), None
        with self.changed:  # until its prefix is cached, and held by nobody
            while not self._idle() and (self.requests.get(which) != [] or not self.manager.probe(tokens).cached_tokens):
                self.changed.wait()
        if self.plant == "lookup-without-lease":
            match = self.manager.probe(tokens)
        else:
            match, lease = self.manager.lookup(seq, tokens)
        point(f"lookup found {match.cached_tokens} tokens")
        with self.changed:
            try:
                cached = self.manager.admit(seq, tokens)
            except OutOfBlocks:
                if lease is not None:
                    self.manager.unlease(lease.lease_id)
                return
            self.manager.free(seq)
        if cached < match.cached_tokens:
            raise Violation("KV017", f"a lookup promised {match.cached_tokens} cached tokens, admission found {cached}")

    def _idle(self) -> bool:
        """Whether no sequence will run any more."""
        return self.over or (self.submitted == len(self.script.requests) and not self.scheduler.has_work)
