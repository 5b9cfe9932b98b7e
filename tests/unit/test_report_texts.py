"""What the texts of reports say of small numbers, of what is missing, and of who is hurt."""

from __future__ import annotations

import re

import pytest

from kvscope.inspector.cli.check import clean_line
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_text
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.report import report
from kvscope.inspector.story import tell
from kvscope.traces.schema import Kind

NOUNS = (
    "event|block|slot|token|sequence|step|position|finding|reader|frame|time|place|request|row|entrie|read|kind|sample"
)
WRONG = re.compile(
    rf"(?<![\w.,:#-])1 (more )?({NOUNS})s\b|\bof which 1 were\b|\b\w+ and \S+ does\b|(private to|shared by)(?= \(|$)"
    r"|(?<![\w.,:#-])1 are\b",
    re.MULTILINE,
)


def first(trace: HandTrace, code: str) -> Finding:
    return next(finding for finding in check(trace).findings if finding.code == code)


def test_no_text_of_any_fault_has_a_wrong_number() -> None:
    texts = []
    for fault in FAULTS.values():
        for play in PLAYS.values():
            trace = play.run(fault.manager())
            result = check(trace)
            firsts = {finding.code: finding for finding in reversed(result.findings)}
            texts += [finding.why for finding in result.findings] + [
                report(finding, trace) for finding in firsts.values()
            ]
            if result.findings:
                texts.append(report(result, trace, most=1))
                texts.append(explanation_text(explain(trace, "s0", result=result), trace))
    assert len(texts) > 1000
    assert [found.group() for text in texts if (found := WRONG.search(text))] == []


def test_one_of_each() -> None:
    trace = HandTrace(num_blocks=1, block_size=1).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.begin((1, 0, 1, [(0, 1)])).end()
    result = check(trace)
    (finding,) = result.findings
    assert "of which 1 was never written" in finding.why
    assert "1 finding of 1 kind in 5 events, 1 block, 0 slots" in report(result, trace)
    lonely = HandTrace(num_blocks=1).alloc(0, seq_id=1)
    assert "checked 1 event, 1 block, 0 slots" in clean_line(check(lonely))


def held_by_two() -> HandTrace:
    trace = HandTrace(num_blocks=4, block_size=4).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.write(0, 0, 2, seq_id=1).event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    return trace


def test_two_holders_do() -> None:
    assert "s1 and s2 do" in first(held_by_two().write(0, 2, 3, seq_id=3), "KV010").why


def test_a_leak_lacks_what_it_lacks() -> None:
    trace = (
        HandTrace(num_blocks=4, block_size=4).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1)
    )
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    leak = first(trace, "KV005")
    assert tell(leak, trace).missing == "b0#1 was to be put on the free list, or into quarantine, after seq 4"
    leased = HandTrace(num_blocks=4, block_size=4).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    leased.lease(0, 7, 0, 2).event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    leak = first(leased, "KV005")
    assert tell(leak, leased).missing == "the end of lease 7 on b0#1 was due after seq 2"
    kept = HandTrace(num_blocks=4, block_size=4).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    kept.event(Kind.FINISH, seq_id=1)
    assert tell(first(kept, "KV005"), kept).missing == "a release of b0#1 by s1 was due after seq 2"


def test_what_is_counted_and_held_by_nobody_is_not_private_to_nothing() -> None:
    trace = HandTrace(num_blocks=4, block_size=4).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1, ref_after=1)
    trace.share(0, seq_id=1, lblock=1).event(Kind.FINISH, seq_id=1)
    trace.release(0, seq_id=1, lblock=1).release(0, seq_id=1, ref_before=1, ref_after=1)
    for finding in check(trace).findings:
        assert not re.search(r"(private to|shared by)$", tell(finding, trace).now), tell(finding, trace).now


def freed_under_a_holder() -> HandTrace:
    """Sequence 1 ends and frees block 0, which 2 goes on to read."""
    trace = held_by_two().begin((1, 0, 2, [(0, 1)])).end().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)
    return trace.begin((2, 1, 2, [(0, 1)])).end()


def test_a_free_of_what_is_held_is_no_second_one_and_is_named_where_it_is_read_after() -> None:
    trace = freed_under_a_holder()
    assert "free again" not in report(first(trace, "KV012"), trace)
    text = report(first(trace, "KV002"), trace)
    assert re.search(r"freed by actor .*, seq 10, step 1:\n    put on the free list", text)


@pytest.mark.parametrize("behind", [False, True])
def test_the_blast_radius_holds_all_rows_of_the_step(behind: bool) -> None:
    """The copy for 2 moves a slot too few, which is told behind the rows of the step that reads it."""
    trace = HandTrace(num_blocks=4, block_size=4).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end().event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.copy_on_write(0, 1, 2, seq_id=2).event(Kind.FORK, seq_id=3, aux=2).share(1, seq_id=3)
    rows = [(2, 2, 2, [(1, 1)]), (3, 2, 2, [(1, 1)])]
    trace.begin(*(reversed(rows) if behind else rows)).event(Kind.COPY_DONE, block=1, gen=1, aux=0, fill=1).unlease(
        0, 1
    )
    finding = first(trace.end(), "KV009")
    assert {reader.seq_id for reader in tell(finding, trace).readers} == {2, 3}
