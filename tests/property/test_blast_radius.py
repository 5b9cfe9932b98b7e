"""The blast radius of a report and the victims of `explain` are told by one rule: who found foreign KV in the block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.block_reads import foreign_reads
from kvscope.inspector.explain import explain
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.improvised import improvise
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.faults.stage import Stage, perform
from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.readers import CONTENT_CODES, readers_of
from kvscope.inspector.reads import Reader, reads_of
from kvscope.inspector.report import report
from kvscope.inspector.source import frozen
from kvscope.inspector.worker_rows import WorkerRows
from kvscope.traces import Kind, MemoryRecorder


def runs(name: str) -> Iterator[MemoryRecorder]:
    """A broken manager in every play, with the shadow words beside it and without, and in some improvised ones."""
    for play in PLAYS.values():
        for tells in (True, False):
            stage = Stage(FAULTS[name].manager(), **play.options)
            stage.tells = tells
            yield perform(play.act, stage)
    for seed in range(3):
        yield improvise(seed, manager=FAULTS[name].manager(), broken=True).sink


@pytest.mark.parametrize("name", FAULTS)
def test_looking_at_one_block_tells_what_looking_at_all_tells(name: str) -> None:
    for trace in map(frozen, runs(name)):
        size, found = trace.block_size, dict[tuple[int, int], set[int]]()
        for row, slots in Reader(trace, WorkerRows(None)).play().wrong.items():
            for slot in slots[slots >= 0].tolist():
                found.setdefault((slot // size, row), set()).add(slot % size)
        assert found == {
            (block, row): set(slots.tolist())
            for block in range(trace.num_blocks)
            for row, slots in (foreign_reads(trace, block) or {}).items()
        }


@pytest.mark.parametrize("name", ["publish-at-admission", "missing-copy", "double-allocation", "slot-off-by-one"])
def test_whoever_a_report_names_is_damaged_by_explain(name: str) -> None:
    told = 0
    for trace in runs(name):
        result = check(trace)
        damage = reads_of(trace, result).damage
        for finding in result.findings:
            if finding.code in CONTENT_CODES and finding.block >= 0:
                readers = {reader.seq_id for reader in readers_of(frozen(trace), finding)}
                assert readers <= damage.keys(), (finding, readers)
                told += len(readers)
    assert told


@pytest.mark.parametrize("seed", range(10))
def test_runs_without_a_fault_have_no_foreign_read_in_any_block(seed: int) -> None:
    trace = frozen(improvise(seed, manager=BlockManager).sink)
    assert not [block for block in range(trace.num_blocks) if foreign_reads(trace, block)]


def early(*, in_time: bool) -> HandTrace:
    """Block 0 is published before it is written; 2 hits it and reads it, after its publisher has written or before."""
    trace = HandTrace(block_size=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).publish(0, seq_id=1, lblock=0)
    trace.event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2)
    if in_time:
        trace.write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.alloc(1, seq_id=2, lblock=1).write(1, 0, 1, seq_id=2, lblock=1)
    return trace.begin((2, 2, 3, [(0, 1), (1, 1)])).end()


@pytest.mark.parametrize("in_time", [True, False])
def test_an_early_publication_names_who_was_hit_and_nobody_else(in_time: bool) -> None:
    trace = early(in_time=in_time)
    finding = next(f for f in check(trace).findings if f.code == "KV016")
    assert [reader.seq_id for reader in readers_of(frozen(trace), finding)] == ([] if in_time else [2])
    assert explain(trace, "s2").verdict == ("clean" if in_time else "damaged")
    assert ("Blast radius" in report(finding, trace)) == (not in_time)


@pytest.mark.parametrize("later", [False, True])
def test_what_a_sequence_writes_after_its_end_lies_over_the_next_owner_s(later: bool) -> None:
    """Unless that writes the slot by a step that begins later."""
    trace = HandTrace(block_size=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 1, seq_id=1)
    trace.begin((1, 0, 1, [(0, 1)])).end().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)
    trace.event(Kind.ADMIT, seq_id=2).alloc(0, seq_id=2)
    if later:
        trace.write(0, 0, 1, seq_id=1, gen=1).begin().end().write(0, 0, 1, seq_id=2)
    else:
        trace.write(0, 0, 1, seq_id=2).write(0, 0, 1, seq_id=1, gen=1)
    trace.begin((2, 0, 1, [(0, 2)])).end()
    told = explain(trace, "s2")
    late = next(f for f in check(trace).findings if f.code == "KV001")
    assert told.verdict == ("clean" if later else "damaged")
    assert [reader.seq_id for reader in readers_of(frozen(trace), late)] == ([] if later else [2])
    assert later or told.cause == late
