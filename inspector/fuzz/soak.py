"""A long mixed run of our block manager beside the reference model: the same operations on both, compared after each.

Operations are those of an engine that does everything at once: admissions, chunked prefill, decodes, forks, beam steps,
speculation with rollback, windows, aborts, preemptions and resumptions, swaps to a host tier and back, transfers under
leases that are ended or left to expire, steps and copies that end late, and a pool that grows and shrinks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.host_tier import Swap
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.reference import Reference
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

MAX_OPEN, MAX_LIVE, MAX_TOKENS = 2, 12, 200
MIX = {
    "admit": 6, "resume": 3, "write": 8, "append": 30, "begin": 14, "end": 16, "copied": 10, "fork": 3, "beam": 3,
    "speculate": 5, "slide": 4, "finish": 3, "abort": 2, "preempt": 2, "swap_out": 3, "swap_in": 3, "swapped": 3,
    "lease": 2, "unlease": 2, "expire": 1, "grow": 1, "shrink": 1,
}  # fmt: skip


class Soak:
    """One endless run, the same for the same seed.

    Args:
        seed: decides everything.
        num_blocks, block_size: of the pool at the start; it stays between half and twice its size.
        sink: where events go.
        manager: builds the block manager; a planted fault is a subclass given here.
    """

    def __init__(
        self, seed: int, *, num_blocks: int = 24, block_size: int = 4, sink: EventSink | None = None,
        manager: Callable[..., BlockManager] = BlockManager,
    ) -> None:  # fmt: skip
        self.random = random.Random(seed)
        host = num_blocks // 2
        self.ours = manager(
            num_blocks, block_size, sink=sink, share_prefixes=False, hash_key=b"kvscope.soak", host_blocks=host
        )
        self.model = Reference(num_blocks, block_size, host)
        self.sizes = range(num_blocks // 2, num_blocks * 2 + 1)
        self.done: Counter[str] = Counter()  # operations by name
        self.refused = 0
        self._preempted: dict[int, int] = {}  # sequence -> its tokens
        self._copies: list[Copy] = []
        self._swaps: list[Swap] = []
        self._next = 0
        self._names, self._weights = list(MIX), list(MIX.values())

    def run(self, operations: int) -> None:
        """Play so many operations, and compare after each.

        Raises:
            Violation: the two differ, or blocks are not conserved; says after which operation.
        """
        for name in self.random.choices(self._names, self._weights, k=operations):
            self.done[name] += 1
            getattr(self, f"_{name}")()
            self._compare(name)

    def finish(self) -> None:
        """Everything ends: all blocks must be free again.

        Raises:
            Violation: one is not.
        """
        self._copied()
        self._swapped()
        for seq in list(self.model.parked):
            self._forget(seq)
        for seq in list(self.model.tables):
            self._free(seq, Kind.FINISH, Reason.STOP)
        for lease in list(self.model.transfers):
            self._end_lease(lease)
        while self.model.steps:
            self._end()
        self._compare("finish")
        self.ours.check_integrity()
        if self.ours.host_free() != self.model.host_blocks:
            raise Violation("KV012", f"{self.ours.host_free()} of {self.model.host_blocks} host slots are free")
        if self.ours.num_free() != self.ours.num_blocks:
            raise Violation("KV012", f"{self.ours.num_free()} of {self.ours.num_blocks} blocks are free at the end")

    # -- operations -----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        if len(self.model.tables) < MAX_LIVE:
            self._next += 1
            self._add(self._next, self.random.randint(1, 8 * self.model.block_size), resumed=False)

    def _resume(self) -> None:
        if self._preempted and len(self.model.tables) < MAX_LIVE:
            seq = next(iter(self._preempted))
            if self._add(seq, self._preempted[seq], resumed=True):
                del self._preempted[seq]

    def _add(self, seq: int, length: int, *, resumed: bool) -> bool:
        tokens = [0] * length
        return self._both(lambda: self.ours.admit(seq, tokens, resumed=resumed), lambda: self.model.add(seq, tokens))

    def _write(self) -> None:
        behind = [seq for seq, row in self.model.rows.items() if row.issued < row.length]
        if behind:
            seq = self.random.choice(behind)
            row = self.model.rows[seq]
            hi = self.random.randint(row.issued + 1, row.length)
            self._both(lambda: self.ours.write(seq, row.issued, hi), lambda: self.model.write(seq, hi))

    def _append(self) -> None:
        seq = self._pick()
        if seq is not None:
            self._both(lambda: self.ours.append(seq, 0), lambda: self.model.append(seq, 0))

    def _speculate(self) -> None:
        """Some tokens ahead, computed or not, then back to where they were accepted."""
        seq = self._pick()
        if seq is None:
            return
        row = self.model.rows[seq]
        accepted = row.length + self.random.randint(0, 2)
        for _ in range(self.random.randint(1, 4)):
            self._both(lambda: self.ours.append(seq, 0), lambda: self.model.append(seq, 0))
        if self.random.random() < 0.5:
            self._begin()
        length = max(min(accepted, row.length), row.first * self.model.block_size, 1)
        self._both(lambda: self.ours.truncate(seq, length), lambda: self.model.truncate(seq, length))

    def _fork(self) -> None:
        seq = self._pick()
        if seq is not None and len(self.model.tables) < MAX_LIVE:
            self._fork_of(seq)

    def _fork_of(self, seq: int) -> None:
        self._next += 1
        child = self._next
        self._both(lambda: self.ours.fork(seq, child), lambda: self.model.fork(seq, child))

    def _beam(self) -> None:
        """The best beam is continued twice, the worst one dropped."""
        best, worst = self._pick(), self._pick()
        if best is not None and worst is not None and best != worst:
            self._fork_of(best)
            self._free(worst, Kind.FINISH, Reason.BEAM)

    def _slide(self) -> None:
        seq = self._pick()
        if seq is not None:
            position = self.random.randint(0, self.model.rows[seq].issued)
            self._both(lambda: self.ours.slide(seq, position), lambda: self.model.slide(seq, position))

    def _finish(self) -> None:
        self._end_one(Kind.FINISH, Reason.LENGTH)

    def _abort(self) -> None:
        self._end_one(Kind.ABORT, Reason.ABORTED)

    def _end_one(self, kind: Kind, reason: Reason) -> None:
        if self.model.tables:
            self._free(self.random.choice(list(self.model.tables)), kind, reason)

    def _preempt(self) -> None:
        if self.model.tables:
            seq = self.random.choice(list(self.model.tables))
            self._preempted[seq] = self.model.rows[seq].length
            self._free(seq, Kind.PREEMPT, Reason.CAPACITY)

    def _swap_out(self) -> None:
        if self.model.tables:
            seq = self.random.choice(list(self.model.tables))
            self._both(lambda: self.ours.swap_out(seq), lambda: self.model.swap_out(seq))

    def _swap_in(self) -> None:
        if self.model.parked and len(self.model.tables) < MAX_LIVE:
            seq = self.random.choice(list(self.model.parked))
            if self.random.random() < 0.2:
                self._forget(seq)
            else:
                self._both(lambda: self.ours.swap_in(seq), lambda: self.model.swap_in(seq))

    def _forget(self, seq: int) -> None:
        self._both(
            lambda: self.ours.forget_swapped(seq, Kind.ABORT, Reason.ABORTED), lambda: self.model.forget_swapped(seq)
        )

    def _swapped(self) -> None:
        swaps, self._swaps = self._swaps, []
        self._both(lambda: self.ours.swaps_done(swaps), self.model.swaps_done)

    def _free(self, seq: int, kind: Kind, reason: Reason) -> None:
        self._both(lambda: self.ours.free(seq, kind, reason), lambda: self.model.free(seq))

    def _begin(self) -> None:
        ready = [seq for seq in self.model.pending if self.random.random() < 0.8]
        if ready and len(self.model.steps) < MAX_OPEN:
            self._swapped()  # a step reads what has arrived
            rows = self.model.rows
            scheduled = [Scheduled(seq, rows[seq].computed, rows[seq].issued) for seq in ready]
            self._both(lambda: self.ours.begin_step(scheduled), lambda: self.model.begin_step(ready))

    def _end(self) -> None:
        if self.model.steps:
            self._copied()
            self._both(self.ours.end_step, self.model.end_step)

    def _copied(self) -> None:
        copies, self._copies = self._copies, []
        self._both(lambda: self.ours.copies_done(copies), self.model.copies_done)

    def _lease(self) -> None:
        live = sorted(self.model.held)
        if live:
            blocks = self.random.sample(live, min(len(live), self.random.randint(1, 3)))
            slots, ttl = self.random.randint(0, self.model.block_size), self.random.choice([None, 0, 2, 5])
            deadline = None if ttl is None else self.model.begun + ttl
            self._both(
                lambda: self.ours.lease(blocks, holder="offload", slots=(0, slots), ttl=ttl),
                lambda: self.model.lease(blocks, slots, deadline),
            )

    def _unlease(self) -> None:
        if self.model.transfers:
            self._end_lease(self.random.choice(list(self.model.transfers)))

    def _end_lease(self, lease: int) -> None:
        self._both(lambda: self.ours.unlease(lease), lambda: self.model.unlease(lease))

    def _expire(self) -> None:
        self._both(self.ours.expire, lambda: self.model.expire(self.model.begun))

    def _grow(self) -> None:
        blocks = self.random.randint(1, 6)
        if self.model.num_blocks + blocks in self.sizes:
            self._both(lambda: self.ours.grow(blocks), lambda: self.model.grow(blocks))

    def _shrink(self) -> None:
        blocks = self.random.randint(1, 6)
        if self.model.num_blocks - blocks in self.sizes:
            self._both(lambda: self.ours.shrink(blocks), lambda: self.model.shrink(blocks))

    # -- both, and the comparison ---------------------------------------------------------------------------------

    def _pick(self) -> int | None:
        """A sequence all of whose tokens are issued, and that may grow."""
        ready = [s for s, row in self.model.rows.items() if row.issued == row.length and row.length < MAX_TOKENS]
        return self.random.choice(ready) if ready else None

    def _both(self, ours: Callable[[], object], model: Callable[[], object]) -> bool:
        """Run an operation on both; False if both refused it.

        Raises:
            Violation: one did what the other refused, or for other reasons.
        """
        mine, its = _outcome(ours), _outcome(model)
        self._copies += self.ours.drain_copies()
        self._swaps += self.ours.drain_swaps()
        if mine != its:
            raise Violation("KV012", f"the manager says {mine}, the reference {its}")
        self.refused += mine != "done"
        return mine == "done"

    def _compare(self, name: str) -> None:
        ours, model = self.ours, self.model
        counts = ours.pool.counts()
        if counts != model.counts() or sum(counts.values()) != model.num_blocks:
            self._differ(name, f"counts {counts}", f"{model.counts()} of {model.num_blocks}")
        if ours.host_free() != model.host_free():
            self._differ(name, f"{ours.host_free()} free host slots", f"{model.host_free()}")
        for seq, table in model.tables.items():
            if ours.table(seq) != table:
                self._differ(name, f"table {ours.table(seq)} of sequence {seq}", f"{table}")
        if sum(self.done.values()) % 256 == 0:
            ours.check_integrity()
            if ours.pool.free_list() != list(model.free_list):
                self._differ(name, f"free list {ours.pool.free_list()}", f"{list(model.free_list)}")

    def _differ(self, name: str, ours: str, model: str) -> None:
        raise Violation(
            "KV012", f"after operation {sum(self.done.values())} ({name}): {ours}, the reference has {model}"
        )


def _outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except OutOfBlocks as refusal:
        return f"refused: {refusal.needed} of {refusal.available}"
    except FaultyCall:
        return "faulty"
    return "done"
