"""Digests of blocks and the provenance check: against plain Python, and against what they must notice."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import kernels
from kvscope.kernels.prefix import BASE, SEED, next_words, prefix_words

STORED = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]  # bit patterns: any type, any backend


def bits(lab, shape, stored, seed=0):
    """A cache of random bit patterns: NaN, infinities and both zeros among them."""
    gen = torch.Generator().manual_seed(seed)
    count = int(np.prod(shape)) * stored.itemsize // 4
    words = torch.randint(-(2**31), 2**31, (count,), generator=gen, dtype=torch.int64).to(torch.int32)
    return words.view(stored).view(shape).to(lab.device)


def digest(block):
    """The definition, word by word, of one block [L, 2, block_size, HK, D]."""
    total = 0
    for index, word in enumerate(block.cpu().contiguous().view(-1).view(torch.int32).tolist()):
        y = ((word & 0xFFFFFFFF) ^ (index * 0x9E3779B1 & 0xFFFFFFFF)) * 0x85EBCA6B & 0xFFFFFFFF
        total += (y ^ (y >> 15)) ** 2
    total %= 2**64
    return total - 2**64 if total >= 2**63 else total


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize(("shape", "side_by_side"), [((8, 1, 8), True), ((16, 3, 40), True), ((16, 2, 128), False)])
def test_a_digest_is_its_definition(lab, stored, shape, side_by_side):
    kv = bits(lab, (2, 2, 4, *shape), stored)
    kv = lab.together(kv) if side_by_side else kv
    want = [digest(kv[:, :, block]) for block in range(4)]
    assert kernels.digest_blocks(kv, backend=lab.backend).tolist() == want
    some = torch.tensor([3, -1, 0, 3], device=lab.device)
    assert kernels.digest_blocks(kv, some, backend=lab.backend).tolist() == [want[3], 0, want[0], want[3]]


@settings(max_examples=5, deadline=None)
@given(
    slots=st.lists(st.integers(0, 2 * 8 - 1), unique=True, min_size=1, max_size=6),
    stored=st.sampled_from(STORED),
    seed=st.integers(0, 99),
)
def test_digests_follow_writes_slot_by_slot(lab, slots, stored, seed):
    kv = bits(lab, (2, 2, 2, 8, 2, 16), stored, seed)
    digests = kernels.digest_blocks(kv, backend=lab.backend)
    order = [*slots, -1]
    random.Random(seed).shuffle(order)
    mapping = torch.tensor(order, device=lab.device)
    old = kernels.digest_slots(kv, mapping, backend=lab.backend)
    assert int(old[order.index(-1)]) == 0
    new = bits(lab, (2, 2, 16, 2, 16), stored, seed + 1)
    kv.view(2, 2, 16, 2, 16).view(torch.uint8)[:, :, slots] = new.view(torch.uint8)[:, :, slots]
    change = kernels.digest_slots(kv, mapping, backend=lab.backend) - old
    digests.index_add_(0, torch.where(mapping < 0, 0, mapping // 8), change)
    assert torch.equal(digests, kernels.digest_blocks(kv, backend=lab.backend))
    every = torch.arange(16, device=lab.device)
    parts = kernels.digest_slots(kv, every, backend=lab.backend)
    assert torch.equal(parts.view(2, 8).sum(1), digests)


def test_equal_content_gives_equal_digests_wherever_it_lies(lab):
    kv = bits(lab, (2, 2, 4, 16, 2, 16), torch.bfloat16)
    kv[:, :, 3] = kv[:, :, 1]
    found = kernels.digest_blocks(kv, backend=lab.backend)
    assert found[3] == found[1]
    assert len(set(found.tolist())) == 3


@settings(max_examples=20, deadline=None)
@given(
    bit=st.integers(0, 31), word=st.integers(0, 2 * 2 * 16 * 2 * 8 - 1), other=st.integers(0, 2 * 2 * 16 * 2 * 8 - 1)
)
def test_one_flipped_bit_and_two_swapped_words_are_noticed(lab, bit, word, other):
    kv = bits(lab, (2, 2, 1, 16, 2, 16), torch.bfloat16, word)
    before = kernels.digest_blocks(kv, backend=lab.backend)
    words = kv.view(-1).view(torch.int32)
    words[word] ^= -(2**31) if bit == 31 else 1 << bit
    flipped = kernels.digest_blocks(kv, backend=lab.backend)
    assert not torch.equal(flipped, before)
    pair = words[[word, other]]
    words[[other, word]] = pair
    same = word == other or pair[0] == pair[1]
    assert torch.equal(kernels.digest_blocks(kv, backend=lab.backend), flipped) == bool(same)


@settings(max_examples=20, deadline=None)
@given(tokens=st.lists(st.integers(0, 2**31), max_size=50), cut=st.integers(0, 50), seed=st.integers(0, 2**64 - 1))
def test_words_roll_and_continue(tokens, cut, seed):
    words = prefix_words(tokens, seed)
    head = prefix_words(tokens[:cut], seed)
    tail = prefix_words(tokens[cut:], int(head[-1]) if len(head) else seed)
    assert np.array_equal(words, np.concatenate((head, tail)))
    if len(tokens) > 1:
        assert next_words(words[-2:-1], tokens[-1:]) == words[-1]
        step = (int(words[-1]) - BASE * int(words[-2])) % 2**64
        assert step == int(prefix_words(tokens[-1:], 0)[0]) % 2**64


def test_words_of_a_long_prompt_differ_and_depend_on_all_before():
    tokens = [5] * 40_000
    words = prefix_words(tokens)
    assert len(np.unique(words)) == len(words)
    tokens[0] = 6
    assert not np.any(prefix_words(tokens) == words)
    assert not np.any(prefix_words(tokens, SEED + 1) == prefix_words(tokens))


def shadowed(lab, lengths, block_size, seed):
    """Shadow, table, lengths and expected words of sequences in random blocks; other slots hold noise."""
    rng = np.random.default_rng(seed)
    need = [-(-n // block_size) for n in lengths]
    order = rng.permutation(sum(need) + 2)
    shadow = rng.integers(-(2**63), 2**63, (len(order), block_size))
    table = np.full((len(lengths), max([*need, 1]) + 1), 2**30, np.int32)  # an entry that must not be followed
    expected = rng.integers(-(2**63), 2**63, (len(lengths), max([*lengths, 1])))
    at = 0
    for row, length in enumerate(lengths):
        table[row, : need[row]] = order[at : at + need[row]]
        at += need[row]
        words = prefix_words(rng.integers(0, 50_000, length))
        expected[row, :length] = words
        place = np.arange(length)
        shadow[table[row, place // block_size], place % block_size] = words
    tensors = (shadow, table, np.array(lengths, np.int32), expected)
    return [torch.from_numpy(x).to(lab.device) for x in tensors]


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 15, 16, 17, 200, 1024, 1500, 2100]), min_size=1, max_size=4),
    block_size=st.sampled_from([8, 16, 64]),
    window=st.sampled_from([0, 0, 1, 100]),
    data=st.data(),
)
def test_provenance_names_the_first_wrong_position(lab, lengths, block_size, window, data):
    shadow, table, lens, expected = shadowed(lab, lengths, block_size, data.draw(st.integers(0, 99)))

    def check():
        options = {"window": window, "backend": lab.backend}
        found = kernels.check_provenance(shadow, table, lens, expected, **options)
        assert found.dtype == torch.int32
        # The same words in other rows, among words of others.
        places = torch.arange(len(lengths), device=lab.device).flip(0) * 2
        wider = torch.zeros(2 * len(lengths), expected.shape[1], dtype=torch.int64, device=lab.device)
        wider[places] = expected
        assert torch.equal(kernels.check_provenance(shadow, table, lens, wider, rows=places, **options), found)
        return found.tolist()

    assert check() == [-1] * len(lengths)
    want = []
    for row, length in enumerate(lengths):
        wrong = data.draw(st.lists(st.integers(0, max(length - 1, 0)), max_size=3)) if length else []
        for position in wrong:
            shadow[int(table[row, position // block_size]), position % block_size] ^= 1 << data.draw(st.integers(0, 62))
        begin = max(0, length - window) if window else 0
        # Two flips of one position may cancel; the words themselves decide.
        truth = [
            p
            for p in sorted(set(wrong))
            if p >= begin and shadow[int(table[row, p // block_size]), p % block_size] != expected[row, p]
        ]
        want.append(truth[0] if truth else -1)
    assert check() == want


def test_provenance_of_a_table_that_leads_to_another_sequence(lab):
    shadow, table, lens, expected = shadowed(lab, [64, 64], 16, 1)
    table[0, 2] = table[1, 2]
    assert kernels.check_provenance(shadow, table, lens, expected, backend=lab.backend).tolist() == [32, -1]


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.sampled_from([0, 1, 16, 255, 256, 300]), new=st.sampled_from([0, 1, 255, 257]), seed=st.integers(0, 99)
)
def test_words_of_a_step_go_where_its_slots_are_and_nowhere_else(lab, tokens, new, seed):
    rng = np.random.default_rng(seed)
    shadow, writers, expected = (rng.integers(-(2**63), 2**63, shape) for shape in ((24, 16), (24, 16), (4, 160)))
    slots, places = rng.permutation(shadow.size)[:tokens], rng.permutation(expected.size)[:new]
    words, by, values = (rng.integers(-(2**63), 2**63, n) for n in (tokens, tokens, new))
    sent = np.concatenate([slots, words, by, places // 160, places % 160, values])  # parts of one array, as in a step
    parts = torch.split(torch.from_numpy(sent).to(lab.device), [tokens] * 3 + [new] * 3)
    cells = [torch.from_numpy(array.copy()).to(lab.device) for array in (shadow, writers, expected)]
    kernels.write_words(*cells[:2], *parts[:3], cells[2], *parts[3:], backend=lab.backend)
    shadow.flat[slots], writers.flat[slots], expected.flat[places] = words, by, values
    for found, want in zip(cells, (shadow, writers, expected), strict=True):
        assert np.array_equal(found.cpu().numpy(), want)
