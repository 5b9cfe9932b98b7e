"""The articles' bug: as plain Python, and on the real model, found, shrunk, replayed and told."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.model.load import load_model
from kvscope.inspector.explain import explain
from kvscope.inspector.findings import check
from kvscope.inspector.races.examples import LockedPool, article
from kvscope.inspector.races.exploration import explore_race
from kvscope.inspector.races.planted import CountsMended, CountsNotAtomic
from kvscope.inspector.races.story import find, story_race
from kvscope.inspector.races.story_model import tell
from kvscope.traces import open_trace

PROMPT, TOKENS = list(range(49)), (2, 3, 6, 6)


def test_the_bug_as_plain_python_is_found_shrunk_and_replayed_a_hundred_times() -> None:
    found = explore_race(article(), level="opcode", seconds=60)
    assert found.failure is not None
    assert "the block was reclaimed while C held it" in found.failure.message
    assert found.schedules < 1_000
    assert found.switches <= 3
    assert found.deterministic
    assert not found.gil  # a switch inside of one `-= 1`
    again = [explore_race(article(), replay=found.replay) for _ in range(100)]
    assert sum(o.failure == found.failure and not o.notes for o in again) == 100


def test_behind_a_lock_it_is_clean() -> None:
    outcome = explore_race(
        article(LockedPool), level="line", scheduler="exhaustive", preemptions=2, seconds=120
    )  # fmt: skip
    assert not outcome.found, outcome.text()
    assert outcome.explored[0]["complete_to"] == 2


def test_two_workers_on_shadow_memory_and_the_mended_pool_under_the_same_schedule() -> None:
    outcome = find(PROMPT, TOKENS, seconds=120)
    assert outcome.failure is not None
    assert outcome.failure.code == "KV023"
    assert outcome.preemptions == 1
    assert outcome.switches <= 3
    again = explore_race(story_race(PROMPT, TOKENS), replay=outcome.replay)
    assert again.failure == outcome.failure
    for pool in (CountsMended, BlockManager):
        mended = explore_race(story_race(PROMPT, TOKENS, manager=pool), replay=outcome.replay)
        assert not mended.found, mended.text()


@pytest.mark.model
def test_the_schedule_garbles_a_real_text_and_the_trace_tells_why(smollm2_path: Path, tmp_path: Path) -> None:
    told = tell(load_model("smollm2"), tmp_path, max_tokens=(2, 2, 6, 6))
    assert told.outcome.found
    assert told.garbled
    assert set(told.garbled) <= {2, 3}
    assert told.broken.errors
    assert not told.mended.errors
    racy, mended = open_trace(told.broken.trace), open_trace(told.mended.trace)
    assert {"KV007"} <= {finding.code for finding in check(racy).findings}
    assert check(mended).clean
    story = explain(racy, f"story/{told.garbled[0]}")
    assert story.verdict == "damaged"
    assert story.cause is not None
    assert story.read is not None
    assert {story.read.found.seq_id, story.read.expected.seq_id} == {2, 3}
    assert CountsNotAtomic.atomic is False
