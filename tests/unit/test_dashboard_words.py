"""Numbers in words: one of a thing is never told in the plural, whatever it is and wherever it is told."""

from __future__ import annotations

import re

import pytest

from kvscope.dashboard import markup
from kvscope.dashboard.words import event_text
from kvscope.inspector.source import Names
from kvscope.traces import Kind, MemoryRecorder, PoolFacts
from kvscope.traces.losses import Losses, notes

PLURAL_OF_ONE = re.compile(r"(?<![\d,.:\[])1 (?:[a-z]+ )?(?:blocks|slots|tokens|events|sequences|steps|records|were)\b")


@pytest.mark.parametrize("kind", list(Kind))
def test_one_of_a_thing_is_no_plural_in_any_event(kind: Kind) -> None:
    trace = MemoryRecorder(pool=PoolFacts(1, 4))
    trace.emit(kind, block=0, gen=1, ref_before=0, ref_after=1, fill=1, seq_id=1, lblock=1, aux=1)
    said = event_text(trace, 0, Names(()))
    assert not PLURAL_OF_ONE.search(said), said
    assert said


def test_one_of_a_thing_is_no_plural_on_a_card_and_in_a_warning() -> None:
    row = markup.stats([("Held", "1", "blocks", ""), ("Free", "2", "blocks", ""), ("Of", "1", "of 48, 2%", "")])
    assert "<small>block</small>" in row
    assert "<small>blocks</small>" in row
    assert "<small>of 48, 2%</small>" in row
    for line in notes(1, Losses(1, 0, 0), 1, live=False):
        assert not PLURAL_OF_ONE.search(line), line
