"""Small plays on the stage, each around one way of using blocks; a right manager goes through all of them clean.

A play says nothing of any fault: the kill matrix puts every broken manager through all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from kvscope.engine.prefix import identity
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.inspector.faults.stage import ManagerFactory, Stage, perform
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason


@dataclass(frozen=True, slots=True)
class Play:
    """A play and the stage it needs."""

    name: str
    act: Callable[[Stage], None]
    options: dict[str, int] = field(default_factory=dict)

    def run(self, manager: ManagerFactory) -> MemoryRecorder:
        """The trace of one performance."""
        return self.staged(manager).sink

    def staged(self, manager: ManagerFactory) -> Stage:
        """The stage after one performance: its trace, and the truth beside it."""
        stage = Stage(manager, **self.options)
        perform(self.act, stage)
        return stage


def _decode(stage: Stage, seq_ids: tuple[int, ...], tokens: list[int], *, alike: bool = False) -> None:
    for token in tokens:
        for seq_id in seq_ids:
            stage.decode(seq_id, token if alike else token + seq_id)
        stage.step()


def samples(stage: Stage) -> None:
    """Three samples of one prompt, whose last block is half filled; another request beside them and after them."""
    stage.prompt(0, [1, 2, 3, 4, 5, 6])
    stage.prompt(1, [9, 8, 7])
    stage.step()
    stage.fork(0, 2)
    stage.fork(0, 3)
    _decode(stage, (0, 1, 2, 3), [10, 20, 30, 40])
    stage.end(2)
    stage.prompt(4, [5, 5, 5, 5, 5])
    stage.step()
    _decode(stage, (0, 1, 3, 4), [50, 60])
    stage.end(3)
    stage.prompt(5, [6, 6, 6])
    stage.step()
    _decode(stage, (0, 1, 4, 5), [70, 80])
    for seq_id in (0, 1, 4, 5):
        stage.end(seq_id)


def lockstep(stage: Stage) -> None:
    """Two samples that choose the same tokens: what they write is identical."""
    stage.prompt(0, [1, 2, 3, 4, 5, 6])
    stage.step()
    stage.fork(0, 1)
    _decode(stage, (0, 1), [10, 20, 30], alike=True)


def prefixes(stage: Stage) -> None:
    """Prompts that share a beginning, a middle, or only the tokens but not the identity."""
    head = [1, 2, 3, 4, 5, 6, 7, 8]
    stage.prompt(0, [*head, 9])
    stage.step()
    stage.prompt(1, [*head, 10])
    stage.prompt(2, [*head, 9], identity(tenant="x"))
    stage.prompt(3, [4, 3, 2, 1, 5, 6, 7, 8, 9])
    stage.step()
    _decode(stage, (0, 1, 2, 3), [20, 30])
    stage.end(0)
    stage.end(2)
    stage.prompt(4, [*head, 9], identity(adapter="x"))
    stage.prompt(5, [*head, 9], identity(epoch=2))
    stage.step()
    stage.prompt(6, [*head, 11, 12, 13, 14, 15])
    stage.step()
    _decode(stage, (1, 3, 4, 5, 6), [40, 50])


def together(stage: Stage) -> None:
    """Equal prompts that arrive in the same step, before anything of them is computed; one is aborted at once."""
    head = [1, 2, 3, 4, 5, 6, 7, 8]
    stage.prompt(0, [*head, 9])
    stage.prompt(1, [*head, 10])
    stage.begin()
    stage.prompt(2, [*head, 11])
    stage.begin()
    stage.end(0, Kind.ABORT, Reason.ABORTED)
    stage.finish()
    stage.finish()
    _decode(stage, (1, 2), [20, 30])
    stage.prompt(3, [7, 7, 7, 7, 7])
    stage.end(3, Kind.ABORT, Reason.ABORTED)
    stage.prompt(4, [7, 7, 7, 7, 7, 7])
    stage.step()


def pressure(stage: Stage) -> None:
    """A pool that is too small: eviction, refusal, preemption and coming back."""
    stage.prompt(0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    stage.step()
    stage.end(0)
    stage.prompt(1, [1, 2, 3, 4, 5, 6, 7, 8, 10])
    stage.step()
    stage.prompt(2, [11, 12, 13, 14, 15, 16, 17, 18, 19])
    stage.step()
    stage.prompt(3, [1, 2, 3, 4, 5, 6, 7, 8, *range(30, 42)])  # refused: half of it is cached, the rest does not fit
    _decode(stage, (1, 2), [20, 30, 40, 50])
    stage.preempt(1)
    stage.prompt(4, [21, 22, 23, 24, 25, 26, 27, 28, 29])
    stage.step()
    _decode(stage, (2, 4), [60, 70])
    stage.end(4)
    stage.end(2)
    stage.prompt(1, [])
    stage.step()
    _decode(stage, (1,), [80, 90])
    stage.prompt(5, [11, 12, 13, 14, 15, 16, 17, 18, 30])
    stage.step()
    stage.prompt(6, [11, 12, 13, 14])
    stage.step()
    _decode(stage, (1, 5, 6), [60, 70])
    stage.end(5)
    stage.prompt(7, [21, 22, 23, 24, 25, 26, 27, 28, 29])
    stage.step()
    for seq_id in (1, 6, 7):
        if seq_id in stage.tokens:
            stage.end(seq_id)
    stage.prompt(3, [])
    stage.step()


def tight(stage: Stage) -> None:
    """A prompt that finds its beginning in the cache, and no room for the rest; later there is."""
    stage.prompt(0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    stage.step()
    stage.end(0)
    stage.prompt(1, list(range(20, 37)))
    stage.step()
    stage.prompt(2, [1, 2, 3, 4, 5, 6, 7, 8, 10])
    stage.end(1)
    stage.prompt(2, [])
    stage.step()
    _decode(stage, (2,), [40, 41])


def rollback(stage: Stage) -> None:
    """Speculated tokens are dropped, across a block's border and into a published block."""
    stage.prompt(0, [1, 2, 3, 4, 5, 6])
    stage.step()
    _decode(stage, (0,), [7, 8, 9, 10, 11])
    stage.cut(0, 9)
    _decode(stage, (0,), [12, 13, 14, 15, 16])
    stage.cut(0, 6)
    _decode(stage, (0,), [17, 18, 19])
    stage.prompt(1, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    stage.step()
    stage.cut(0, 2)
    stage.prompt(2, [40, 41, 42, 43, 44])
    _decode(stage, (0,), [30, 31, 32, 33])
    stage.prompt(3, [1, 2, 3, 4, 5])
    stage.step()
    _decode(stage, (0, 1, 2, 3), [34, 35])


def ahead(stage: Stage) -> None:
    """One step is planned while another is open: what ends meanwhile must not be reused before it has completed."""
    for seq_id in range(3):
        stage.prompt(seq_id, [10 * seq_id + i for i in range(6)])
    stage.step()
    for token in (70, 80, 90):
        for seq_id in (0, 1, 2):
            if seq_id in stage.tokens:
                stage.decode(seq_id, token + seq_id)
        stage.begin()
        if token == 70:
            stage.end(0)
            stage.prompt(3, [60, 61, 62])
            stage.begin()
        elif token == 80:
            stage.preempt(1)
            stage.prompt(4, [50, 51, 52, 53, 54, 55, 56])
            stage.begin()
        while stage.open:
            stage.finish()
    stage.prompt(1, [])
    stage.step()
    _decode(stage, (1, 2, 3, 4), [30, 40, 50])


def resumed(stage: Stage) -> None:
    """A sequence gives way, another takes its blocks, and it comes back to other ones."""
    stage.prompt(0, [1, 2, 3])
    stage.prompt(1, [11, 12, 13, 14, 15])
    stage.step()
    _decode(stage, (0, 1), [20])
    stage.preempt(0)
    for seq_id in (2, 3):
        stage.prompt(seq_id, [30 + seq_id, 31, 32])
        stage.step()
    stage.prompt(0, [])
    stage.step()
    _decode(stage, (0, 1, 2, 3), [40, 50, 60])
    stage.preempt(1)
    stage.prompt(4, [71, 72, 73, 74, 75, 76])
    stage.step()
    stage.end(4)
    stage.prompt(1, [])
    stage.step()
    _decode(stage, (0, 1, 2, 3), [80, 90])


def windows(stage: Stage) -> None:
    """A sliding window: the front of a row is given back while steps are open, and others take it."""
    stage.prompt(0, list(range(1, 11)))
    stage.step()
    for token in range(20, 28):
        stage.decode(0, token)
        stage.begin()
        stage.slide(0)
        if stage.prompt(token, [token, *range(1, 5)]):
            stage.begin(token)
        while stage.open:
            stage.finish()
        if token in stage.tokens:
            stage.decode(token, 9)
            stage.step()
            stage.end(token)
    stage.end(0)
    stage.prompt(50, list(range(60, 70)))
    stage.step()
    _decode(stage, (50,), [30, 31, 32, 33, 34])


def transfers(stage: Stage) -> None:
    """Leases: a transfer reads blocks whose sequence ends; what was looked up is kept until it is admitted."""
    stage.prompt(0, [1, 2, 3, 4, 5, 6])
    stage.step()
    first = stage.manager.lease(stage.manager.table(0), holder="store 1", seq_id=0, ttl=2)
    second = stage.manager.lease(stage.manager.table(0), holder="store 2", seq_id=0)
    stage.end(0)
    stage.manager.unlease(first.lease_id)
    stage.prompt(1, [11, 12, 13, 14, 15])
    stage.step()
    with suppress(FaultyCall):
        stage.manager.unlease(second.lease_id)
    stage.manager.lookup(2, [1, 2, 3, 4, 9])
    stage.prompt(2, [1, 2, 3, 4, 9])
    stage.step()
    held = stage.manager.lease(stage.manager.table(1)[:1], holder="late", ttl=1)
    _decode(stage, (1, 2), [20, 30, 40])
    assert [lease.lease_id for lease in stage.manager.expire()] == [held.lease_id]
    stage.prompt(3, [21, 22, 23, 24, 25, 26, 27, 28])
    stage.step()


def swaps(stage: Stage) -> None:
    """Preemption by swap: two sequences go to the host and come back in another order; one is aborted there."""
    for seq_id in range(3):
        stage.prompt(seq_id, [10 * seq_id + i for i in range(6)])
    stage.step()
    _decode(stage, (0, 1, 2), [70])
    stage.swap_out(0)
    stage.swap_out(1)
    stage.prompt(3, [91, 92, 93, 94, 95])  # its blocks come free only when the transfers have run
    stage.step()
    stage.prompt(4, [81, 82, 83, 84, 85])
    stage.step()
    _decode(stage, (2, 4), [71])
    stage.end(4)
    if 3 in stage.tokens:
        stage.end(3)
    stage.swap_in(1)
    stage.swap_in(0)
    stage.decode(0, 72)
    stage.decode(1, 73)
    stage.step()
    _decode(stage, (0, 1, 2), [74, 75])


def sizes(stage: Stage) -> None:
    """The pool grows and shrinks; what lies in its last blocks moves in front."""
    stage.prompt(0, [1, 2, 3, 4, 5, 6])
    stage.prompt(1, [11, 12, 13])
    stage.step()
    stage.fork(0, 2)
    stage.grow(4)
    stage.prompt(3, list(range(40, 60)))
    stage.step()
    _decode(stage, (0, 1, 2, 3), [20, 30])
    stage.end(1)
    stage.end(0)
    with suppress(OutOfBlocks, FaultyCall):
        stage.shrink(6)
    _decode(stage, (2, 3), [40, 50])


PLAYS: dict[str, Play] = {
    play.name: play
    for play in (
        Play("samples", samples), Play("lockstep", lockstep), Play("prefixes", prefixes, {"num_blocks": 32}),
        Play("together", together), Play("pressure", pressure, {"num_blocks": 7}), Play("rollback", rollback),
        Play("tight", tight, {"num_blocks": 7}), Play("ahead", ahead, {"num_blocks": 6}),
        Play("resumed", resumed, {"num_blocks": 9}),
        Play("windows", windows, {"num_blocks": 4, "window": 6}), Play("transfers", transfers, {"num_blocks": 7}),
        Play("swaps", swaps, {"num_blocks": 7, "host_blocks": 8}),
        Play("sizes", sizes, {"num_blocks": 10, "max_blocks": 14}),
    )
}  # fmt: skip
