"""Reports of tables, hand-outs, publications and counts that went wrong, word for word; and one report in every form.

`KVSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_report_sharing.py` rewrites the files: read the difference first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.errors import UsageError
from kvscope.inspector import cli
from kvscope.inspector.cli import faults
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_json, explanation_text
from kvscope.inspector.faults import FAULTS, real
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import CheckResult, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.junit import write_junit
from kvscope.inspector.report import report, to_json
from kvscope.traces.schema import Kind, Reason

GOLDEN = Path(__file__).parents[1] / "golden"


def requests() -> HandTrace:
    trace = HandTrace(num_blocks=8, block_size=4)
    return trace.request(0, "haiku", [1, 2], prompt_tokens=3).request(1, "news", [3], prompt_tokens=4)


def held(lines: str, path: Path) -> None:
    """Compare with the golden file, or renew it."""
    if os.environ.get("KVSCOPE_UPDATE_GOLDEN"):
        path.write_text(lines, encoding="utf-8")
    assert lines == path.read_text(encoding="utf-8")


def stale_table() -> HandTrace:
    """KV018: after a preemption the worker goes on with the row that it had; its block is another request's by now."""
    trace = requests().at("engine/block_manager.py", 118, "admit").event(Kind.ADMIT, seq_id=1)
    trace.alloc(2, seq_id=1).at("engine/pool.py", 212, "write").write(2, 0, 3, seq_id=1)
    trace.at("engine/block_manager.py", 240, "begin_step").begin((1, 0, 3, [(2, 1)])).commit(2).end()
    trace.at("engine/block_manager.py", 190, "free").event(Kind.PREEMPT, seq_id=1, reason=Reason.CAPACITY)
    trace.release(2, seq_id=1, reason=Reason.CAPACITY).free(2, reason=Reason.CAPACITY)
    trace.at("engine/block_manager.py", 118, "admit").event(Kind.ADMIT, seq_id=3).alloc(2, seq_id=3)
    trace.write(2, 0, 4, seq_id=3).event(Kind.RESUME, seq_id=1).alloc(5, seq_id=1).write(5, 0, 4, seq_id=1)
    trace.at("engine/block_manager.py", 240, "begin_step").begin((3, 0, 4, [(2, 2)]), (1, 0, 4, [(2, 1)]))
    trace.commit(2).commit(5).end()
    for seq_id, block in ((1, 5), (3, 2)):
        trace.event(Kind.FINISH, seq_id=seq_id, aux=1).release(block, seq_id=seq_id).free(block)
    return trace


def double_allocation() -> HandTrace:
    """KV014: the block at the head of the free list is given to two requests."""
    trace = requests().at("engine/block_manager.py", 118, "admit").event(Kind.ADMIT, seq_id=1)
    trace.alloc(4, seq_id=1).write(4, 0, 3, seq_id=1).begin((1, 0, 3, [(4, 1)])).commit(4).end()
    trace.at("engine/pool.py", 51, "take").event(Kind.ADMIT, seq_id=3).alloc(4, seq_id=3)
    trace.write(4, 0, 4, seq_id=3).begin((3, 0, 4, [(4, 2)]), (1, 2, 3, [(4, 1)])).commit(4).end()
    trace.event(Kind.FINISH, seq_id=3, aux=1).release(4, seq_id=3).free(4)
    return trace.event(Kind.FINISH, seq_id=1, aux=1)


def early_publication() -> HandTrace:
    """KV016: a block is in the prefix index when it is handed out; its prompt is aborted, and another hits it."""
    trace = requests().at("engine/block_manager.py", 118, "admit").event(Kind.ADMIT, seq_id=1)
    trace.alloc(0, seq_id=1).at("engine/prefix_cache.py", 90, "publish").publish(0, seq_id=1, lblock=0)
    trace.at("engine/block_manager.py", 118, "admit").event(Kind.ADMIT, seq_id=3).hit(0, seq_id=3)
    trace.alloc(1, seq_id=3, lblock=1).write(1, 0, 1, seq_id=3, lblock=1)
    trace.at("engine/block_manager.py", 190, "free").event(Kind.ABORT, seq_id=1).release(0, seq_id=1)
    trace.begin((3, 4, 5, [(0, 1), (1, 1)])).commit(1).end()
    return trace.event(Kind.FINISH, seq_id=3, aux=1).release(1, seq_id=3, lblock=1).free(1).release(0, seq_id=3)


def lost_update() -> HandTrace:
    """KV007: two forks read the count at once, and both write it raised by one: the block is freed under a sample."""
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1, 2, 4], prompt_tokens=4)
    trace.at("engine/block_manager.py", 118, "admit").event(Kind.ADMIT, seq_id=1)
    trace.alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).begin((1, 0, 4, [(0, 1)])).commit(0).end()
    trace.at("engine/block_manager.py", 160, "fork").event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.event(Kind.FORK, seq_id=4, aux=1).share(0, seq_id=4, ref_before=1, ref_after=2)
    trace.at("engine/block_manager.py", 190, "free").event(Kind.FINISH, seq_id=1, aux=1)
    trace.release(0, seq_id=1, ref_before=2, ref_after=1).event(Kind.FINISH, seq_id=2, aux=1)
    trace.release(0, seq_id=2, ref_before=1, ref_after=0).free(0, ref_before=0, ref_after=0)
    return trace.at("engine/block_manager.py", 240, "begin_step").begin((4, 3, 4, [(0, 1)])).end()


TRACES: dict[str, tuple[str, Callable[[], HandTrace]]] = {
    "stale_table": ("KV018", stale_table),
    "double_allocation": ("KV014", double_allocation),
    "early_publication": ("KV016", early_publication),
    "lost_update": ("KV007", lost_update),
}


@pytest.mark.parametrize("name", TRACES)
def test_golden(name: str) -> None:
    code, made = TRACES[name]
    trace = made()
    result = check(trace)
    found = next(finding for finding in result.findings if finding.code == code)
    text = report(found, trace) + "\n"
    held(text, GOLDEN / f"report_{name}.txt")
    assert all(line == line.rstrip() for line in text.splitlines())


def told() -> tuple[CheckResult, HandTrace]:
    """One check whose report is kept in every form."""
    trace = double_allocation()
    return replace(check(trace), elapsed_s=0.25), trace


def test_golden_json() -> None:
    result, trace = told()
    held(
        json.dumps(to_json(result, trace, name="run.kvtrace"), indent=1) + "\n", GOLDEN / "check_double_allocation.json"
    )


def test_golden_junit(tmp_path: Path) -> None:
    result, trace = told()
    write_junit(tmp_path / "junit.xml", result, trace, name="run.kvtrace")
    held((tmp_path / "junit.xml").read_text(encoding="utf-8"), GOLDEN / "check_double_allocation.xml")


def test_golden_explanation_as_json() -> None:
    result, trace = told()
    made = explanation_json(explain(trace, "haiku", result=result), trace)
    held(json.dumps(made, indent=1) + "\n", GOLDEN / "explain_double_allocation.json")


# -- texts that a finding or an explanation adds --------------------------------------------------------------------


def test_a_stale_row_names_the_entry_the_preemption_and_who_holds_it_now() -> None:
    trace = stale_table()
    found = next(finding for finding in check(trace).findings if finding.code == "KV018")
    assert (
        "its block 0 is b2#1 (a life that is over: it is b2#2 by now) for the worker, b5#1 by the events" in found.why
    )
    assert "it is the row from before haiku was preempted (seq 7)" in found.why
    text = explanation_text(explain(trace, "news"), trace)  # the worker has written haiku's tokens into its block
    assert "position 0 lies in b2#2[0]" in text
    assert "bad-table on block b2#1 [KV018]" in text
    assert "missing: the worker should have used the table that the scheduler made" in text


def test_lockstep_writers_are_told_apart_from_damage() -> None:
    """Both samples write the same prefix: the missing copy is a finding, and no text can differ by it."""
    trace = PLAYS["lockstep"].run(FAULTS["missing-copy"].manager())
    result = check(trace)
    assert {finding.code for finding in result.findings} == {"KV006"}
    made = explain(trace, "s0", result=result)
    assert (made.verdict, made.same_prefix, made.cause and made.cause.code) == ("same-prefix", True, "KV006")
    text = explanation_text(made, trace)
    assert ": not damaged. Provenance compared every slot of its steps" in text
    assert explanation_json(made, trace)["same_prefix"] is True
    other = PLAYS["samples"].run(FAULTS["missing-copy"].manager())
    assert "found the right prefix" not in explanation_text(explain(other, "s0"), other)


@pytest.mark.parametrize("poisoned", [True, False])
def test_a_text_that_poison_made_is_told_as_that(
    poisoned: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = HandTrace(num_blocks=4, block_size=4).request(0, "haiku", [1], prompt_tokens=3)
    trace.event(Kind.ADMIT, seq_id=1).alloc(2, seq_id=1).write(2, 0, 3, seq_id=1).begin((1, 0, 3, [(2, 1)]))
    if poisoned:
        trace.event(Kind.MISMATCH, reason=Reason.POISON, block=2, gen=1, seq_id=1, fill=1, aux=1, details=(0, 0, 2, -1))
    trace.commit(2).end().event(Kind.FINISH, seq_id=1).release(2, seq_id=1).free(2)
    clean = real.RealRun(texts={"haiku": ["a storm came"]}, tokens={"haiku": [[1, 2, 3]]})
    broken = real.RealRun(texts={"haiku": ["a st st st"]}, tokens={"haiku": [[1, 4, 4]]})
    broken.trace = trace
    monkeypatch.setattr(faults, "_real_model", lambda: (None, clean))
    monkeypatch.setattr(real, "run_real", lambda *_args, **_options: broken)
    assert cli.run(["faults", "show", "missing-copy"]) == int(poisoned)
    shown = capsys.readouterr().out
    assert "clean   'a storm came'\n  broken  'a st st st'" in shown
    assert ("the poison of --content" in shown) == poisoned
    assert ("read poison" in shown) == poisoned


def test_no_text_has_an_empty_range_of_slots() -> None:
    """Copies of nothing, leases over nothing, and a shared block that is written from its first slot on."""
    texts = []
    for fault in FAULTS.values():
        for play in PLAYS.values():
            trace = play.run(fault.manager())
            result = check(trace)
            texts += [finding.why for finding in result.findings]
            firsts = {finding.code: finding for finding in reversed(result.findings)}
            texts += [report(finding, trace) for finding in firsts.values()]
    empty = re.compile(r"\[(\d+):\1\]")
    assert len(texts) > 1000
    assert [text for text in texts if empty.search(text)] == []


def test_a_search_names_its_beams(capsys: pytest.CaptureFixture[str]) -> None:
    trace = lost_update()
    trace.facts[0] |= {"beams": 2, "samples": 1}
    told = explain(trace, "haiku")
    assert explanation_text(told, trace).startswith(
        "Request haiku (a search with 2 beams, which were haiku/0 to haiku/2 in turn): "
    )
    assert explanation_json(told, trace)["beams"] == 2
    with pytest.raises(UsageError, match=r"haiku \(beams haiku/0, haiku/1, haiku/2\)"):
        explain(trace, "nobody")
    trace.facts[0]["beams"] = 0
    assert "haiku (3 samples)" in explanation_text(explain(trace, "haiku"), trace)


def test_the_first_bad_token_is_told_with_its_sample() -> None:
    """The sample that is hit first in time is further on in its output than the one that is hit after it."""
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1, 2], prompt_tokens=1)
    for seq_id, block in ((1, 0), (2, 1)):
        trace.event(Kind.ADMIT, seq_id=seq_id).alloc(block, seq_id=seq_id).write(block, 0, 1, seq_id=seq_id)
    trace.begin((1, 0, 1, [(0, 1)]), (2, 0, 1, [(1, 1)])).end()
    trace.write(0, 1, 2, seq_id=1).begin((1, 1, 2, [(0, 1)])).end()
    trace.write(0, 1, 2, seq_id=9).write(0, 2, 3, seq_id=1).begin((1, 2, 3, [(0, 1)])).end()  # a stranger
    trace.write(1, 0, 1, seq_id=9).write(1, 1, 2, seq_id=2).begin((2, 1, 2, [(1, 1)])).end()
    told = explain(trace, "haiku")
    assert (told.sample, told.first_token, told.first_sample) == ("haiku", 1, "haiku/1")
    text = explanation_text(told, trace)
    assert text.startswith("Request haiku (2 samples): damaged from token 1 of the output of haiku/1 on.\n")
    assert "Token 2 of haiku came out of step 3" in text


def test_a_table_that_nobody_knows_is_no_clean_read() -> None:
    """KV018 where more than one entry differs: the events say what should have been read, not what was."""
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "haiku", [1], prompt_tokens=4).event(Kind.ADMIT, seq_id=1)
    trace.alloc(2, seq_id=1).alloc(3, seq_id=1, lblock=1).write(2, 0, 2, seq_id=1).write(3, 0, 2, seq_id=1, lblock=1)
    trace.begin((1, 0, 4, [(5, 1), (6, 1)])).commit(2).commit(3).end()
    told = explain(trace, "haiku")
    assert (told.verdict, [finding.code for finding in told.other_tables]) == ("unknown", ["KV018"])
    assert told.other_steps == [1]
    text = explanation_text(told, trace)
    assert text.startswith(
        "Request haiku: not known. By the events 0 steps of it read what was written for it;\nin step 1 "
    )
    assert "more than one entry differs" in text
    assert "Each of its" not in text
    assert explanation_json(told, trace)["other_tables"][0]["code"] == "KV018"
