"""`explain`: the story of a request, held word for word by files in tests/golden, as JSON, and its refusals.

`KVSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_explain.py` rewrites the files: read the difference before keeping it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.errors import UsageError
from kvscope.inspector import cli
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_json, explanation_text
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.reads import reads_of
from kvscope.traces import PoolFacts, Recorder, open_trace
from kvscope.traces.schema import Kind, Reason

GOLDEN = Path(__file__).parents[1] / "golden"


def facts(trace: HandTrace) -> HandTrace:
    return trace.request(0, "haiku", [1, 2], prompt_tokens=2).request(1, "news", [3], prompt_tokens=4)


def prompt(trace: HandTrace) -> HandTrace:
    """Request haiku: two prompt tokens in block 5, then a second sample of it."""
    trace.at("engine/block_manager.py", 118, "admit").event(Kind.SUBMIT, seq_id=1, aux=2).event(Kind.ADMIT, seq_id=1)
    trace.alloc(5, seq_id=1).at("engine/pool.py", 212, "write").write(5, 0, 2, seq_id=1, reason=Reason.PREFILL)
    trace.at("engine/block_manager.py", 240, "end_step").begin((1, 0, 2, [(5, 1)])).commit(5).end()
    return trace.at("engine/block_manager.py", 160, "fork").event(Kind.FORK, seq_id=2, aux=1).share(5, seq_id=2)


def missing_copy() -> HandTrace:
    """Both samples append to the shared block; then news finds it in the prefix cache."""
    trace = prompt(facts(HandTrace(num_blocks=8, block_size=4)))
    for position in (2, 3):
        trace.at("engine/pool.py", 212, "write")
        trace.write(5, position, position + 1, seq_id=1, reason=Reason.DECODE)
        trace.write(5, position, position + 1, seq_id=2, reason=Reason.DECODE)
        trace.at("engine/block_manager.py", 240, "end_step")
        trace.begin((1, position, position + 1, [(5, 1)]), (2, position, position + 1, [(5, 1)])).commit(5).end()
    trace.publish(5, seq_id=1, lblock=0).at("engine/block_manager.py", 118, "admit")
    trace.event(Kind.SUBMIT, seq_id=3, aux=4).event(Kind.ADMIT, seq_id=3, aux=4).hit(5, seq_id=3)
    trace.alloc(6, seq_id=3, lblock=1).at("engine/pool.py", 212, "write").write(6, 0, 1, seq_id=3, lblock=1)
    return trace.begin((3, 4, 5, [(5, 1), (6, 1)])).commit(6).end()


def copied() -> HandTrace:
    """The same as it should be."""
    trace = prompt(facts(HandTrace(num_blocks=8, block_size=4)))
    trace.at("engine/pool.py", 212, "write").copy_on_write(5, 6, 2, seq_id=1).write(6, 2, 3, seq_id=1)
    trace.write(5, 2, 3, seq_id=2).copy_done(5, 6)
    return trace.begin((1, 2, 3, [(6, 1)]), (2, 2, 3, [(5, 1)])).commit(6).commit(5).end()


STORIES = {"damaged": (missing_copy, "haiku"), "through": (missing_copy, "news"), "clean": (copied, "haiku")}


@pytest.mark.parametrize("name", STORIES)
def test_golden(name: str) -> None:
    make, request = STORIES[name]
    trace = make()
    text = explanation_text(explain(trace, request), trace) + "\n"
    file = GOLDEN / f"explain_{name}.txt"
    if os.environ.get("KVSCOPE_UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_it_names_the_write_the_reader_and_the_missing_copy() -> None:
    trace = missing_copy()
    told = explain(trace, "haiku")
    assert (told.verdict, told.sample, told.first_token) == ("damaged", "haiku", 1)
    assert told.read is not None
    assert (told.read.block, told.read.gen, told.read.slot, told.read.position) == (5, 1, 2, 2)
    assert (told.read.found.name, told.read.expected.name) == ("haiku/1", "haiku")
    assert told.cause is not None
    assert (told.cause.code, told.cause.seq) == ("KV006", told.read.found.seq)
    assert "copy-on-write of b5#1 slots [0:2]" in told.should
    assert [(v.name, v.tokens, v.through) for v in told.victims] == [("haiku", 2, ""), ("news", 1, "")]


def test_taint_follows_what_tainted_steps_write() -> None:
    """Sequence 3 hits a block that is just what its publisher wrote, in a step that had read foreign KV."""
    trace = facts(HandTrace(num_blocks=8, block_size=2))
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.write(0, 1, 2, seq_id=9)  # a stranger
    trace.alloc(1, seq_id=1, lblock=1).write(1, 0, 2, seq_id=1, lblock=1).begin((1, 2, 4, [(0, 1), (1, 1)])).end()
    trace.publish(1, seq_id=1, lblock=1).event(Kind.ADMIT, seq_id=3).alloc(2, seq_id=3).write(2, 0, 2, seq_id=3)
    trace.hit(1, seq_id=3, lblock=1).begin((3, 4, 4, [(2, 1), (1, 1)])).end()
    told = explain(trace, "news")
    assert (told.verdict, told.through) == ("damaged", "haiku")
    assert told.read is not None
    assert (told.read.position, told.read.found.seq_id) == (1, 9)


def test_lockstep_writers_of_equal_bytes_are_still_told() -> None:
    """A trace holds no bytes: that another sequence wrote the slot is what counts."""
    assert set(reads_of(missing_copy()).damage) == {1, 3}


def alike_named() -> HandTrace:
    """Two requests are called haiku, the third like the number of the second."""
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1, 2]).request(1, "haiku", [3])
    trace.request(2, "1", [4])
    for seq_id in (1, 2, 3, 4):
        trace.event(Kind.ADMIT, seq_id=seq_id).alloc(seq_id, seq_id=seq_id).write(seq_id, 0, 1, seq_id=seq_id)
        trace.begin((seq_id, 0, 1, [(seq_id, 1)])).end()
    return trace


def test_requests_of_one_name_are_told_apart() -> None:
    trace = alike_named()
    said = r"'haiku' is what 2 requests of this trace are called: say which, 0 \(s1, s2\) or s3"
    with pytest.raises(UsageError, match=said):
        explain(trace, "haiku")
    with pytest.raises(UsageError, match=r"'1' is what 2 requests of this trace are called: say which, s3 or 2 \(s4\)"):
        explain(trace, "1")
    assert [explain(trace, which).steps for which in ("0", "r1", "s3", 1, 2)] == [2, 1, 1, 1, 1]
    assert explain(trace, "haiku/1").steps == 1


def test_one_token() -> None:
    trace = missing_copy()
    assert explain(trace, "haiku", 0).verdict == "not-affected"
    assert explain(trace, "haiku", 2).verdict == "damaged"
    with pytest.raises(UsageError, match=r"haiku has no token 7: its steps made tokens 0\.\.2"):
        explain(trace, "haiku", 7)


@pytest.mark.parametrize(
    ("request_", "sequences"), [("haiku", 2), ("haiku/0", 1), ("haiku/1", 1), ("s2", 1), ("0", 2), (1, 1), ("r1", 1)]
)
def test_names_of_requests(request_: str | int, sequences: int) -> None:
    assert len(explain(missing_copy(), request_).samples) == sequences


def test_an_unknown_request_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"called 'limerick'; this trace has haiku \(samples haiku/0, haiku/1\), news"):
        explain(missing_copy(), "limerick")


def test_a_swapped_sequence_reads_what_went_out() -> None:
    trace = facts(HandTrace(num_blocks=4, block_size=2)).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.ALLOC, block=3, gen=1, seq_id=9, lblock=0).event(
        Kind.SWAP_OUT, block=3, gen=1, seq_id=9, lblock=0, aux=7, details=(1, 4)
    )  # what the host slot held before
    trace.event(Kind.PREEMPT, seq_id=1)
    trace.event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, aux=7, details=(1, 5))
    trace.release(0, seq_id=1).free(0).event(Kind.RESUME, seq_id=1).alloc(1, seq_id=1)
    trace.event(Kind.SWAP_IN, block=1, gen=1, seq_id=1, lblock=0, aux=7).begin((1, 2, 2, [(1, 1)])).end()
    assert reads_of(trace).damage == {}


def test_after_lost_events_only_what_is_known_is_compared() -> None:
    trace = prompt(facts(HandTrace(num_blocks=8, block_size=4))).lose(5).begin((1, 2, 3, [(5, 1)])).end()
    reads = reads_of(trace)
    assert reads.lost
    assert reads.damage == {}


def test_json_holds_the_same() -> None:
    trace = missing_copy()
    told = json.loads(json.dumps(explanation_json(explain(trace, "haiku"), trace)))
    assert told["schema"] == "kvexplain/1"
    assert told["first_damaged"] == {
        "sample": "haiku", "token": 1, "token_sample": "haiku", "through": None, "step": 2, "seq": 13
    }  # fmt: skip
    assert told["read"]["found"]["name"] == "haiku/1"
    assert told["cause"]["code"] == "KV006"
    assert told["cause"]["ledger"]
    assert [victim["name"] for victim in told["blast_radius"]] == ["haiku", "news"]


def test_command(toy_traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["explain", str(toy_traces["missing-copy"]), "--request", "lighthouse"]) == 1
    assert "damaged from token 1 of its output on" in capsys.readouterr().out
    assert cli.run(["explain", str(toy_traces["clean"]), "--request", "lighthouse", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "clean"
    assert cli.run(["explain", str(toy_traces["clean"]), "--request", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_token_of_a_clean_request_is_told_about() -> None:
    trace = PLAYS["samples"].run(BlockManager)
    told = explain(trace, "r1", 1)
    assert told.verdict == "clean"
    assert [(made.name, made.positions, made.company) for made in told.made] == [("r1", (0, 4), 3)]
    text = explanation_text(told, trace)
    assert "Token 1 of r1 came out of step 1" in text
    assert "read its positions 0 to 3 in 1 block, in a batch with 3 other sequences" in text
    assert explanation_json(told, trace)["token_steps"][0]["step"] == 1


def test_a_request_of_a_trace_that_was_torn_is_clean_as_far_as_recorded(
    toy_engine: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows what its later steps would have read."""
    torn = tmp_path / "torn.kvtrace"
    with Recorder(torn, pool=PoolFacts(64, 16), sealing="inline", seal_rows=64) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
        toy_engine.workload(engine)
        for _ in range(12):
            engine.step()
    segment = max(torn.glob("events-*.arrows"))
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size * 3 // 4)
    assert cli.run(["explain", str(torn), "--request", "0"]) == 0
    assert "clean as far as recorded" in capsys.readouterr().out
    assert cli.run(["explain", str(torn), "--request", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events_missing"] is True


def test_a_trace_without_steps_is_not_called_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An allocator alone: its ledger can be judged, but nothing in it has read anything."""
    with Recorder(tmp_path / "a.kvtrace", pool=PoolFacts(8, 4)) as sink:
        sink.fact({"type": "request", "request": 0, "name": "haiku", "seq_ids": [1], "prompt_tokens": 3})
        sink.emit(Kind.ALLOC, block=0, gen=1, ref_before=0, ref_after=1, fill=0, seq_id=1, lblock=0)
    told = explain(open_trace(tmp_path / "a.kvtrace"), "haiku")
    assert told.verdict == "unknown"
    assert cli.run(["explain", str(tmp_path / "a.kvtrace"), "--request", "haiku"]) == 2
    out = capsys.readouterr().out
    assert "Request haiku: not known. The trace tells of no step" in out
    assert "clean" not in out
