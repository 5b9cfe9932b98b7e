"""The hit rate of an unlimited prefix cache, simulated, against counting the shared leading blocks by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvscope.inspector.simulate import Cell, Settings, simulate
from kvscope.inspector.workloads import open_workload

BLOCK = 512


def conversations(path: Path) -> None:
    """A file as Mooncake writes it: prompts that repeat the blocks of earlier ones, then go on with their own."""
    chance, known, fresh, lines = random.Random(3), [[0]], 1, []
    for number in range(120):
        ids = list(chance.choice(known))[: chance.randint(1, 12)]
        for _ in range(chance.randint(1, 4)):
            ids.append(fresh)
            fresh += 1
        known.append(ids)
        length = BLOCK * len(ids) - chance.randint(0, BLOCK - 1)
        lines.append({"timestamp": 10_000 * number, "input_length": length, "output_length": 8, "hash_ids": ids})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def ceiling(path: Path) -> tuple[float, float]:
    """(of the tokens, of the blocks) that stand in front of a first new block, whole blocks only."""
    seen: set[int] = set()
    hits = tokens = blocks = 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        full = (row["input_length"] - 1) // BLOCK  # the last token is always computed
        ids = row["hash_ids"]
        same = next((i for i, block in enumerate(ids) if block not in seen), len(ids))
        hits += min(same, full)
        tokens += row["input_length"]
        blocks += len(ids)
        seen.update(ids[: row["input_length"] // BLOCK])
    return hits * BLOCK / tokens, hits / blocks


@pytest.mark.parametrize("drive", [False, True], ids=["counted", "driven"])
def test_an_unlimited_cache_hits_what_can_be_hit(tmp_path: Path, drive: bool) -> None:
    path = tmp_path / "conversation.jsonl"
    conversations(path)
    row = simulate(open_workload(str(path)), Cell("paged", BLOCK), Settings(1 << 40, 1024, 1 << 20), drive=drive)
    assert (row.prefix_hit_rate, row.prefix_hit_rate_blocks) == pytest.approx(ceiling(path))
