"""Holes: what an allocator of regions has free in pieces, and which refusals that caused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.engine.baselines import ContiguousSpace, RegionManager
from kvscope.errors import OutOfBlocks
from kvscope.inspector.doctor import diagnose, of_trace
from kvscope.inspector.holes import holes
from kvscope.inspector.measures import summary
from kvscope.inspector.state import longest_free, state_at
from kvscope.traces import PoolFacts, Recorder, TraceReader, open_trace

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
SIZE = 4


def recorded(path: Path, blocks: int, moves: list[tuple[int, int]]) -> TraceReader:
    """Admit (tokens > 0), or give back, one sequence after another; what does not fit is refused."""
    with Recorder(path, pool=PoolFacts(blocks, SIZE), sealing="inline", overwrite=True) as sink:
        sink.fact({"type": "run", "allocator": "contiguous"})
        manager = RegionManager(ContiguousSpace(blocks, SIZE), sink=sink)
        for seq_id, (leaves, tokens) in enumerate(moves):
            present = manager.sequences()
            if tokens:
                try:
                    manager.admit(seq_id, [1] * tokens)
                except OutOfBlocks:
                    continue
            elif present:
                manager.free(present[leaves % len(present)])
    return open_trace(path)


@settings(max_examples=25)
@given(moves=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 20)), min_size=1, max_size=30))
def test_they_are_what_the_state_of_the_pool_says(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, int]]
) -> None:
    trace = recorded(tmp_path_factory.mktemp("holes") / "run.kvtrace", 16, moves)
    if not len(trace.events):
        return
    found = holes(trace)
    for seq, free, largest in zip(found.seq[1:].tolist(), found.free[1:], found.largest[1:], strict=True):
        state = state_at(trace, seq)
        assert (state.counts["free"], longest_free(state)) == (free, largest)
    for refusal in found.refusals:
        assert refusal.largest == (trace.detail(refusal.seq) or ())[3]
        assert refusal.needed > refusal.largest


def test_a_refusal_that_free_blocks_would_have_served(tmp_path: Path) -> None:
    full = [(0, SIZE)] * 4
    trace = recorded(tmp_path / "run.kvtrace", 4, [*full, (0, 0), (1, 0), (0, 2 * SIZE), (0, 3 * SIZE)])
    told = summary(trace)["holes"]  # blocks 0 and 2 are free: two would do, three would not
    assert (told["refusals"], told["of_refusals"]) == (1, 2)
    assert {name: told["first"][name] for name in ("needed", "free", "largest")} == {
        "needed": 2,
        "free": 2,
        "largest": 1,
    }
    assert np.isclose(told["peak"], 0.5)


def test_the_doctor_tells_holes_from_want_of_memory() -> None:
    evidence = of_trace(open_trace(SAMPLES / "fragmentation.kvpack"))
    fragments, _, capacity = diagnose(evidence).layers
    assert fragments.value == pytest.approx(0.446, abs=0.001)
    assert "they caused 74 of 74 refusals" in fragments.evidence
    assert "paging does not help" not in capacity.cure
    assert "; 0 refusals" not in capacity.evidence
    scarce = diagnose(replace(evidence, refusals_by_holes=0)).layers[2]
    assert "paging does not help" in scarce.cure
    assert (evidence.waits_for_holes or 0) > (evidence.waits_for_memory or 0) > 0


@pytest.mark.parametrize(("name", "value"), [("paged", 0.0), ("reserved", 0.0)])
def test_where_all_pieces_are_alike_there_are_none(name: str, value: float) -> None:
    told = summary(open_trace(SAMPLES / f"{name}.kvpack"))
    assert (told["external_fragmentation"], told["holes"]) == (value, None)
