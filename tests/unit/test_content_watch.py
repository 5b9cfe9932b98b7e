"""Layer 3 beside a real engine: bytes nobody wrote are noticed, and poison that is read; watch points tell who."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.hooks import EngineHook
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.errors import UsageError
from kvscope.inspector.content import ContentCheck
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.findings import check
from kvscope.inspector.watch import Hit, WatchPoints
from kvscope.traces import Kind, MemoryRecorder, Reason

HEAD = list(range(5, 13))


@pytest.fixture(scope="module")
def tiny_model(tiny_folder: Path) -> LoadedModel:
    return load_model(str(tiny_folder))


def run(
    tiny: LoadedModel, *, fault: str | None = None, break_it: Callable[[Engine], EngineHook | None] = lambda _: None,
    preemption: str = "recompute", blocks: int = 14, watch: Sequence[str] = (), poison: bool = True,
) -> tuple[MemoryRecorder, ContentCheck, list[Hit], list[Any]]:  # fmt: skip
    sink = MemoryRecorder(num_blocks=blocks, block_size=4, record="sanitize")
    hits: list[Hit] = []
    config = EngineConfig(
        num_blocks=blocks, block_size=4, hash_key=b"k", host_blocks=24 if preemption == "swap" else 0,
        scheduler=SchedulerConfig(max_seqs=8, max_batched_tokens=24, preemption=preemption),
    )  # fmt: skip
    manager = FAULTS[fault].manager() if fault else BlockManager
    seen = WatchPoints(sink, hits.append, watch) if watch else sink
    engine = Engine(tiny, config, sink=seen, manager_factory=manager)
    content = ContentCheck(engine, sample=3, poison=poison)
    hook = break_it(engine)
    if hook is not None:
        engine.watch(hook)
    for i in range(7):
        params = SamplingParams(6, temperature=0.9, seed=i, n=3 if i in (1, 5) else 1, ignore_eos=True)
        engine.submit([*HEAD, 20 + i, 30, 31][: 9 + i % 3], params)
    tokens = list(engine.run())
    content.close()
    sink.close()
    return sink, content, hits, tokens


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_clean_runs_are_clean_and_poison_changes_no_token(tiny_model: LoadedModel, preemption: str) -> None:
    sink, content, _, tokens = run(tiny_model, preemption=preemption)
    assert content.changed == []
    assert content.poisoned > 14
    assert (sink.events["kind"] == Kind.PREEMPT).any()
    checks = sink.events[(sink.events["kind"] == Kind.CHECK) & (sink.events["reason"] == Reason.CONTENT)]
    assert int(checks["lblock"].sum()) == content.blocks > 0
    assert check(sink).findings == ()
    assert tokens == run(tiny_model, preemption=preemption, poison=False)[3]


class Scribble(EngineHook):
    """A kernel that writes one number outside its slots, once, into a block that is published."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.block, self.steps = engine, -1, 0

    def before_attention(self, plan: Any, inputs: Any) -> None:
        self.steps += 1
        published = [block for block, _ in self.engine.manager.pool.index.items()]
        if self.block < 0 and published and self.steps > 2:
            self.block = published[0]
            self.engine.cache.kv[1, 0, self.block, 2, 0, 3] += 1.0


def test_bytes_that_nobody_wrote_are_found(tiny_model: LoadedModel) -> None:
    hooks: list[Scribble] = []

    def break_it(engine: Engine) -> EngineHook:
        hooks.append(Scribble(engine))
        return hooks[0]

    sink, content, _, _ = run(tiny_model, break_it=break_it)
    assert [found.block for found in content.changed] == [hooks[0].block]
    finding = next(f for f in check(sink).findings if f.code == "KV024")
    assert finding.block == hooks[0].block
    assert "No event speaks of this change" in finding.why


def test_read_poison_is_named_by_sequence_and_slot(tiny_model: LoadedModel) -> None:
    sink, content, _, _ = run(tiny_model, fault="hit-one-too-far")
    poison = [found for found in content.changed if found.reason == Reason.POISON]
    assert poison
    assert all(found.block >= 0 and found.slot >= 0 for found in poison)
    finding = next(f for f in check(sink, only=["CONTENT"]).findings if f.code == "KV009")
    assert "read poison" in finding.why


def test_short_run_of_a_copy_is_noticed_in_the_bytes(tiny_model: LoadedModel) -> None:
    _, content, _, _ = run(tiny_model, fault="copy-into-neighbour")
    assert content.changed


def test_watch_points_tell_who_next_writes(tiny_model: LoadedModel) -> None:
    sink, _, hits, _ = run(tiny_model, watch=["b3"])
    events = sink.events
    touched = (events["block"] == 3) & (
        (events["kind"] == Kind.WRITE) | (events["kind"] == Kind.COW) | (events["kind"] == Kind.ALLOC)
    )
    assert [hit.seq for hit in hits] == sink.seqs[touched].tolist()
    write = next(hit for hit in hits if hit.kind == Kind.WRITE)
    assert f"sequence {write.seq_id} writes b3#{write.gen}[" in str(write)
    assert "engine/scheduler.py" in str(write)
    life = run(tiny_model, watch=["b3#2"])[2]
    assert life
    assert {hit.gen for hit in life} == {2}


def test_a_name_that_is_no_block_is_refused() -> None:
    with pytest.raises(UsageError, match="b37#12"):
        WatchPoints(MemoryRecorder(num_blocks=2, block_size=2), lambda hit: None, ["37b"])


def test_digests_follow_a_resized_pool(tiny_model: LoadedModel) -> None:
    engine = Engine(tiny_model, EngineConfig(num_blocks=8, block_size=4))
    content = ContentCheck(engine)
    for i in range(3):
        engine.submit([i + 1, 2, 3, 4, 5], SamplingParams(8, ignore_eos=True))
    engine.step()
    engine.resize(12)
    engine.step()
    engine.resize(9)
    list(engine.run())
    content.close()
    assert content.changed == []
    assert not torch.isnan(engine.cache.kv).all()
