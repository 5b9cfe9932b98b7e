"""Values that a call on the CPU can look at: none leads to another place than it names."""

from __future__ import annotations

import pytest
import torch

from kvscope import kernels
from kvscope.errors import UsageError


def cache(blocks: int = 4) -> torch.Tensor:
    """Keys and values side by side, as the engine has them."""
    return torch.randn(1, blocks, 2, 16, 2, 64).transpose(1, 2)


def attend(ids: list[int], length: int = 20) -> torch.Tensor:
    k, v = cache()[0]
    table = torch.tensor([ids], dtype=torch.int32)
    return kernels.paged_decode(torch.randn(1, 4, 64), k, v, table, torch.tensor([length], dtype=torch.int32), 0.125)


@pytest.mark.parametrize(("ids", "named"), [([0, -1], -1), ([0, 4], 4), ([2**31 - 1, 0], 2**31 - 1)])
def test_attention_refuses_a_block_that_is_not_there(ids: list[int], named: int) -> None:
    with pytest.raises(UsageError, match=f"block {named} is outside a cache of 4 blocks"):
        attend(ids)
    k, v = cache()[0]
    start = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(UsageError, match=f"block {named} is outside a cache of 4 blocks"):
        kernels.paged_prefill(torch.randn(3, 4, 64), k, v, torch.tensor([ids], dtype=torch.int32),
                              torch.tensor([20], dtype=torch.int32), start, 0.125)  # fmt: skip


def test_entries_that_are_not_read_may_hold_anything() -> None:
    assert attend([0, -1], 16).isfinite().all()


def test_a_rotation_refuses_a_position_below_zero() -> None:
    k, v = cache()[0]
    table, new = torch.randn(8, 32), torch.randn(1, 2, 64)
    for position in (-1, 8):
        with pytest.raises(UsageError, match=f"position {position} is outside the rotary tables of 8 rows"):
            kernels.rope_write_kv(torch.randn(1, 4, 64), new, new.clone(), table, table, k, v, torch.tensor([0]),
                                  positions=torch.tensor([position]))  # fmt: skip


@pytest.mark.parametrize("cap", [1e4, 1e30, -1.0, float("inf"), float("nan")])
def test_a_soft_cap_that_leaves_no_digits_is_refused(cap: float) -> None:
    k, v = cache()[0]
    args = (k, v, torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32))
    with pytest.raises(UsageError, match="at most 1000"):
        kernels.paged_decode(torch.randn(1, 4, 64), *args, 0.125, soft_cap=cap)


SHADOW = torch.arange(64).view(4, 16)


def compared(length: int, words: int, *, blocks: tuple[int, ...] = (0, 1), rows: list[int] | None = None) -> list[int]:
    expected = torch.arange(words).expand(1, words).contiguous()
    listed = None if rows is None else torch.tensor(rows)
    table = torch.tensor([blocks], dtype=torch.int32)
    lengths = torch.tensor([length], dtype=torch.int32)
    return kernels.check_provenance(SHADOW, table, lengths, expected, rows=listed).tolist()


def test_what_a_provenance_check_could_not_compare_is_no_clean_answer() -> None:
    assert compared(20, 20) == [-1]
    assert compared(20, 32) == [-1]
    for length, words in ((20, 10), (20, 0), (33, 48)):  # too few words; no room in the table
        with pytest.raises(UsageError, match=f"a sequence of {length} tokens cannot be compared"):
            compared(length, words)
    for block in (-1, 4):
        with pytest.raises(UsageError, match=f"block {block} is outside the shadow of 4 blocks"):
            compared(20, 20, blocks=(0, block))
        assert compared(16, 20, blocks=(0, block)) == [-1]  # it is not read
    for row in (-1, 1):
        with pytest.raises(UsageError, match=f"row {row} is outside expected"):
            compared(20, 20, rows=[row])


def test_words_of_padding_go_nowhere() -> None:
    shadow, writers, expected = (torch.zeros(rows, 4, dtype=torch.int64) for rows in (2, 2, 1))
    none = torch.empty(0, dtype=torch.int64)
    slots = torch.tensor([2, -1])
    kernels.write_words(shadow, writers, slots, slots + 10, slots + 20, expected, none, none, none)
    assert shadow.view(-1).tolist() == [0, 0, 12, 0, 0, 0, 0, 0]
    assert writers.view(-1).tolist() == [0, 0, 22, 0, 0, 0, 0, 0]


def test_digests_refuse_what_is_not_in_the_cache() -> None:
    kv = cache()
    with pytest.raises(UsageError, match="block 4 is outside the cache of 4 blocks"):
        kernels.digest_blocks(kv, torch.tensor([0, 4]))
    with pytest.raises(UsageError, match="slot 64 is outside the cache of 4 blocks of 16 slots"):
        kernels.digest_slots(kv, torch.tensor([64]))
    assert kernels.digest_blocks(kv, torch.tensor([-1])).tolist() == [0]


def test_a_place_in_host_memory_that_nothing_was_put_in_does_not_come_back() -> None:
    kv = cache()
    space = kernels.SwapSpace(kv, 3)
    before = kv.clone()
    space.out([0], [1]).wait()
    with pytest.raises(UsageError, match="place 2 of 3 holds nothing"):
        space.back([1, 2], [2, 3])
    assert torch.equal(kv, before)
    space.back([1], [2]).wait()
    assert torch.equal(kv[:, :, 2], before[:, :, 0])
