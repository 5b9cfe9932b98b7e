"""Who wrote what lies in each slot that a step reads: by the trace alone, and by the device that ran it.

The device runs the copies and transfers of a step before it writes, whatever was decided first. It is held slot by slot
against what `reads` makes of the events, for every fault and without shadow words.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.errors import OutOfBlocks
from kvscope.inspector.explain import explain
from kvscope.inspector.faults import FAULTS, improvised
from kvscope.inspector.faults.stage import Stage
from kvscope.inspector.faults.truth import DeviceTruth, Row
from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.read_records import NEVER, StepRead
from kvscope.inspector.readers import readers_of
from kvscope.inspector.reads import Reader, reads_of
from kvscope.inspector.source import frozen
from kvscope.inspector.worker_rows import WorkerRows
from kvscope.traces.schema import Kind, Reason

SEEDS = range(40)
# By what their events say these do something else than they do.
UNTOLD = {
    "staging-overwritten": "rows are overwritten on their way to the device",
    "copy-into-neighbour": "the device copies elsewhere",
    "copy-never-runs": "the device copies nothing",
    "swap-without-lease": "the word that a transfer has run comes before it runs",
    "reads-before-arrival": "the word that a transfer has run comes long after it",
    "no-lookahead": "entries of a row that no event tells of",
    "slot-off-by-one": "the stage forgets where writes of a cancelled step would have gone",
    "foreign-write": "the stage keeps writes of a sequence that gave way",
}
_OPERATIONS = ("prompt", "decode", "fork", "cut", "end", "slide", "swap_out", "swap_in", "begin", "finish", "close")

Writer = tuple[int, int] | None  # sequence, step; None: nobody
Seen = dict[tuple[int, int], list[tuple[int, Writer]]]  # sequence, step -> (slot, who wrote it) of each position


class SeeingTruth(DeviceTruth):
    """Notes what every step read, until an operation of its manager breaks off in the middle."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.seen: Seen = {}
        self.broken = False

    def step(self, number: int, rows: Sequence[Row]) -> None:
        super().step(number, rows)
        for row in rows if not self.broken else ():
            cells = [self.slots.get(slot) for slot in row.reads]
            writers = [(cell.seq_id, cell.step) if cell is not None else None for cell in cells]
            self.seen[row.seq_id, number] = list(zip(row.reads, writers, strict=True))


class SeeingStage(Stage):
    """A stage without shadow words, with such a truth."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tells = False
        self.seeing = self.truth = SeeingTruth(self.manager.block_size)
        for name in _OPERATIONS:
            setattr(self, name, functools.partial(self._whole, getattr(self, name)))

    def _whole(self, operation: Callable[..., Any], *args: Any) -> Any:
        try:
            return operation(*args)
        except OutOfBlocks:
            raise
        except Exception:
            self.seeing.broken = True
            raise


class SeeingReader(Reader):
    """Notes the same, from the events."""

    seen: Seen

    def compare(self, read: StepRead) -> None:
        super().compare(read)
        events = self.trace.events
        writers = [
            (int(events["seq_id"][row]), int(events["step"][row])) if row >= 0 else None for row in read.found.tolist()
        ]
        self.seen[read.seq_id, int(events["step"][read.row])] = list(
            zip(read.slots.tolist(), writers, strict=True)
        )  # fmt: skip


def seen_by(trace: Any) -> Seen:
    reader = SeeingReader(frozen(trace), WorkerRows(check(trace)), alike=False)
    reader.seen = {}
    reader.play()
    return reader.seen


@pytest.mark.parametrize("name", [None, *(name for name in FAULTS if name not in UNTOLD)])
def test_every_slot_that_is_read_was_written_by_whom_the_device_had_write_it(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(improvised, "Stage", SeeingStage)
    manager, compared = FAULTS[name].manager() if name else BlockManager, 0
    for seed in SEEDS:
        stage = improvised.improvise(seed, manager=manager, broken=name is not None)
        told, truth = seen_by(stage.sink), stage.truth
        assert isinstance(truth, SeeingTruth)
        for step, cells in truth.seen.items():
            for (slot, writer), (at, found) in zip(cells, told[step], strict=True):
                assert slot != at or writer == found, (name, seed, step, slot)
                compared += slot == at
    assert compared > 500


def test_of_a_right_manager_no_read_is_foreign() -> None:
    for seed in range(200, 400):
        assert reads_of(improvised.improvise(seed).sink).damage == {}, seed


def handed_out_twice(*, copied_last: bool) -> HandTrace:
    """Block 2 is handed to news, for its prompt, and to haiku/1, for a copy of haiku's last block; in either order."""
    trace = HandTrace(num_blocks=6, block_size=4).request(0, "haiku", [1, 2], prompt_tokens=2)
    trace.request(1, "news", [3], prompt_tokens=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    life = 2 if copied_last else 1  # of the copy
    if copied_last:
        trace.event(Kind.ADMIT, seq_id=3).alloc(2, seq_id=3).write(2, 0, 4, seq_id=3)
    trace.copy_on_write(0, 2, 2, seq_id=2).write(2, 2, 3, seq_id=2)
    if not copied_last:
        trace.event(Kind.ADMIT, seq_id=3).alloc(2, seq_id=3).write(2, 0, 4, seq_id=3)
    trace.begin((3, 0, 4, [(2, 3 - life)]), (2, 2, 3, [(2, life)]))
    trace.event(Kind.COPY_DONE, block=2, gen=life, aux=0).unlease(0, 1)
    return trace.end()


@pytest.mark.parametrize("copied_last", [True, False])
def test_a_copy_into_a_block_lands_before_what_the_same_step_writes_there(copied_last: bool) -> None:
    """News' prompt lies over the copy: haiku/1 is the victim in two slots, news in the one that haiku/1 wrote."""
    trace = handed_out_twice(copied_last=copied_last)
    damage = reads_of(trace).damage
    assert set(damage) == {2, 3}
    first, news = damage[2].first, damage[3].first
    assert first is not None
    assert news is not None
    assert (first.position, int(trace.events["seq_id"][first.found]), first.count) == (0, 3, 2)
    assert (news.position, int(trace.events["seq_id"][news.found]), news.count) == (2, 2, 1)
    told = explain(trace, "haiku/1")
    assert told.read is not None
    assert (told.read.found.name, told.read.expected.name, told.read.slot) == ("news", "haiku", 0)


def copied_from_a_block_that_another_writes() -> HandTrace:
    """Block 0 is handed to news while haiku and haiku/1 hold it; haiku/1 copies it before news' prompt is written."""
    trace = HandTrace(num_blocks=6, block_size=4).request(0, "haiku", [1, 2], prompt_tokens=2)
    trace.request(1, "news", [3], prompt_tokens=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.event(Kind.ADMIT, seq_id=3).alloc(0, seq_id=3).write(0, 0, 4, seq_id=3)
    trace.alloc(1, seq_id=2, reason=Reason.COPY_ON_WRITE).lease(0, 1, 0, 2)
    trace.event(Kind.COW, block=1, gen=1, fill=2, seq_id=2, lblock=0, aux=0, details=(0, 1, 0, 2))
    trace.write(1, 2, 3, seq_id=2)
    trace.begin((3, 0, 4, [(0, 2)]), (2, 2, 3, [(1, 1)]))
    return trace.event(Kind.COPY_DONE, block=1, gen=1, aux=0).end()


def test_a_copy_reads_its_source_before_the_same_step_writes_there() -> None:
    damage = reads_of(copied_from_a_block_that_another_writes()).damage
    assert damage == {}, "the copy was taken before news wrote"


def test_what_is_cut_away_or_ended_before_its_step_is_never_written() -> None:
    trace = HandTrace(num_blocks=4, block_size=4).request(0, "haiku", [1], prompt_tokens=4).request(1, "news", [2])
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.event(Kind.TRUNCATE, seq_id=1, aux=2)
    trace.begin((1, 0, 2, [(0, 1)]), (2, 4, 4, [(0, 1)])).end()
    first = reads_of(trace).damage[2].first
    assert first is not None
    assert (first.position, first.found, first.count) == (2, NEVER, 2)
    assert set(reads_of(trace).damage) == {2}


def test_the_blast_radius_of_a_finding_follows_the_same_order() -> None:
    """Both write block 0 in one step: the earlier row's reader is a victim of the later one's write, and is listed."""
    trace = HandTrace(num_blocks=4, block_size=4).request(0, "haiku", [1, 2], prompt_tokens=2)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.write(0, 2, 3, seq_id=1).write(0, 2, 3, seq_id=2)
    trace.begin((1, 2, 3, [(0, 1)]), (2, 2, 3, [(0, 1)])).end()
    shared = [finding for finding in check(trace).findings if finding.code == "KV006"]
    assert [reader.seq_id for finding in shared for reader in readers_of(trace, finding)] == [1, 1]
