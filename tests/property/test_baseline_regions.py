"""Any program of opens, growths and closes: regions never overlap, and no block is lost or made."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.baselines import SPACES, ContiguousSpace, Growth, Region, RegionManager, Space, make_space
from kvscope.engine.baselines.spaces import check_space
from kvscope.engine.steps import Scheduled
from kvscope.errors import OutOfBlocks
from kvscope.inspector.findings import check
from kvscope.traces.memory import MemoryRecorder

LIMIT = 24  # tokens of a sequence
VERBS = st.sampled_from(["open", "grow", "grow", "close"])
PROGRAMS = st.lists(st.tuples(VERBS, st.integers(0, 7), st.integers(1, LIMIT)), max_size=60)


def spaces(num_blocks: int, block_size: int) -> list[Space]:
    made = [make_space(name, num_blocks, block_size, LIMIT) for name in SPACES]
    return [*made, ContiguousSpace(num_blocks, block_size, relocate=False)]


@given(num_blocks=st.integers(1, 40), block_size=st.integers(1, 5), program=PROGRAMS)
def test_regions_never_overlap_and_blocks_add_up(
    num_blocks: int, block_size: int, program: list[tuple[str, int, int]]
) -> None:
    for space in spaces(num_blocks, block_size):
        live: dict[int, Region] = {}
        for verb, key, tokens in program:
            before = (space.free, space.largest_free(), {k: (r.start, r.blocks) for k, r in live.items()})
            if verb == "open" and key not in live:
                region = space.open(tokens)
                if region is not None:
                    live[key] = region
                    assert space.capacity(region) >= tokens
                else:
                    assert space.size_for(tokens) > space.largest_free()  # a refusal has its reason
            elif verb == "grow" and key in live:
                growth = space.grow(live[key], tokens)
                if growth is Growth.REFUSED:
                    assert before == (
                        space.free, space.largest_free(), {k: (r.start, r.blocks) for k, r in live.items()}
                    )  # fmt: skip
                else:
                    assert space.capacity(live[key]) >= tokens
            elif verb == "close" and key in live:
                space.close(live.pop(key))
            check_space(space, live.values())
            fragmentation = space.external_fragmentation()
            assert fragmentation is None or 0 <= fragmentation < 1 or not space.largest_free()
        for region in live.values():
            space.close(region)
        fresh = make_space(space.name, num_blocks, block_size, LIMIT)
        assert (space.free, space.largest_free()) == (num_blocks, fresh.largest_free())


@pytest.mark.parametrize("name", SPACES)
@given(program=PROGRAMS)
def test_the_recorded_ledger_of_a_baseline_is_legal(name: str, program: list[tuple[str, int, int]]) -> None:
    sink = MemoryRecorder(num_blocks=16, block_size=2)
    manager = RegionManager(make_space(name, 16, 2, LIMIT), sink=sink)
    known: dict[int, int] = {}
    step(manager, program, known)
    for seq_id in list(known):
        manager.free(seq_id)
    manager.check_integrity()
    assert manager.num_free() == 16
    assert check(sink).findings == ()


def step(manager: RegionManager, program: list[tuple[str, int, int]], known: dict[int, int]) -> None:
    """Each instruction is one step: admit and compute a prompt, decode one token, or finish."""
    for verb, key, tokens in program:
        rows: list[Any] = []
        try:
            if verb == "open" and key not in known:
                manager.admit(key, [0] * tokens)
                known[key] = tokens
                manager.write(key, 0, tokens)
                rows = [Scheduled(key, 0, tokens)]
            elif verb == "grow" and key in known and known[key] < LIMIT:
                manager.append(key, 0)
                known[key] += 1
                rows = [Scheduled(key, known[key] - 1, known[key])]
            elif verb == "close" and key in known:
                del known[key]
                manager.free(key)
        except OutOfBlocks:
            continue
        if rows:
            manager.begin_step(rows)
            manager.copies_done(manager.drain_copies())
            manager.end_step()
        manager.check_integrity()
