"""Wherever rows are done as arrays from some number on, doing them one by one gives the same events and tables."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvscope.engine import block_life, pool, stepping, tables
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.inspector.fuzz.soak import Soak
from kvscope.traces.memory import MemoryRecorder

FROM = ((block_life, "_BULK"), (pool, "_BULK"), (stepping, "_BULK"), (tables, "_MANY"))


def story(sink: MemoryRecorder) -> list[tuple[object, ...]]:
    """Every event with its details, block by block: one by one, a block is left and freed, then the next one; together,
    all are left, and then freed."""
    columns = [name for name in sink.events.dtype.names or () if name not in ("t_ns", "site", "actor")]
    rows = np.column_stack([sink.events[name].astype(np.int64) for name in columns]).tolist()
    block = columns.index("block")
    return sorted(((*row, sink.detail(seq)) for seq, row in enumerate(rows)), key=lambda row: row[block])


def soak(seed: int) -> MemoryRecorder:
    """Everything but shared prefixes, tables of many blocks among it."""
    blocks, slots = ((40, 1), (12, 2), (24, 4))[seed % 3]
    sink = MemoryRecorder(num_blocks=blocks, block_size=slots)
    run = Soak(seed, num_blocks=blocks, block_size=slots, sink=sink)
    run.run(250)
    run.finish()
    run.ours.check_integrity()
    return sink


def device(seed: int) -> MemoryRecorder:
    """Shared prefixes, and steps that end late."""
    sink = MemoryRecorder(num_blocks=6, block_size=1 + seed % 3)
    chance = random.Random(seed)
    operations = [(chance.choice(OPERATIONS), chance.randrange(6), chance.randrange(10)) for _ in range(60)]
    DeviceRun(6, 1 + seed % 3, sink=sink).play(operations)
    return sink


def long_prompts(seed: int) -> MemoryRecorder:
    """Prompts of many blocks that begin alike, shared, cached, evicted, appended to side by side and freed."""
    chance = random.Random(seed)
    sink = MemoryRecorder(num_blocks=64, block_size=2)
    manager = BlockManager(64, 2, sink=sink, hash_key=b"long")
    system = [chance.randrange(50) for _ in range(24)]
    live: list[int] = []
    for seq_id in range(14):
        tokens = system[: chance.randrange(4, 25)] + [chance.randrange(50) for _ in range(chance.randrange(1, 20))]
        while live and manager.num_free() < len(tokens) // 2 + 2 * len(live) + 2:
            manager.free(live.pop(chance.randrange(len(live))))
        done = manager.admit(seq_id, tokens)
        manager.write(seq_id, done, len(tokens))
        live.append(seq_id)
        if seq_id % 3 == 1:
            manager.fork(seq_id, 100 + seq_id)
            live.append(100 + seq_id)
        for member in live:
            manager.append(member, chance.randrange(50))
        if seq_id % 4 == 3:
            manager.truncate(live[-1], manager.length(live[-1]) - chance.randrange(1, 6))
        manager.check_integrity()
    for seq_id in reversed(live):
        manager.free(seq_id)
    manager.check_integrity()
    return sink


def side_by_side(seed: int) -> MemoryRecorder:
    """Batches that decode together, blocks of theirs leased to transfers now and then."""
    chance = random.Random(seed)
    sink = MemoryRecorder(num_blocks=80, block_size=3)
    manager = BlockManager(80, 3, sink=sink, hash_key=b"batch")
    lengths = {seq_id: chance.randrange(2, 8) for seq_id in range(9)}
    for seq_id, length in lengths.items():
        manager.write(seq_id, manager.admit(seq_id, [100 * seq_id + i for i in range(length)]), length)
    rows = [Scheduled(seq_id, 0, length) for seq_id, length in lengths.items()]
    for step in range(12):
        manager.begin_step(rows)
        manager.end_step()
        lease = manager.lease([manager.table(chance.randrange(9))[0]]) if step % 3 == seed % 3 else None
        rows = list(manager.append_many(list(lengths), [chance.randrange(50) for _ in lengths]))
        if lease is not None and step % 2:
            manager.unlease(lease.lease_id)
        manager.check_integrity()
    for seq_id in lengths:
        manager.free(seq_id)
    return sink


@pytest.mark.parametrize("run", [soak, device, long_prompts, side_by_side])
def test_arrays_are_the_single_rows(run: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(run)
    for seed in range(3):
        usual = story(run(seed))
        for least in (1, 1 << 30):
            with monkeypatch.context() as patch:
                for module, name in FROM:
                    patch.setattr(module, name, least)
                assert story(run(seed)) == usual, f"seed {seed}, arrays from {least} rows on"


def test_plays_are_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for play in PLAYS.values():
        usual = story(play.run(BlockManager))
        for least in (1, 1 << 30):
            with monkeypatch.context() as patch:
                for module, name in FROM:
                    patch.setattr(module, name, least)
                assert story(play.run(BlockManager)) == usual
