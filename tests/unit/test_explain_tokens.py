"""Which step `explain` credits a token to, which life a reader relied on, and what it calls a valid write."""

from __future__ import annotations

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_json, explanation_text
from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.report import report
from kvscope.inspector.tokens import Makers
from kvscope.traces.schema import Kind, Reason


def chunked() -> HandTrace:
    """The prompt of story is computed in two chunks; the first of them reads a stranger's write."""
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "story", [1, 2], prompt_tokens=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).write(0, 1, 2, seq_id=9)
    trace.begin((1, 0, 2, [(0, 1)])).end()
    trace.alloc(1, seq_id=1, lblock=1).write(1, 0, 2, seq_id=1, lblock=1).write(0, 1, 2, seq_id=1)
    trace.begin((1, 2, 4, [(0, 1), (1, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2).share(1, seq_id=2, lblock=1)
    for seq_id, block in ((1, 2), (2, 3)):
        trace.alloc(block, seq_id=seq_id, lblock=2).write(block, 0, 1, seq_id=seq_id, lblock=2)
    return trace.begin((1, 4, 5, [(0, 1), (1, 1), (2, 1)]), (2, 4, 5, [(0, 1), (1, 1), (3, 1)])).end()


def test_a_chunk_of_a_prompt_makes_no_token() -> None:
    trace = chunked()
    told = explain(trace, "story")
    assert told.read is not None
    assert (told.read.step, told.read.token) == (1, None)
    assert (told.first_token, told.first_step) == (0, (2, 11))
    text = explanation_text(told, trace)
    assert (
        "The prompt of story read foreign KV in step 1 (seq 5); token 0, out of step 2 (seq 11), is the first" in text
    )
    first = explanation_json(told, trace)["first_damaged"]
    assert (first["token"], first["step"], first["seq"]) == (0, 2, 11)


def test_what_is_computed_again_makes_no_token_a_second_time() -> None:
    trace = HandTrace(num_blocks=8, block_size=4).event(Kind.SUBMIT, seq_id=1, aux=2).event(Kind.ADMIT, seq_id=1)
    trace.alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.write(0, 2, 3, seq_id=1).begin((1, 2, 3, [(0, 1)])).end()
    trace.event(Kind.PREEMPT, seq_id=1).release(0, seq_id=1).free(0).event(Kind.RESUME, seq_id=1).alloc(1, seq_id=1)
    for lo, hi in ((0, 3), (3, 4)):
        trace.write(1, lo, hi, seq_id=1).begin((1, lo, hi, [(1, 1)])).end()
    made = Makers(trace, {1: 2})
    assert {token: int(trace.events["step"][row]) for token, row in made.of[1].items()} == {0: 1, 1: 2, 2: 4}


def test_a_sample_has_the_token_that_its_parent_s_prompt_made() -> None:
    trace = chunked()
    told = explain(trace, "story/1", 0)
    assert [(made.name, made.parent, made.step) for made in told.made] == [("story/1", "story", 2)]
    assert told.verdict == "damaged"  # that step read what the first chunk wrote
    whole = explain(trace, "story", 0)
    assert [(made.name, made.parent) for made in whole.made] == [("story", "")]
    clean = clean_fork()
    text = explanation_text(explain(clean, "story/1", 0), clean)
    assert "Token 0 of story/1 came out of step 1 (seq 4) of story, its parent, which read" in text
    with pytest.raises(UsageError, match=r"story/1 has no token 5: its steps made tokens 0\.\.1"):
        explain(trace, "story/1", 5)


def clean_fork() -> HandTrace:
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "story", [1, 2], prompt_tokens=2)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.alloc(1, seq_id=2, lblock=1).write(1, 0, 1, seq_id=2, lblock=1)
    return trace.begin((2, 2, 3, [(0, 1), (1, 1)])).end()


def handed_its_own() -> HandTrace:
    """b0#1 is freed while story/1 and late hold it; late, who reads it as its block 0, is handed it as its block 1."""
    trace = HandTrace(num_blocks=4, block_size=2).request(0, "story", [1, 2], prompt_tokens=2).request(1, "late", [3])
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.publish(0, seq_id=1, lblock=0).event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.event(Kind.ADMIT, seq_id=3).hit(0, seq_id=3)
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)
    trace.alloc(0, seq_id=3, lblock=1).write(0, 0, 1, seq_id=3, lblock=1)
    return trace.begin((3, 2, 3, [(0, 1), (0, 2)]), (2, 2, 2, [(0, 1)])).end()


def test_a_reader_that_is_handed_its_own_block_relied_on_the_life_before() -> None:
    trace = handed_its_own()
    causes = {name: explain(trace, name).cause for name in ("late", "story/1")}
    assert causes["late"] is not None
    assert causes["late"] == causes["story/1"]
    assert (causes["late"].code, causes["late"].gen) == ("KV012", 1)


def test_who_held_a_block_that_was_handed_out_again_is_listed_whole() -> None:
    trace = handed_its_own()
    finding = next(f for f in check(trace).findings if f.code == "KV014")
    assert "while story/1 and late still held it" in finding.why
    held = report(finding, trace).split("also held by:")[1].split("its slots")[0]
    assert "request story/1 (sequence 2) as its block 0" in held
    assert "request late (sequence 3) as its block 0" in held


def test_a_second_hand_out_without_a_release_is_no_write_after_free() -> None:
    trace = HandTrace(num_blocks=4, block_size=2).event(Kind.ADMIT, seq_id=1).event(Kind.ADMIT, seq_id=2)
    trace.alloc(0, seq_id=1).write(0, 0, 1, seq_id=1).alloc(0, seq_id=2).write(0, 0, 1, seq_id=2)
    trace.begin((1, 0, 1, [(0, 1)]), (2, 0, 1, [(0, 2)])).end()
    codes = [finding.code for finding in check(trace, replay=True).findings]
    assert codes[0] == "KV014"
    assert "KV001" not in codes


def test_a_write_that_is_a_finding_itself_is_not_the_last_valid_one() -> None:
    trace = HandTrace(num_blocks=4, block_size=4).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.write(0, 0, 2, seq_id=1).event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.write(0, 2, 3, seq_id=1).write(0, 2, 3, seq_id=2)
    result = check(trace)
    wrong = {finding.seq for finding in result.findings}
    assert len(wrong) == 2
    for finding in result.findings:
        assert 'last valid write by actor "scheduler", seq 2,' in report(finding, trace)


def computed_again() -> HandTrace:
    """Token 1 of haiku comes out of a step that read a stranger's write; then it is preempted, and computed again.

    What it computes again it reads as written, but the tokens it goes on from are the wrong ones.
    """
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1], prompt_tokens=2)
    trace.event(Kind.SUBMIT, seq_id=1, aux=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()  # token 0
    trace.write(0, 1, 2, seq_id=9)  # a stranger
    trace.write(0, 2, 3, seq_id=1).begin((1, 2, 3, [(0, 1)])).end()  # token 1
    trace.event(Kind.PREEMPT, seq_id=1).release(0, seq_id=1)
    trace.event(Kind.RESUME, seq_id=1).alloc(1, seq_id=1).write(1, 0, 4, seq_id=1).begin((1, 0, 4, [(1, 1)])).end()
    trace.alloc(2, seq_id=1, lblock=1).write(2, 0, 1, seq_id=1, lblock=1)
    return trace.begin((1, 4, 5, [(1, 1), (2, 1)])).end()  # token 3


def test_what_goes_on_from_a_wrong_token_is_tainted_though_its_step_read_nothing_foreign() -> None:
    told = explain(computed_again(), "haiku", 3)
    assert told.verdict == "damaged"
    assert [(v.first_token, v.tokens) for v in told.victims] == [(1, 3)]
    text = explanation_text(told, computed_again())
    assert "it is tainted: it goes on from token 1, which came out of a tainted step" in text
    assert explain(computed_again(), "haiku", 0).verdict == "not-affected"


def test_a_wrong_token_that_was_rolled_back_is_gone_on_from_by_nobody() -> None:
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1], prompt_tokens=2)
    trace.event(Kind.SUBMIT, seq_id=1, aux=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.write(0, 1, 2, seq_id=9)
    trace.write(0, 2, 3, seq_id=1).begin((1, 2, 3, [(0, 1)])).end()
    trace.event(Kind.PREEMPT, seq_id=1).release(0, seq_id=1)
    trace.event(Kind.TRUNCATE, seq_id=1, aux=2)  # token 1 is dropped
    trace.event(Kind.RESUME, seq_id=1).alloc(1, seq_id=1).write(1, 0, 3, seq_id=1).begin((1, 0, 3, [(1, 1)])).end()
    assert [(v.first_token, v.tokens) for v in explain(trace, "haiku").victims] == [(None, 0)]


def test_a_slot_that_was_filled_with_poison_is_not_said_to_hold_what_was_there_before() -> None:
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1], prompt_tokens=2)
    trace.event(Kind.ADMIT, seq_id=9).alloc(0, seq_id=9).write(0, 0, 4, seq_id=9).begin((9, 0, 4, [(0, 1)])).end()
    trace.release(0, seq_id=9).free(0).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 1, seq_id=1)
    trace.begin((1, 0, 2, [(0, 2)])).end()
    assert "    it holds   the write of" in explanation_text(explain(trace, "haiku"), trace)
    trace.event(
        Kind.MISMATCH, reason=Reason.POISON, block=0, gen=2, fill=1, seq_id=1, aux=1, details=(0, 0, 1, -1, -1, -1)
    )
    told = explain(trace, "haiku")
    assert told.read is not None
    assert told.read.poison
    text = explanation_text(told, trace)
    assert "    it holds   NaN, with which a freed block is filled; before that the write of" in text
    assert "    it should  hold this request's own KV, which nobody had written there" in text


def test_what_a_checker_read_in_a_slot_is_named_where_no_write_of_it_is_in_the_trace() -> None:
    """story wrote over the first slot in step 1 and no event tells so: its device does."""
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1], prompt_tokens=2)
    trace.request(1, "story", [9], prompt_tokens=2)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.write(0, 2, 3, seq_id=1)
    trace.event(
        Kind.MISMATCH, reason=Reason.PROVENANCE, block=0, gen=1, fill=0, seq_id=1, aux=0, step=2,
        details=(77, 55, 9, 1, 9, 1),
    )  # fmt: skip
    trace.begin((1, 2, 3, [(0, 1)])).end()
    told = explain(trace, "haiku")
    assert told.read is not None
    assert (told.read.found.seq, told.read.found.step, told.read.found.seq_id) == (None, 1, 9)
    text = explanation_text(told, trace)
    assert "    it holds   what story (sequence 9) wrote in step 1; the trace has no event of it" in text


def test_an_event_far_outside_of_the_pool_takes_no_memory_for_what_lies_between() -> None:
    trace = HandTrace(num_blocks=8, block_size=4).request(0, "haiku", [1], prompt_tokens=2)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.WRITE, block=2**31 - 2, gen=1, seq_id=1, lblock=0, aux=1 << 32)
    trace.event(Kind.RELEASE, block=2**31 - 2, gen=1, seq_id=1, lblock=0, ref_before=1, ref_after=0)
    trace.event(Kind.WRITE, block=0, gen=1, seq_id=1, lblock=2**31 - 1, aux=1 << 32)
    assert explain(trace, "haiku").verdict == "clean"
    assert {f.code for f in check(trace).findings} >= {"KV019"}
