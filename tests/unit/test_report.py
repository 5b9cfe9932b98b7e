"""Reports from hand-written traces, held word for word by the files in tests/golden; and the same as JSON.

`KVSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_report.py` rewrites the files: read the difference before keeping it.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from kvscope.inspector.findings import CODES, Finding, check, group
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.report import report, to_json
from kvscope.inspector.rules import RULES
from kvscope.inspector.story import tell
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import Frame, Site

GOLDEN = Path(__file__).parents[1] / "golden"


def requests(trace: HandTrace) -> HandTrace:
    return trace.request(0, "haiku", [1, 2], prompt_tokens=2).request(1, "news", [3], prompt_tokens=4)


def missing_copy() -> HandTrace:
    """Two samples of one prompt append to its last block, and nobody copies it."""
    trace = requests(HandTrace(num_blocks=16, block_size=4))
    trace.at("engine/block_manager.py", 118, "admit").event(Kind.SUBMIT, seq_id=1, aux=2).event(Kind.ADMIT, seq_id=1)
    trace.alloc(5, seq_id=1).at("engine/pool.py", 212, "write").write(5, 0, 2, seq_id=1, reason=Reason.PREFILL)
    trace.at("engine/block_manager.py", 240, "end_step").begin((1, 0, 2, [(5, 1)])).commit(5).end()
    trace.at("engine/block_manager.py", 160, "fork").event(Kind.FORK, seq_id=2, aux=1).share(5, seq_id=2)
    for position in (2, 3):
        trace.at("engine/pool.py", 212, "write")
        trace.write(5, position, position + 1, seq_id=2, reason=Reason.DECODE)
        trace.write(5, position, position + 1, seq_id=1, reason=Reason.DECODE)
        trace.at("engine/block_manager.py", 240, "end_step")
        trace.begin((1, position, position + 1, [(5, 1)]), (2, position, position + 1, [(5, 1)])).commit(5).end()
    for seq_id in (1, 2):
        trace.event(Kind.FINISH, seq_id=seq_id, aux=2, reason=Reason.LENGTH).release(5, seq_id=seq_id)
    return trace.free(5)


def write_after_free() -> HandTrace:
    """A late write of a finished request, into the block's next life; with stacks."""
    trace = requests(HandTrace(num_blocks=9, block_size=4, actors=["scheduler", "device stream"]))
    trace.at("engine/pool.py", 51, "take").alloc(8, seq_id=1).write(8, 0, 3, seq_id=1).begin((1, 0, 3, [(8, 1)])).end()
    trace.at("engine/pool.py", 88, "release").event(Kind.FINISH, seq_id=1, aux=1, reason=Reason.STOP)
    trace.release(8, seq_id=1, reason=Reason.STOP).free(8, reason=Reason.STOP)
    trace.at("engine/pool.py", 51, "take").alloc(8, seq_id=3).write(8, 0, 4, seq_id=3)
    trace.sites.append(
        Site("engine/kvcache.py", 212, "write_kv",
             (Frame("engine/kvcache.py", 212, "write_kv"), Frame("engine/runner.py", 148, "run_step")))
    )  # fmt: skip
    trace.write(8, 3, 4, seq_id=1, gen=1, ref_before=-1, ref_after=-1, actor=1, site=len(trace.sites) - 1)
    trace.begin((3, 0, 4, [(8, 2)])).end()
    return trace.event(Kind.FINISH, seq_id=3, aux=1).release(8, seq_id=3).free(8)


def leak() -> HandTrace:
    """A preemption that forgets a block."""
    trace = requests(HandTrace(num_blocks=3, block_size=4)).at("engine/block_manager.py", 118, "admit")
    trace.event(Kind.ADMIT, seq_id=3).alloc(0, seq_id=3).alloc(1, seq_id=3, lblock=1)
    trace.at("engine/block_manager.py", 190, "free").event(Kind.PREEMPT, seq_id=3, reason=Reason.CAPACITY)
    return trace.release(1, seq_id=3, lblock=1).free(1)


def underflow() -> HandTrace:
    """One release too many."""
    trace = HandTrace(num_blocks=2, block_size=4).at("engine/pool.py", 88, "release")
    trace.alloc(0, seq_id=1).share(0, seq_id=2).release(0, seq_id=1).release(0, seq_id=1).free(0)
    return trace


def counters() -> HandTrace:
    """The pool lost a block from its own counters."""
    trace = HandTrace(num_blocks=4, block_size=4).alloc(0, seq_id=1).begin().end()
    return trace.witness(2, 1, 0, 0, 0, 0, 1, table=[(0, 1)])


TRACES = {
    "missing_copy": missing_copy,
    "write_after_free": write_after_free,
    "leak": leak,
    "underflow": underflow,
    "counters": counters,
}


@pytest.mark.parametrize("name", TRACES)
def test_golden(name: str) -> None:
    trace = TRACES[name]()
    text = report(check(trace), trace) + "\n"
    path = GOLDEN / f"report_{name}.txt"
    if os.environ.get("KVSCOPE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_missing_copy_names_everything() -> None:
    trace = missing_copy()
    text = report(check(trace).findings[0], trace, name="demo.kvtrace")
    for words in (
        "write-while-shared on block b5#1",
        "WRITE of 1 slot at b5#1[2]  by request haiku/1 (sequence 2)",
        "engine/pool.py:212",
        "request haiku (sequence 1) as its block 0",
        "[0:2]     written by request haiku (sequence 1)",
        "copy-on-write of b5#1 slots [0:2] into a fresh block for haiku/1 was due before seq 10",
        "2 slots of b5#1 ([2:4]) were written by both haiku and haiku/1",
        "Blast radius: request haiku (sequence 1) read b5#1[2:3] in steps 2-3",
        "kvscope dashboard demo.kvtrace --seq 10 --block 5",
    ):
        assert words in text


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
def test_the_victims_are_those_who_read_what_another_wrote(order: tuple[int, ...]) -> None:
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 1, seq_id=1).begin((1, 0, 1, [(0, 1)])).end()
    for child in (2, 3):
        trace.event(Kind.FORK, seq_id=child, aux=1).share(0, seq_id=child)
    for position in (1, 2):
        for seq_id in order:
            trace.write(0, position, position + 1, seq_id=seq_id)
        trace.begin(*((seq_id, position, position + 1, [(0, 1)]) for seq_id in (1, 2, 3))).end()
    first = next(f for f in check(trace).findings if f.code == "KV006")
    assert (first.seq_id, first.slot_lo, first.slot_hi) == (order[0], 1, 2)
    # The rows of a step land in the order of the step, whichever write was issued first: the last one is no victim.
    assert [r.seq_id for r in tell(first, trace).readers] == [1, 2]


def test_a_child_of_a_torn_parent_reads_what_the_parent_did_not_write() -> None:
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 1, seq_id=1).begin((1, 0, 1, [(0, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.write(0, 1, 2, seq_id=1).write(0, 1, 2, seq_id=2)
    trace.begin((1, 1, 2, [(0, 1)]), (2, 1, 2, [(0, 1)])).end()
    for child, parent in ((3, 1), (4, 2)):
        trace.event(Kind.FORK, seq_id=child, aux=parent).share(0, seq_id=child)
    trace.begin((3, 1, 2, [(0, 1)]), (4, 1, 2, [(0, 1)])).end()
    first = next(f for f in check(trace).findings if f.code == "KV006")
    assert [r.seq_id for r in tell(first, trace).readers] == [1, 3]


def test_equal_mistakes_are_told_once() -> None:
    trace = missing_copy()
    result = check(trace)
    assert len(result.findings) == 4
    groups = group(result.findings, trace)
    assert [(g.first.seq, len(g.others)) for g in groups] == [(10, 3)]
    assert report(result, trace).count("Why this is") == 1
    assert "+ 3 more KV006 from the same call site:" in report(result, trace)


def test_at_most_so_many_kinds() -> None:
    trace = underflow()
    trace.at("other.py", 1, "f").alloc(1, seq_id=5).alloc(1, seq_id=6)
    result = check(trace)
    assert len(group(result.findings, trace)) > 1
    text = report(result, trace, most=1)
    assert text.count("SUMMARY") == 1
    assert "`kvscope check run.kvtrace --max 3` tells all" in text


def test_json_holds_the_same() -> None:
    trace = missing_copy()
    data = json.loads(json.dumps(to_json(check(trace), trace, name="x.kvtrace"), allow_nan=False))
    assert data["schema"] == "kvsan/1"
    assert data["clean"] is False
    assert (data["checked"]["events"], data["checked"]["blocks"], data["checked"]["slots"]) == (29, 1, 4)
    assert [f["code"] for f in data["findings"]] == ["KV006"] * 4
    story = data["groups"][0]["story"]
    assert (data["groups"][0]["count"], story["slots"], story["act"]["by"]["name"]) == (4, [2, 3], "haiku/1")
    assert [h["name"] for h in story["also_held_by"]] == ["haiku"]
    assert story["clobbered_slots"] == [2, 3]
    assert story["missing"].startswith("copy-on-write of b5#1 slots [0:2]")
    assert story["blast_radius"][0]["name"] == "haiku"  # haiku/1 stands behind it in each step
    assert story["view"] == "kvscope dashboard x.kvtrace --seq 10 --block 5"
    assert story["url"] == "http://127.0.0.1:8501/?page=biography&trace=x&seq=10&block=5"


@pytest.mark.parametrize("name", TRACES)
def test_json_is_plain(name: str) -> None:
    trace = TRACES[name]()
    json.dumps(to_json(check(trace), trace), allow_nan=False)


def test_every_code_has_a_rule() -> None:
    assert set(RULES) == set(CODES)


def test_a_finding_is_plain_values() -> None:
    finding = Finding("KV005", 3, -1, "why", block=2, gen=4)
    data = finding.to_json()
    assert (data["title"], data["slots"], data["seq_id"]) == ("leak on block b2#4", None, None)
    assert {f.name for f in fields(Finding)} - set(data) == {"slot_lo", "slot_hi"}
    assert Finding("KV012", 3, 0, "why").title == "conservation in the pool"
    assert Finding("KV018", 3, 0, "why", seq_id=6).title == "bad-table in sequence 6"


def test_many_holders_shorten_the_ledger() -> None:
    trace = HandTrace(num_blocks=1, block_size=4).alloc(0, seq_id=0).write(0, 0, 1, seq_id=0)
    for seq_id in range(1, 40):
        trace.share(0, seq_id=seq_id)
    text = report(check(trace.write(0, 1, 2, seq_id=3)), trace)
    assert "... 17 more ..." in text
    assert "write  <== here" in text


def test_commands_of_a_report_can_be_pasted_whatever_the_trace_is_called() -> None:
    trace = underflow()
    trace.at("other.py", 1, "f").alloc(1, seq_id=5).alloc(1, seq_id=6)
    text = report(check(trace), trace, name="my runs/a b.kvtrace", most=1)
    assert "View:    kvscope dashboard 'my runs/a b.kvtrace' --seq" in text
    assert "`kvscope check 'my runs/a b.kvtrace' --max 3` tells all" in text
