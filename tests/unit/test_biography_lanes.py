"""Biographies of blocks and lanes of requests, from small traces."""

from __future__ import annotations

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.biography import biography, kind_words, reason_words
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.lanes import Bar, lanes
from kvscope.traces.schema import Kind, Reason


def run() -> HandTrace:
    """haiku (1) is forked (2); 2 copies block 0 to block 1 and ends; 3 takes block 1 again."""
    trace = HandTrace(num_blocks=3, block_size=4).request(0, "haiku", [1, 2], prompt_tokens=3)
    trace.event(Kind.SUBMIT, seq_id=1, aux=3).event(Kind.ADMIT, seq_id=1, aux=0)  # 0 1
    trace.at("engine/pool.py", 51, "take").alloc(0, seq_id=1).write(0, 0, 3, seq_id=1)  # 2 3
    trace.begin((1, 0, 3, [(0, 1)])).commit(0).end()  # 4 5 6 7
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2).copy_on_write(0, 1, 3, seq_id=2)  # 8 9 10..13
    trace.write(0, 3, 4, seq_id=1).write(1, 3, 4, seq_id=2)  # 14 15
    trace.begin((1, 3, 4, [(0, 1)]), (2, 3, 4, [(1, 1)])).copy_done(0, 1).end()  # 16 17 18, 19 20, 21
    trace.event(Kind.FINISH, seq_id=2, aux=1, reason=Reason.LENGTH).release(1, seq_id=2).free(1)  # 22 23 24
    return trace.alloc(1, seq_id=3)  # 25


def test_lives_of_a_block() -> None:
    first, second = biography(run(), 1)
    assert (first.gen, first.end, first.max_ref, first.sequences) == (1, "free", 1, (2,))
    assert (second.gen, second.end, second.first_seq, second.last_seq) == (2, "", 25, 25)
    assert [e.text for e in first.events] == [
        "allocated by haiku/1 as its block 0 (copy on write), 0 -> 1",
        "copied slots [0:3] from b0 by haiku/1",
        "write slots [3:4] by haiku/1",
        "copy has run: from b0",
        "released by haiku/1, 1 -> 0",
        "put on the free list",
    ]
    assert first.events[0].site == "engine/pool.py:51 in take"
    assert [(s.slot, s.seq, s.copied) for s in first.slots] == [
        (0, 12, True),
        (1, 12, True),
        (2, 12, True),
        (3, 15, False),
    ]


def test_a_copy_is_part_of_its_sources_story() -> None:
    (life,) = biography(run(), 0)
    texts = {e.seq: e.text for e in life.events}
    assert texts[12] == "copied slots [0:3] to b1#1 by haiku/1"
    assert texts[11] == "lease 1 taken, 2 -> 3"
    assert [s.seq_id for s in life.slots] == [1, 1, 1, 1]
    assert life.max_ref == 3


def test_until_an_event() -> None:
    assert len(biography(run(), 1, until=24)) == 1
    assert biography(run(), 2) == []
    with pytest.raises(UsageError, match="block 3 does not exist"):
        biography(run(), 3)


def test_a_stale_write_stands_in_the_life_it_meant() -> None:
    trace = run().write(1, 3, 4, seq_id=2, gen=1)
    first, second = biography(trace, 1)
    assert (first.last_seq, second.last_seq) == (26, 25)


def test_words() -> None:
    assert kind_words(Kind.COPY_DONE) == "copy_done"
    assert kind_words(250) == "unknown event 250"
    assert reason_words(Reason.NONE) == ""
    assert reason_words(Reason.COPY_ON_WRITE) == "copy on write"
    assert reason_words(250) == "reason 250"


def test_lanes() -> None:
    one, two, three = lanes(run().alloc(2, seq_id=1, lblock=1).event(Kind.ADMIT, seq_id=3, aux=2))
    assert (one.name, one.request, one.parent, one.outcome) == ("haiku", 0, -1, "running")
    assert one.bars == (
        Bar("queued", 0, 1000, 0, 1, 0, 0),
        Bar("prefill", 1000, 17000, 1, 17, 0, 2),  # its first decoded position is scheduled at event 17
        Bar("decode", 17000, 27000, 17, 27, 2, 2),
    )
    assert (one.prompt_tokens, one.max_held, one.held.tolist()) == (3, 2, [1, 2])
    assert (two.name, two.parent, two.outcome, two.output_tokens) == ("haiku/1", 1, "finish", 1)
    assert [b.phase for b in two.bars] == ["decode"]
    assert two.held.tolist() == [1, 1, 1, 0]  # a copy takes the place of its source
    assert two.max_held == 1
    assert (three.name, three.request, three.cached_tokens) == ("s3", None, 2)


def test_a_preempted_lane() -> None:
    trace = HandTrace().event(Kind.SUBMIT, seq_id=1, aux=2).event(Kind.ADMIT, seq_id=1)
    trace.begin((1, 0, 2, [])).begin((1, 2, 3, [])).event(Kind.PREEMPT, seq_id=1, aux=3)
    trace.event(Kind.RESUME, seq_id=1, aux=3).begin((1, 0, 3, [])).begin((1, 3, 4, []))
    (lane,) = lanes(trace.event(Kind.ABORT, seq_id=1, aux=2))
    assert [b.phase for b in lane.bars] == ["queued", "prefill", "decode", "preempted", "prefill", "decode"]
    assert (lane.preemptions, lane.outcome) == (1, "abort")
    for before, after in zip(lane.bars, lane.bars[1:], strict=False):
        assert before.t1_ns == after.t0_ns


def test_a_lane_whose_beginning_is_lost() -> None:
    def rest() -> HandTrace:
        return HandTrace().begin((1, 0, 2, [])).begin((1, 3, 4, [])).event(Kind.FINISH, seq_id=1, aux=2)

    told = rest()
    told.facts.append({"type": "request", "request": 0, "seq_ids": [1], "prompt_tokens": 3})
    (known,) = lanes(told)
    assert known.cut
    assert [bar.phase for bar in known.bars] == ["prefill", "decode"]
    assert (known.prompt_tokens, known.outcome, known.output_tokens) == (3, "finish", 2)
    (unknown,) = lanes(rest())
    assert [bar.phase for bar in unknown.bars] == ["decode"]
    (ended,) = lanes(HandTrace().event(Kind.FINISH, seq_id=1, aux=2))
    assert [(bar.phase, bar.seq_lo, bar.seq_hi) for bar in ended.bars] == [("decode", 0, 0)]


def test_no_events_no_lanes() -> None:
    assert lanes(HandTrace()) == []
