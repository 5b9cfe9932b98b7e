"""The command that regenerates kernels/configs.json: what it writes is what is shipped, and noise changes nothing."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from kvscope.benchmarks import tune_kernels
from kvscope.kernels import tuning


def test_the_shipped_table_is_what_the_command_writes():
    text = tune_kernels.SHIPPED.read_text(encoding="utf-8")
    assert tune_kernels.written(json.loads(text)) == text


@pytest.mark.parametrize(("rival", "kept"), [(0.995, True), (0.95, False)])
def test_a_rival_must_be_worth_it(rival, kept):
    found = [{"config": name, "slowdown": slow} for name, slow in (("shipped", 1.0), ("rival", rival))]
    assert (tune_kernels.choose(found)["config"] == "shipped") is kept


def test_every_entry_has_rivals_and_shapes_that_take_it(monkeypatch):
    monkeypatch.setattr(tuning, "multiprocessors", lambda device: 132)
    for entry in tune_kernels.entries(None):
        assert entry.rivals()[0] == tuning.table()[entry.kind][entry.key]
        assert len(entry.rivals()) > 5
        size = max(16, entry.dim) * entry.stored.itemsize
        assert entry.key.startswith(f"{size}B")
        for rows, new, context in entry.shapes("cuda"):
            if new == 1:
                assert tuning.decode_split(rows * 8, "cuda").name == entry.kind.removeprefix("decode-")
            assert rows * context * 2 * 8 * size <= tune_kernels.POOL_BYTES
