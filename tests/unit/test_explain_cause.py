"""What `explain` and a report name as the mistake: the first of a chain, who wrote it, and whom it really reached."""

from __future__ import annotations

from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_json, explanation_text
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.reads import reads_of
from kvscope.inspector.report import report
from kvscope.inspector.story import tell
from kvscope.traces.schema import Kind


def found(trace: HandTrace, code: str) -> Finding:
    return next(finding for finding in check(trace).findings if finding.code == code)


def published_first(*, written: bool, in_time: bool = True) -> HandTrace:
    """News hits b0#1, which haiku has published and not written; haiku writes it before, behind, or never."""
    trace = HandTrace(num_blocks=4, block_size=2).request(0, "haiku", [1]).request(1, "news", [2], prompt_tokens=3)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).publish(0, seq_id=1, lblock=0)
    if written and in_time:
        trace.write(0, 0, 1, seq_id=1)
    trace.event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2)
    if written and in_time:
        trace.write(0, 1, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.alloc(1, seq_id=2, lblock=1).write(1, 0, 1, seq_id=2, lblock=1).begin((2, 2, 3, [(0, 1), (1, 1)])).end()
    if written and not in_time:
        trace.write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.write(1, 1, 2, seq_id=2, lblock=1).begin((2, 3, 4, [(0, 1), (1, 1)])).end()
    return trace


def test_a_hit_on_what_is_published_first_counts_on_the_publisher_s_write() -> None:
    assert reads_of(published_first(written=True)).damage == {}
    assert explain(published_first(written=True), "news").verdict == "clean"


def test_a_hit_that_reads_before_the_publisher_writes_is_damaged_by_the_publication() -> None:
    for trace in (published_first(written=False), published_first(written=True, in_time=False)):
        damage = reads_of(trace).damage
        assert set(damage) == {2}
        assert damage[2].first is not None
        assert damage[2].first.position == 0
        told = explain(trace, "news")
        assert told.cause is not None
        assert told.cause.code == "KV016"
        assert told.followed[0].code == "KV009"
    # Once the publisher has written, a step reads what it counts on; what it wrote before stays tainted.
    assert len(damage[2].read) == 1
    assert set(damage[2].handed.values()) == {2}


def test_a_write_into_what_is_published_too_early_lacks_no_copy() -> None:
    trace = published_first(written=True)
    text = report(found(trace, "KV015"), trace)
    assert "copy-on-write" not in text
    assert "the publication of b0#1 (seq 2) was due only after this write" in text


def lost_count() -> HandTrace:
    """A fork counts one holder of b0#1 too few: it is freed, handed out and written while story/1 still reads it."""
    trace = HandTrace(num_blocks=4, block_size=2).request(0, "story", [1, 2], prompt_tokens=2).request(1, "news", [3])
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2, ref_before=1, ref_after=1)
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1, ref_before=1, ref_after=0).free(0)
    trace.event(Kind.ADMIT, seq_id=3).alloc(0, seq_id=3, ref_before=0, ref_after=1).write(0, 0, 2, seq_id=3)
    trace.begin((3, 0, 2, [(0, 2)]), (2, 2, 2, [(0, 1)])).end()
    return trace


def test_the_first_mistake_of_a_chain_is_the_cause_and_the_others_followed() -> None:
    trace = lost_count()
    told = explain(trace, "story/1")
    assert told.cause is not None
    assert (told.cause.code, told.cause.gen) == ("KV007", 1)
    assert [finding.code for finding in told.followed] == ["KV012", "KV014", "KV002"]
    text = explanation_text(told, trace)
    assert "What followed from it, on the same block:" in text
    assert "double-allocation on block b0#1 [KV014]" in text
    assert [f["code"] for f in explanation_json(told, trace)["followed"]] == ["KV012", "KV014", "KV002"]


def test_what_befell_an_earlier_life_is_no_cause() -> None:
    """b0#1 was freed twice, long before; the sample that is damaged reads b0#2, whose copy is missing."""
    trace = HandTrace(num_blocks=4, block_size=4).request(0, "story", [1, 2], prompt_tokens=2)
    trace.alloc(0, seq_id=9).release(0, seq_id=9).free(0).free(0)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 2)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    trace.write(0, 2, 3, seq_id=1).write(0, 2, 3, seq_id=2)
    trace.begin((1, 2, 3, [(0, 2)]), (2, 2, 3, [(0, 2)])).end()
    assert {finding.code for finding in check(trace).findings} == {"KV003", "KV006"}
    told = explain(trace, "story")
    assert told.cause is not None
    assert (told.cause.code, told.followed) == ("KV006", ())


def test_a_token_that_is_damaged_is_told_of_by_itself() -> None:
    """Token 2 read what was foreign already; token 3 attends only to what tainted steps wrote."""
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "story", [1], prompt_tokens=2).request(1, "news", [2])
    trace.facts.append({"type": "model", "name": "tiny", "window": 3})
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.write(0, 1, 2, seq_id=9)
    trace.alloc(1, seq_id=1, lblock=1)
    for slot in (0, 1):
        trace.write(1, slot, slot + 1, seq_id=1, lblock=1)
        trace.begin((1, 2 + slot, 3 + slot, [(0, 1), (1, 1)])).end()
    trace.alloc(2, seq_id=1, lblock=2).write(2, 0, 1, seq_id=1, lblock=2)
    trace.begin((1, 4, 5, [(0, 1), (1, 1), (2, 1)])).end()
    for token, words in (
        (2, "1 of these positions held foreign KV: position 1, b0#1[1]"),
        (3, "it is tainted: its step read what it wrote itself in a step that had read foreign KV"),
    ):
        told = explain(trace, "story", token)
        text = explanation_text(told, trace)
        assert f"Token {token} is one of these." in text
        assert f"Token {token} of story came out of step {token + 1}" in text
        assert words in text
        assert "The first bad one: token 1 of story came out of step 2" in text
    assert explanation_json(told, trace)["token_steps"][0]["through"] == "story"


def test_readers_of_a_later_healthy_life_are_not_counted() -> None:
    trace = HandTrace(num_blocks=4, block_size=2).request(0, "old", [1]).request(1, "new", [2]).request(2, "next", [3])
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 1, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)
    trace.event(Kind.ADMIT, seq_id=2).alloc(0, seq_id=2).write(0, 0, 2, seq_id=2).begin((2, 0, 2, [(0, 2)])).end()
    assert tell(found(trace, "KV009"), trace).readers[0].seq_id == 1
    assert [reader.seq_id for reader in tell(found(trace, "KV009"), trace).readers] == [1]


def test_readers_of_both_lives_of_a_double_allocation_are_counted() -> None:
    trace = lost_count()
    assert {reader.seq_id for reader in tell(found(trace, "KV014"), trace).readers} == {2}
    trace.event(Kind.FINISH, seq_id=3).release(0, seq_id=3).free(0)
    trace.event(Kind.ADMIT, seq_id=4).alloc(0, seq_id=4).write(0, 0, 2, seq_id=4).begin((4, 0, 2, [(0, 3)])).end()
    assert 4 not in {reader.seq_id for reader in tell(found(trace, "KV014"), trace).readers}


def test_a_bad_table_names_the_entry() -> None:
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "haiku", [1]).request(1, "news", [2])
    trace.event(Kind.ADMIT, seq_id=1).alloc(3, seq_id=1).alloc(4, seq_id=1, lblock=1)
    trace.event(Kind.PREEMPT, seq_id=1).release(4, seq_id=1, lblock=1).free(4).release(3, seq_id=1).free(3)
    trace.event(Kind.ADMIT, seq_id=2).alloc(4, seq_id=2).event(Kind.RESUME, seq_id=1).alloc(3, seq_id=1)
    trace.alloc(5, seq_id=1, lblock=1).write(3, 0, 2, seq_id=1).write(5, 0, 1, seq_id=1, lblock=1)
    trace.begin((1, 0, 3, [(3, 2), (4, 1)])).end()
    why = found(trace, "KV018").why
    assert "its block 1 is b4#1 (a life that is over: it is b4#2 by now) for the worker, b5#1 by the events" in why


def test_a_table_that_is_longer_names_what_it_has_too_much() -> None:
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "haiku", [1]).request(1, "news", [2])
    trace.event(Kind.ADMIT, seq_id=2).alloc(4, seq_id=2).event(Kind.ADMIT, seq_id=1).alloc(3, seq_id=1)
    trace.write(3, 0, 2, seq_id=1).begin((1, 0, 2, [(3, 1), (4, 1)])).end()
    assert "its block 1 is b4#1 (held by news) for the worker, none by the events" in found(trace, "KV018").why


def test_a_table_with_two_wrong_entries_is_told_as_the_events_have_it() -> None:
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "haiku", [1])
    trace.event(Kind.ADMIT, seq_id=1).alloc(3, seq_id=1).alloc(4, seq_id=1, lblock=1).write(3, 0, 2, seq_id=1)
    trace.write(4, 0, 1, seq_id=1, lblock=1).begin((1, 0, 3, [(5, 1), (6, 1)])).end()
    assert "more than one entry differs; by the events it is b3#1 b4#1" in found(trace, "KV018").why


def test_a_copy_that_went_elsewhere_is_named_with_its_source_and_target() -> None:
    trace = PLAYS["samples"].run(FAULTS["copy-into-neighbour"].manager())
    finding = found(trace, "KV023")
    copied = finding.seq_of("copied")
    assert copied is not None
    assert f"were to be copied from b1#1 (seq {copied})" in finding.why
    text = report(finding, trace)
    assert "its block 1" in finding.why
    assert "copied by actor" in text
