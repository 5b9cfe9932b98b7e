"""A write into another slot than that of the position which its step computes is told at the write."""

from __future__ import annotations

import pytest

from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_text
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.faults.stage import Stage, perform
from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.report import report
from kvscope.traces.schema import Kind, unpack_range

TABLE = [(0, 1), (1, 1)]


def begun() -> HandTrace:
    """Sequence 1 has two blocks of eight slots; positions 0 to 3 are written by a step."""
    trace = HandTrace(block_size=8).request(0, "story", [1], prompt_tokens=4).event(Kind.ADMIT, seq_id=1)
    trace.alloc(0, seq_id=1).alloc(1, seq_id=1, lblock=1).write(0, 0, 4, seq_id=1)
    return trace.begin((1, 0, 4, TABLE)).commit(0).end()


def decode(trace: HandTrace, position: int, *, block: int, slot: int, lblock: int | None = None) -> HandTrace:
    """A step computes a position, and writes it there."""
    trace.write(block, slot, slot + 1, seq_id=1, lblock=block if lblock is None else lblock)
    return trace.begin((1, position, position + 1, TABLE)).commit(block).end()


def told(trace: HandTrace) -> list[tuple[str, int]]:
    return [(finding.code, finding.seq) for finding in check(trace).findings]


def misplaced(trace: HandTrace) -> list[Finding]:
    return [f for f in check(trace).findings if f.code == "KV019"]


def test_a_write_one_slot_behind_its_own_is_told_with_the_slot_that_was_due() -> None:
    trace = decode(begun(), 4, block=0, slot=5)
    assert told(trace) == [("KV019", 8), ("KV009", 10)]
    (found,) = misplaced(trace)
    assert (found.block, found.slot_lo, found.slot_hi, found.seq_id) == (0, 5, 6, 1)
    assert "writes its position 4 into slot 5 of b0#1, where position 5 belongs" in found.why
    assert "position 4 lies in slot 4 (4 % 8) of its block 0, b0#1" in found.why


def test_every_step_that_goes_on_so_is_told_though_the_slots_before_it_are_filled() -> None:
    trace = decode(decode(decode(begun(), 4, block=0, slot=5), 5, block=0, slot=6), 6, block=0, slot=7)
    assert [found.slot_lo for found in misplaced(trace)] == [5, 6, 7]
    assert [code for code, _ in told(trace)].count("KV009") == 1


def test_a_write_into_another_block_of_the_own_table() -> None:
    (found,) = misplaced(decode(begun(), 4, block=1, slot=4))
    assert "writes its position 4 into slot 4 of b1#1, where position 12 belongs" in found.why
    assert "slot 4 (4 % 8) of its block 0, b0#1" in found.why


def test_a_prompt_that_is_written_one_slot_further() -> None:
    trace = HandTrace(block_size=8).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 1, 5, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)])).commit(0).end()
    (found,) = misplaced(trace)
    assert "writes its position 0 into slot 1" in found.why


def test_a_write_in_front_of_its_own_slot_is_told_once() -> None:
    """Over what the sequence has there: that is told as such, with where it goes on."""
    trace = decode(begun(), 4, block=0, slot=3)
    assert told(trace) == [("KV019", 8), ("KV009", 10)]
    assert "it goes on at 4" in misplaced(trace)[0].why


def test_a_write_that_is_missing_is_no_misplaced_one() -> None:
    trace = begun().begin((1, 4, 5, TABLE)).end()
    assert told(trace) == [("KV009", 9)]
    assert told(decode(trace, 5, block=0, slot=5)) == [("KV009", 9)]


@pytest.mark.parametrize("cut", [3, 4, 5])
def test_what_is_rolled_back_and_written_anew_is_in_place(cut: int) -> None:
    trace = begun().write(0, 4, 6, seq_id=1).event(Kind.TRUNCATE, seq_id=1, aux=cut)
    trace.write(0, cut, 7, seq_id=1)
    assert told(trace.begin((1, min(cut, 4), 7, TABLE)).commit(0).end()) == []


def test_the_report_names_the_misplaced_write_and_calls_it_no_valid_one() -> None:
    trace = decode(begun(), 4, block=0, slot=5)
    read = next(f for f in check(trace).findings if f.code == "KV009")
    text = report(read, trace)
    assert 'misplaced write by actor "scheduler", seq 8' in text
    assert 'last valid write by actor "scheduler", seq 3' in text


def test_explain_names_the_write_and_not_the_read() -> None:
    trace = decode(begun(), 4, block=0, slot=5)
    explained = explain(trace, "story")
    assert explained.cause is not None
    assert (explained.verdict, explained.cause.code, explained.cause.seq) == ("damaged", "KV019", 8)
    assert [f.code for f in explained.followed] == ["KV009"]
    assert "position 4 lies in slot 4" in " ".join(explanation_text(explained, trace).split())


def test_every_shifted_write_that_leaves_a_slot_empty_is_named_in_every_play() -> None:
    for play in PLAYS.values():
        trace = perform(play.act, Stage(FAULTS["slot-off-by-one"].manager(), **play.options))
        findings = check(trace).findings
        named = {f.seq for f in findings if f.code == "KV019"}
        for read in findings:
            write = read.seq_of("misplaced")
            if read.code == "KV009" and write is not None:
                lo, _ = unpack_range(int(trace.events["aux"][write]))
                assert write in named, (play.name, read)
                assert lo >= 1, (play.name, read)
