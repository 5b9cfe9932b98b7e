"""Keyframes of a trace whose pool grows take no more room than others, and lead to the same pool."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.traces import keyframes
from kvscope.traces.fold import BLOCK_BYTES, BlockFold
from kvscope.traces.keyframes import Keyframes, dump_keyframes, load_keyframes
from kvscope.traces.schema import Kind


def grown(rows: int, blocks: int) -> Keyframes:
    """Keyframes at every row; at the fifth the pool grows."""
    keys, fold = Keyframes(BlockFold(4), rows_between=1), BlockFold(4)
    for row in range(1, rows + 1):
        if row == 5:
            told = {"kind": [Kind.GROW], "aux": [blocks], "block": [-1], "gen": [-1], "seq": [row], "fill": [-1],
                    "ref_before": [-1], "ref_after": [-1]}  # fmt: skip
            fold.apply({name: np.asarray(values) for name, values in told.items()})
        keys.add(row, fold)
    return keys


@pytest.mark.parametrize("rows", [6, 40, 500])
def test_a_pool_that_grows_gets_fewer(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(keyframes, "MAX_BYTES", 8 * 1000 * BLOCK_BYTES)
    keys = grown(rows, 1000)
    assert len(keys.rows) == len(keys.folds) <= 8 + 2
    assert keys.rows == sorted(set(keys.rows))
    assert rows < 20 or np.diff(keys.rows).max() <= rows / 2  # they lie over the whole of it
    for row in range(rows + 1):
        at, fold = keys.before(row)
        assert at <= row
        assert fold.size == (1000 if at >= 5 else 4)


def test_a_file_of_more_than_there_may_be_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyframes, "MAX_BYTES", 8 * 1000 * BLOCK_BYTES)
    keys = grown(40, 1000)
    read = Keyframes(BlockFold(4))
    assert load_keyframes(dump_keyframes(keys, 7), 7, 40, read)
    assert read.rows == keys.rows
    keys.rows = list(range(21))
    keys.folds = [BlockFold(1000)] * 21
    assert not load_keyframes(dump_keyframes(keys, 7), 7, 40, Keyframes(BlockFold(4)))
