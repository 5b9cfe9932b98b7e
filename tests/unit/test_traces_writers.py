"""A trace that several writers went on with is judged and told as what each of them did, to its own pool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_json, explanation_text
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import check
from kvscope.inspector.lanes import Lane, lanes
from kvscope.inspector.measures import summary
from kvscope.inspector.report import report
from kvscope.inspector.runs import run_of, runs_of
from kvscope.inspector.source import Names, frozen
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Recorder, open_trace, reader
from kvscope.traces.reader import SETTLED_ROWS, TraceReader

PLAY = PLAYS["samples"]


def written_again(memory: MemoryRecorder, path: Path, number: int) -> None:
    """The events and facts of a run, with the next writer of a trace."""
    pool = PoolFacts(memory.num_blocks, memory.block_size)
    with Recorder(path, pool=pool, sealing="inline", resume=number > 0, record="sanitize") as sink:
        start = sink.next_seq
        for fact in memory.facts:
            sink.fact(fact)
        for seq, row in zip(memory.seqs.tolist(), memory.events, strict=True):
            sink.step = int(row["step"])
            names = ("kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")
            at = sink.emit(**{name: int(row[name]) for name in names})
            assert at == start + seq
            if (detail := memory.detail(seq)) is not None:
                sink.detail(at, detail)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[MemoryRecorder]]:
    """A clean run, one with a fault, and a clean one, of the same sequence ids under other names."""
    path = tmp_path_factory.mktemp("writers") / "a.kvtrace"
    runs = [PLAY.run(manager) for manager in (BlockManager, FAULTS["missing-copy"].manager(), BlockManager)]
    for number, memory in enumerate(runs):
        memory.fact({"type": "request", "request": 900 + number, "name": f"of-{number}", "seq_ids": [0]})
        written_again(memory, path, number)
    return path, runs


def opened(path: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> TraceReader:
    monkeypatch.setattr(reader, "SETTLED_ROWS", limit)
    trace = open_trace(path)
    assert trace.long == (limit == 10)
    return trace


@pytest.mark.parametrize("limit", [SETTLED_ROWS, 10])
def test_findings_are_those_of_the_faulty_run_alone(
    three: tuple[Path, list[MemoryRecorder]], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, runs = three
    trace, (_, alone, _) = opened(path, limit, monkeypatch), runs
    start = len(runs[0].events) + 1
    for replay in (False, True):
        found, wanted = check(trace, replay=replay), check(alone, replay=replay)
        assert wanted.findings
        assert [(f.code, f.seq - start, f.block, f.gen, f.seq_id, f.others) for f in found.findings] == [
            (f.code, f.seq, f.block, f.gen, f.seq_id, f.others) for f in wanted.findings
        ]
        assert [[(role, seq - start) for role, seq in f.related] for f in found.findings] == [
            list(f.related) for f in wanted.findings
        ]
        (note,) = found.notes
        assert note.startswith("another writer went on 2 times: ")


def without_numbers(text: str, start: int) -> list[str]:
    """The lines of a report that say no time, actor and place of the code; events are counted from `start`."""
    kept = []
    for line in text.splitlines():
        if not any(word in line for word in ("t=+", "#0", "View", "http", "SUMMARY")):
            words = line.partition(" actor ")[0].replace(",", " ,").split()
            kept.append(" ".join(str(int(w) - start) if w.isdigit() and int(w) >= start else w for w in words))
    return kept


def test_a_report_says_nothing_of_what_the_writers_before_and_behind_did(
    three: tuple[Path, list[MemoryRecorder]],
) -> None:
    path, runs = three
    trace = open_trace(path)
    start = len(runs[0].events) + 1
    found, wanted = check(trace).findings[0], check(runs[1]).findings[0]
    assert without_numbers(report(found, trace), start) == without_numbers(report(wanted, runs[1]), 0)


@pytest.mark.parametrize("limit", [SETTLED_ROWS, 10])
def test_every_writer_has_its_own_sequences_and_names(
    three: tuple[Path, list[MemoryRecorder]], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, runs = three
    trace = opened(path, limit, monkeypatch)

    def told(lane: Lane) -> tuple[object, ...]:
        return lane.seq_id, lane.name, lane.parent, lane.outcome, lane.prompt_tokens, lane.output_tokens, lane.max_held

    assert [told(lane) for lane in lanes(trace)] == [told(lane) for memory in runs for lane in lanes(memory)]
    assert [Names(run.facts)(0) for run in runs_of(frozen(trace))] == ["of-0", "of-1", "of-2"]
    start = 0
    for memory in runs:
        for seq in (start, start + len(memory.events) - 1):
            run = run_of(frozen(trace), seq)
            np.testing.assert_array_equal(run.events["kind"], memory.events["kind"])
        start += len(memory.events) + 1


@pytest.mark.parametrize("limit", [SETTLED_ROWS, 10])
def test_an_explanation_is_of_the_last_writer_that_has_the_request(
    three: tuple[Path, list[MemoryRecorder]], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, runs = three
    trace, alone = opened(path, limit, monkeypatch), runs[1]
    whole = check(trace)
    for found in (None, whole):
        told, wanted = explain(trace, "of-1", result=found), explain(alone, "of-1")
        assert (told.verdict, told.steps, told.first_token) == (wanted.verdict, wanted.steps, wanted.first_token)
        assert told.verdict == "damaged"
        start = len(runs[0].events) + 1
        assert [replace(v, first_seq=v.first_seq - start) for v in told.victims] == wanted.victims
        assert not told.lost
        assert told.writer == (2, 3)
    text = explanation_text(told, trace)
    assert text.startswith("(Writer 2 of 3 of this trace")
    assert explanation_json(told, trace)["writers"] == 3
    last = explain(trace, "s0")
    assert (last.verdict, last.request, last.writer) == ("clean", "of-2", (3, 3))
    assert explain(alone, "s0").writer is None


@pytest.mark.parametrize("limit", [SETTLED_ROWS, 10])
def test_requests_of_all_writers_are_counted(
    three: tuple[Path, list[MemoryRecorder]], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, runs = three
    told, alone = (
        summary(opened(path, limit, monkeypatch))["requests"],
        [summary(memory)["requests"] for memory in runs],
    )
    for name in ("requests", "sequences", "finished", "aborted", "forked"):
        assert told[name] == sum(each[name] for each in alone), name
    assert told["sequences"] > alone[1]["sequences"]


def test_names_are_those_of_the_writer_whose_gap_row_was_let_go(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    for number in range(3):
        options = {"sealing": "inline", "seal_rows": 250, "max_bytes": 1 << 16}
        with Recorder(path, pool=PoolFacts(8, 4), resume=number > 0, **options) as sink:
            sink.fact({"type": "request", "request": number, "name": f"of-{number}", "seq_ids": [0]})
            for row in range((100, 30_000, 100)[number]):
                sink.begin()
                sink.emit(Kind.NOTE, seq_id=0, aux=row * 7919)
    trace = frozen(open_trace(path))
    assert int(trace.seqs[0]) > 101
    assert [Names(run.facts)(0) for run in runs_of(trace)] == ["of-1", "of-2"]
