"""The prefix index and the list of cached blocks, as arrays: against dictionaries, and with tokens of any width."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from kvscope.engine.age_list import AgeList
from kvscope.engine.prefix import PrefixIndex


@pytest.mark.parametrize("seed", range(5))
def test_age_list_is_an_ordered_dictionary(seed: int) -> None:
    chance, listed, model = random.Random(seed), AgeList(8), OrderedDict[int, None]()
    for _ in range(300):
        block = chance.randrange(8)
        if block in model and chance.random() < 0.5:
            listed.discard(block)
            del model[block]
        elif block not in model:
            listed.add(block)
            model[block] = None
        assert list(listed) == list(model)
        assert len(listed) == len(model)
        assert [b in listed for b in range(8)] == [b in model for b in range(8)]
    listed.resize(12)
    assert list(listed) == list(model)
    for block in range(8):
        if block not in model:
            with pytest.raises(KeyError):
                del listed[block]


def test_tokens_that_need_eight_bytes_are_kept_beside_the_others() -> None:
    index = PrefixIndex(2, key=b"test")
    root = index.root(())
    prompts = [[1, 2], [2**31, 5], [-7, 2**40], [2**31 - 1, 0]]
    for block, tokens in enumerate(prompts):
        assert index.publish(3 * block, index.child(root, tokens), root, tokens)
    for block, tokens in enumerate(prompts):
        assert index.find(index.child(root, tokens)) == 3 * block
        assert index.entry(3 * block).tokens == tuple(tokens)
        assert [index.same(3 * block, root, other) for other in prompts] == [other == tokens for other in prompts]
    index.remove(3)
    assert index.find(index.child(root, prompts[1])) is None
    assert not index.holds(3)
    assert len(index) == 3
    with pytest.raises(KeyError):
        index.entry(3)


def test_hashes_that_begin_alike_do_not_stand_for_each_other() -> None:
    index = PrefixIndex(2, key=b"test")
    root, one, other = index.root(()), b"a" * 16, b"a" * 15 + b"b"
    assert index.publish(0, one, root, [1, 2])
    assert index.find(other) is None
    assert not index.publish(1, other, root, [3, 4])
    assert index.find(one) == 0
    assert not index.serves(0, other)
