"""Shadow words on the device, a step at a time: written through the step's slots, compared by the kernel, told once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvscope.engine.steps import Scheduled
from kvscope.inspector.shadow_device import DeviceWords
from kvscope.kernels.prefix import prefix_words

SIZE = 16


def inputs_of(lab, rows, tables, decodes):
    """What a runner packs for these rows."""
    width = max(len(table) for table in tables)
    padded = torch.zeros((len(rows), width), dtype=torch.int32)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = torch.tensor(table, dtype=torch.int32)
    positions = np.concatenate([np.arange(row.lo, row.hi) for row in rows])
    of_row = np.repeat(np.arange(len(rows)), [row.hi - row.lo for row in rows])
    slots = padded.numpy()[of_row, positions // SIZE].astype(np.int64) * SIZE + positions % SIZE
    return SimpleNamespace(
        tables=padded.to(lab.device), slots=torch.as_tensor(slots, device=lab.device), decodes=decodes,
        positions=torch.as_tensor(positions, device=lab.device),
        seq_lens=torch.tensor([row.hi for row in rows], dtype=torch.int32, device=lab.device),
    )  # fmt: skip


@pytest.mark.parametrize("window", [0, 20])
def test_steps_are_compared_and_a_stranger_s_slot_is_named(lab, window):
    words = DeviceWords(8, SIZE, device=lab.device, backend=lab.backend)
    own = {seq_id: prefix_words(list(range(seq_id, seq_id + 40))) for seq_id in (3, 4, 5)}
    tables = {3: [0, 1, 2], 4: [3, 4], 5: [5, 6, 7]}

    def step(number, rows, decodes):
        plan = SimpleNamespace(rows=rows)
        words.step(plan, inputs_of(lab, rows, [tables[r.seq_id] for r in rows], decodes),
                   [own[r.seq_id][: r.hi] for r in rows], number, window)  # fmt: skip
        return words.fetch()

    slots, wrong = step(0, [Scheduled(3, 0, 33), Scheduled(4, 0, 17), Scheduled(5, 0, 30)], 0)
    assert wrong == []
    assert slots == 80
    assert step(1, [Scheduled(4, 17, 18), Scheduled(3, 33, 34)], 2)[1] == []
    tables[4] = [3, 6]  # its second block is another's from now on
    slots, wrong = step(2, [Scheduled(3, 34, 35), Scheduled(4, 18, 19)], 2)
    found = wrong[0]
    assert [w.seq_id for w in wrong] == [4]
    assert (found.position, found.slot, found.writer, found.step) == (16, 6 * SIZE, 5, 0)
    assert (found.expected, found.found) == (int(own[4][16]), int(own[5][16]))
