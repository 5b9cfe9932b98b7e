"""How decode batches are cut: whole waves of an H200's 132 multiprocessors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvscope.kernels import tuning
from kvscope.kernels.attend import values_behind

CHIP = 132


@pytest.fixture(scope="module", autouse=True)
def h200():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "multiprocessors", lambda device: CHIP)
        yield


def split(programs: int) -> tuning.Split:
    return tuning.decode_split(programs, torch.device("cpu"))


@pytest.mark.parametrize(
    ("programs", "name", "even"),
    [
        (8, "few", 16),  # one sequence on 8 KV heads: 128 programs
        (128, "few", 1),
        (72, "mid", 5),  # 72 or 144 programs would leave half of the chip, or a second wave almost, empty
        (192, "mid", 2),
        (512, "many", 1),
        (768, "mid", 1),  # two full waves of 396 rather than one and a half of 528
        (2048, "many", 1),
    ],
)
def test_the_batch_takes_the_configuration_that_fills_its_waves(programs, name, even):
    assert (split(programs).name, split(programs).even) == (name, even)


@given(st.integers(1, 5000))
def test_an_even_batch_that_is_cut_fits_one_wave(programs):
    made = split(programs)
    assert made.even >= 1
    if made.even > 1:
        assert made.even * programs <= tuning.RESIDENT[made.name] * CHIP
        assert made.even * programs >= 0.5 * tuning.RESIDENT[made.name] * CHIP


@pytest.mark.parametrize("dim", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_every_key_size_has_its_configurations(dim, itemsize):
    for programs in (8, 192, 512):
        config = tuning.decode_config(dim, itemsize, 4, programs, torch.device("cpu"))
        assert config.tile >= 16
    assert tuning.prefill_config(dim, itemsize, 4096, 32, torch.device("cpu")).rows in (32, 128)


def test_a_short_prefill_of_small_heads_takes_smaller_programs():
    def rows(tokens: int) -> int:
        return tuning.prefill_config(64, 2, tokens, 32, torch.device("cpu")).rows

    assert (rows(512), rows(4096)) == (64, 128)


@pytest.mark.parametrize(
    ("make", "behind"),
    [
        (lambda: torch.empty(4, 2, 16, 8, 64).unbind(1), 16 * 8 * 64),  # a block's keys, then its values
        (lambda: torch.empty(4, 16, 2, 8, 64).unbind(2), 8 * 64),  # by token
        (lambda: torch.empty(2, 4, 16, 8, 64).unbind(0), 0),  # all keys, then all values: how far is a matter of size
        (lambda: torch.empty(4, 2, 16, 8, 64).flip(1).unbind(1)[::-1], 0),  # values first
        (lambda: (torch.empty(4, 2, 16, 8, 64)[:, 0], torch.empty(4, 16, 8, 64)), 0),  # laid out differently
    ],
)
def test_how_far_values_lie_behind_their_keys(make, behind):
    assert values_behind(*make()) == behind


def test_a_wide_tile_is_for_caches_whose_blocks_hold_both():
    cpu = torch.device("cpu")
    apart = tuning.prefill_config(128, 2, 4096, 32, cpu)
    close = tuning.prefill_config(128, 2, 4096, 32, cpu, close=True)
    assert close.tile > apart.tile
    assert tuning.prefill_config(256, 2, 4096, 32, cpu, close=True) == tuning.prefill_config(256, 2, 4096, 32, cpu)
