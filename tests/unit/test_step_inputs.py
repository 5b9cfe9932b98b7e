"""What the device is given for a step does not depend on whether its sequences decode in a lane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.hooks import EngineHook
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


class Lanes(BlockManager):
    """Every batch is a lane, however small."""

    _least_lane = 1


class NoLanes(BlockManager):
    """No batch is one."""

    _least_lane = 1 << 30


class Seen(EngineHook):
    """The inputs of every step, and how many rows of it came as arrays."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.together = 0

    def before_attention(self, plan: Any, inputs: Any) -> None:
        self.together += plan.rows.decoding
        named = ("tokens", "positions", "slots", "tables", "seq_lens", "query_start", "last")
        self.steps.append({name: getattr(inputs, name).tolist() for name in named} | {"decodes": inputs.decodes})


def run(loaded: LoadedModel, kind: type[BlockManager], blocks: int) -> tuple[Seen, list[Any]]:
    """Requests of all lengths, some of several samples, that come, go, are preempted and aborted."""
    config = EngineConfig(
        num_blocks=blocks, block_size=4, scheduler=SchedulerConfig(max_seqs=6, max_batched_tokens=24), hash_key=b"test"
    )
    engine, seen = Engine(loaded, config, manager_factory=kind), Seen()
    engine.watch(seen)
    for i in range(7):
        params = SamplingParams(4 + 5 * (i % 3), temperature=0.9, seed=i, n=1 + (i == 4), ignore_eos=True)
        engine.submit([7, 3, *range(i, 2 * i + 3)], params)
    tokens: list[Any] = []
    while engine.has_work:
        tokens += engine.step()
        if len(seen.steps) == 12:
            engine.abort(engine.live()[0].request_id)
    return seen, tokens


@pytest.mark.parametrize("blocks", [64, 22])
def test_device_is_given_the_same_with_and_without_lanes(loaded: LoadedModel, blocks: int) -> None:
    (lanes, tokens), (single, expected) = (run(loaded, kind, blocks) for kind in (Lanes, NoLanes))
    assert lanes.steps == single.steps
    assert tokens == expected
    assert lanes.together > 30
    assert single.together == 0


def test_tables_of_another_worker_are_asked_for_one_by_one(loaded: LoadedModel) -> None:
    class Worker(Lanes):
        asked = 0

        def table(self, seq_id: int) -> list[int]:
            type(self).asked += 1
            return super().table(seq_id)

    seen, _ = run(loaded, Worker, 64)
    assert Worker.asked == sum(len(step["seq_lens"]) for step in seen.steps)
