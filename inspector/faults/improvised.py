"""Improvised plays: any operations in any order, drawn from a seed, for what no written play thinks of."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import identity
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.inspector.faults.stage import ManagerFactory, Stage
from kvscope.traces.schema import Kind, Reason

_OPERATIONS = (
    *("prompt",) * 3, *("decode",) * 6, *("fork",) * 2, "cut", "end", "abort", "preempt", "again", "swap_out",
    "swap_in", "grow", "shrink", "lease", "unlease", *("begin",) * 4, *("finish",) * 4,
)  # fmt: skip


class _Improviser:
    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self.stage, self.rng = stage, rng
        self.next_id = 0
        self.leases: list[int] = []

    def play(self, length: int) -> None:
        for _ in range(length):
            with suppress(OutOfBlocks, FaultyCall):
                getattr(self, "_" + self.rng.choice(_OPERATIONS))()

    def _pick(self) -> int | None:
        living = [s for s in self.stage.tokens if s not in self.stage.parked]
        return self.rng.choice(living) if living else None

    def _prompt(self) -> None:
        head = [self.rng.randrange(2) for _ in range(self.rng.randint(1, 12))]
        extras = identity(tenant="x") if self.rng.random() < 0.2 else ()
        self.stage.prompt(self.next_id, head, extras)
        self.next_id += 1

    def _again(self) -> None:
        if self.stage.ended:
            self.stage.prompt(self.rng.choice(list(self.stage.ended)), [])

    def _decode(self) -> None:
        for seq_id in [s for s in self.stage.tokens if s not in self.stage.parked]:
            if self.rng.random() < 0.7:
                self.stage.decode(seq_id, self.rng.randrange(3))

    def _fork(self) -> None:
        parent = self._pick()
        if parent is not None and parent not in self.stage.waiting:
            self.stage.fork(parent, self.next_id)
            self.next_id += 1

    def _cut(self) -> None:
        seq_id = self._pick()
        if seq_id is not None and not self.stage.window:
            self.stage.cut(seq_id, self.rng.randint(1, len(self.stage.tokens[seq_id])))

    def _end(self) -> None:
        seq_id = self._pick()
        if seq_id is not None:
            self.stage.end(seq_id)

    def _abort(self) -> None:
        seq_id = self._pick()
        if seq_id is not None:
            self.stage.end(seq_id, Kind.ABORT, Reason.ABORTED)

    def _preempt(self) -> None:
        seq_id = self._pick()
        if seq_id is not None:
            self.stage.preempt(seq_id)

    def _swap_out(self) -> None:
        seq_id = self._pick()
        if seq_id is not None and self.stage.swaps and seq_id not in self.stage.waiting:
            self.stage.swap_out(seq_id)

    def _swap_in(self) -> None:
        if self.stage.parked:
            self.stage.swap_in(self.rng.choice(list(self.stage.parked)))

    def _grow(self) -> None:
        if self.stage.manager.num_blocks < 24:
            self.stage.grow(self.rng.randint(1, 3))

    def _shrink(self) -> None:
        if self.stage.manager.num_blocks > 4:
            self.stage.shrink(self.rng.randint(1, 2))

    def _lease(self) -> None:
        seq_id = self._pick()
        blocks = [b for b in self.stage.manager.table(seq_id) if b >= 0] if seq_id is not None else []
        if blocks:
            self.leases.append(self.stage.manager.lease(blocks[:2], seq_id=seq_id or 0).lease_id)

    def _unlease(self) -> None:
        if self.leases:
            self.stage.manager.unlease(self.leases.pop(0))

    def _begin(self) -> None:
        if self.stage.waiting and len(self.stage.open) < 2:
            self.stage.begin()
            for seq_id in [s for s in self.stage.tokens if self.stage.window and s not in self.stage.parked]:
                self.stage.slide(seq_id)

    def _finish(self) -> None:
        if self.stage.open:
            self.stage.finish()

    def close(self) -> None:
        while self.leases:
            self.stage.manager.unlease(self.leases.pop(0))
        self.stage.close()


def improvise(
    seed: int, *, manager: ManagerFactory = BlockManager, length: int = 60, broken: bool = False
) -> Stage:  # fmt: skip
    """One random run to its end; the same seed gives the same run.

    Args:
        broken: the manager may trip over its own state; what was recorded by then counts.

    Returns:
        The stage: its trace is in `sink`, and `wrong` counts reads of foreign prefixes.
    """
    rng = random.Random(seed)
    window = rng.choice((0, 0, 0, 5))
    swaps = 0 if window else rng.choice((0, 12))
    stage = Stage(manager, rng.randint(3, 14), rng.randint(1, 4), host_blocks=swaps, window=window)
    actor = _Improviser(stage, rng)
    with suppress(Exception) if broken else nullcontext():
        actor.play(length)
    with suppress(Exception) if broken else nullcontext():
        actor.close()
    stage.sink.close()
    return stage
