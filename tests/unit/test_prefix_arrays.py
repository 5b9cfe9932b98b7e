"""The prefix index and the list of cached blocks, as arrays: against dictionaries, and with tokens of any width."""

from __future__ import annotations

import random
from collections import OrderedDict

import numpy as np
import pytest

from kvscope.engine import prefix
from kvscope.engine.age_list import AgeList
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import PrefixIndex, Tokens
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.prefix_store import HASH
from kvscope.engine.tables import NULL, SequenceTable
from kvscope.errors import UsageError
from kvscope.traces.schema import Reason


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


@pytest.mark.parametrize("first", ["narrow", "wide"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_tokens_of_both_widths_lie_side_by_side(first: str, order: tuple[int, ...]) -> None:
    index = PrefixIndex(2, key=b"test")
    index.expect(3)
    root = index.root(())
    prompts = {block: [block, 2 if (first == "narrow") == (i != 1) else 2**40] for i, block in enumerate(order)}
    for block, tokens in prompts.items():
        assert index.publish(block, index.child(root, tokens), root, tokens)
    for block, tokens in prompts.items():
        assert index.entry(block).tokens == tuple(tokens)
        assert [index.same(block, root, other) for other in prompts.values()] == [b == block for b in prompts]


def test_hashes_that_begin_alike_do_not_stand_for_each_other() -> None:
    index = PrefixIndex(2, key=b"test")
    root, one, other = index.root(()), b"a" * 16, b"a" * 15 + b"b"
    assert index.publish(0, one, root, [1, 2])
    assert index.find(other) is None
    assert not index.publish(1, other, root, [3, 4])
    assert index.find(one) == 0
    assert not index.serves(0, other)


@pytest.mark.parametrize("expected", [0, 8])
@pytest.mark.parametrize("tracked", [False, True])
def test_blocks_published_together_are_the_single_ones(expected: int, tracked: bool) -> None:
    def prepared() -> tuple[PrefixIndex, list[bytes]]:
        index, parents = PrefixIndex(2, key=b"test"), []
        if expected:
            index.expect(expected)
        for block in range(3):
            root = index.root(())
            parents.append(index.child(root, [block, block]))
            assert index.publish(block, parents[-1], root, [block, block])
        if tracked:
            index.track()
        return index, parents

    (one, parents), (many, _) = prepared(), prepared()
    blocks, tokens = np.array([7, 5, 6]), np.array([[1, 2], [3, 4], [5, 6]], dtype=np.int32)
    content = tokens.reshape(-1).view("V8")
    assert many.serve(np.arange(3), b"".join(parents))
    assert not many.serve(np.arange(3), b"".join(parents[::-1]))
    chained, alone = many.children(b"".join(parents), content.tobytes(), own=True)
    for parent, row, digest, own in zip(parents, tokens.tolist(), chained, alone, strict=True):
        assert digest == one.child(parent, row)
        assert int.from_bytes(own[:8], "little", signed=True) == one.words(parent, row, digest, 0)[1]
    done = many.publish_alike(
        blocks, np.frombuffer(b"".join(chained), HASH), np.frombuffer(b"".join(parents), HASH), content
    )
    assert done is (expected == 8), "an index that does not know how large it gets has room for what it holds"
    if done:
        for block, digest, parent, row in zip(blocks.tolist(), chained, parents, tokens.tolist(), strict=True):
            assert one.publish(block, digest, parent, row)
        if tracked:
            assert [many.behind(block) for block in range(3)] == [one.behind(block) for block in range(3)]
    assert many.items() == one.items()


def test_of_blocks_published_together_none_is_entered_when_one_prefix_is_served() -> None:
    index = PrefixIndex(2, key=b"test")
    index.expect(8)
    root = index.root(())
    parent = index.child(root, [0, 0])
    index.publish(0, parent, root, [0, 0])
    index.publish(1, index.child(parent, [3, 4]), parent, [3, 4])
    before = index.items()
    tokens = np.array([[1, 2], [3, 4]], dtype=np.int32)
    chained, _ = index.children(parent * 2, tokens.tobytes(), own=False)
    parents = np.frombuffer(parent * 2, HASH)
    content = tokens.reshape(-1).view("V8")
    assert not index.publish_alike(np.array([2, 3]), np.frombuffer(b"".join(chained), HASH), parents, content)
    assert index.items() == before
    twice = np.frombuffer(chained[0] * 2, HASH)
    assert not index.publish_alike(np.array([2, 3]), twice, parents, content)
    assert index.items() == before


def test_lengths_made_in_advance_are_those_of_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    index = PrefixIndex(2, key=b"test")
    parts = [b"", b"a", b"ab" * 100, b"c" * 300, b"d" * 70_000]
    digests = [index._digest(one, other) for one in parts for other in parts]
    assert len(set(digests)) == len(digests)
    monkeypatch.setattr(prefix, "_LENGTHS", [])
    assert [index._digest(one, other) for one in parts for other in parts] == digests
    assert index._digest(b"ab", b"c") != index._digest(b"a", b"bc")


def test_kept_hashes_are_those_of_the_index_and_the_identity_that_ask() -> None:
    here, there, tokens = PrefixIndex(4, key=b"here"), PrefixIndex(4, key=b"there"), Tokens(range(14))
    for index, extras in ((here, ()), (there, ()), (there, ("tenant",)), (here, ("tenant",)), (here, ()), (here, ())):
        assert index.chain(tokens, extras) == index.chain(list(tokens), extras)


@pytest.mark.parametrize(("value", "told"), [
    ((), b"(0:)"), (("a",), b"(1:6:str'a')"), (((1,), b"xy"), b"(2:10:(1:4:int1)3:bxy)"), (None, b"NoneTypeNone"),
    (True, b"boolTrue"), (1, b"int1"), (1.0, b"float1.0"), ("1", b"str'1'"), (b"1", b"b1"), (((),), b"(1:4:(0:))"),
])  # fmt: skip
def test_an_identity_is_told_by_type_length_and_value(value: object, told: bytes) -> None:
    assert prefix.identity_bytes(value) == told


def test_an_identity_that_nothing_tells_apart_is_refused() -> None:
    for value in ([1], {1}, object(), (1, [2]), 1j):
        with pytest.raises(UsageError, match="an identity holds"):
            prefix.identity_bytes(value)


def test_hashes_that_are_kept_go_on_where_they_end() -> None:
    index, tokens = PrefixIndex(2, key=b"test"), Tokens([])
    for count in range(9):
        assert index.chain(tokens, ()) == index.chain(list(tokens), ())
        assert index.chain(list(tokens), (), limit=1) == index.chain(list(tokens), ())[:1]
        assert len(tokens.hashes) == count // 2
        tokens.append(7 * count)


@pytest.mark.parametrize(("highest", "room"), [(3, True), (4, False)])
def test_an_index_of_unknown_size_has_room_for_what_it_holds(highest: int, room: bool) -> None:
    index, root = PrefixIndex(2, key=b"test"), PrefixIndex(2, key=b"test").root(())
    parent = index.child(root, [1, 1])
    assert index.publish(3, parent, root, [1, 1])  # blocks 0 to 3, from now on
    content = np.array([[5, 6]], dtype=np.int32).reshape(-1).view("V8")
    chained, _ = index.children(parent, content.tobytes(), own=False)
    index.remove(3)
    digests, parents = np.frombuffer(chained[0], HASH), np.frombuffer(parent, HASH)
    assert index.publish_alike(np.array([highest]), digests, parents, content) is room
    assert index.find(chained[0]) == (highest if room else None)


def test_blocks_serve_the_hashes_that_they_were_published_under_and_no_other() -> None:
    index = PrefixIndex(2, key=b"test")
    assert not index.serve(np.array([0]), bytes(16))
    root = index.root(())
    digests = [index.child(root, [block, block]) for block in range(3)]
    for block, digest in enumerate(digests):
        assert index.publish(block, digest, root, [block, block])
    assert index.serve(np.array([2, 0]), digests[2] + digests[0])
    for block, digest in enumerate(digests):
        for other in (*digests, bytes(16), b"\xff" * 16):
            assert index.serve(np.array([block]), other) == (digest == other) == index.serves(block, other)


@pytest.mark.parametrize("known", [1, 5])
@pytest.mark.parametrize("wide", [False, True])
def test_blocks_are_not_entered_together_beside_wider_ones_or_for_a_prefix_that_is_served(
    known: int, wide: bool
) -> None:
    index = PrefixIndex(2, key=b"test")
    index.expect(8)
    root = index.root(())
    parent = index.child(root, [1, 1])
    assert index.publish(0, parent, root, [1, 1])
    tokens = [2, 2**40] if wide else [2, 2]
    assert index.publish(known, index.child(parent, tokens), parent, tokens)
    content = np.array([[2, 2]], dtype=np.int32).reshape(-1).view("V8")
    chained, _ = index.children(parent, content.tobytes(), own=False)
    before = index.items()
    assert not index.publish_alike(np.array([3]), np.frombuffer(chained[0], HASH), np.frombuffer(parent, HASH), content)
    assert index.items() == before


@pytest.mark.parametrize(("first", "second"), [(1, 5), (5, 1)])
def test_siblings_stand_behind_the_same_block(first: int, second: int) -> None:
    index = PrefixIndex(2, key=b"test")
    index.expect(8)
    root = index.root(())
    parent = index.child(root, [1, 1])
    index.publish(0, parent, root, [1, 1])
    index.track()
    index.publish(first, index.child(parent, [2, 2]), parent, [2, 2])
    content = np.array([[3, 3]], dtype=np.int32).reshape(-1).view("V8")
    chained, _ = index.children(parent, content.tobytes(), own=False)
    assert index.publish_alike(
        np.array([second]), np.frombuffer(chained[0], HASH), np.frombuffer(parent, HASH), content
    )
    assert index.behind(0) == [1, 5]
    index.publish(7, index.child(chained[0], [4, 4]), chained[0], [4, 4])
    assert sorted(index.descendants(0)) == [1, 5, 7]
    order = index.descendants(0)
    assert order.index(7) < order.index(second), "each behind those that are found through it"
    assert index.descendants(second) == [7]
    assert index.descendants(7) == []
    index.remove(first)
    assert index.behind(0) == [second]
    index.remove(second)
    assert index.behind(0) == []


def cache(size: int = 2) -> tuple[PrefixCache, BlockPool]:
    pool = BlockPool(8, size, index=PrefixIndex(size, key=b"test"))
    return PrefixCache(pool, share=True), pool


def computed(pool: BlockPool, seq_id: int, tokens: list[int]) -> SequenceTable:
    """The row of a sequence whose tokens fill its blocks and are computed; nothing of it is published."""
    row = SequenceTable(seq_id, tokens, issued=len(tokens), computed=len(tokens))
    for lblock in range(len(tokens) // pool.block_size):
        block = pool.take_one(seq_id, lblock, Reason.PREFILL)
        pool.write(block, 0, pool.block_size, seq_id=seq_id, lblock=lblock, reason=Reason.PREFILL)
        assert pool.commit(block, int(pool.gen[block]), seq_id=seq_id, lblock=lblock)
        row.add(block, int(pool.gen[block]))
    return row


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("before", [False, True])
def test_behind_a_window_nothing_is_published(gone: int, before: bool) -> None:
    """before: another prefix was published already."""
    whole, pool = cache()
    if before:
        whole.publish(computed(pool, 1, [8, 9]))
    row = computed(pool, 2, [1, 2, 3, 4, 5, 6])
    row.blocks[:gone], row.first = [NULL] * gone, gone
    whole.publish(row)
    assert row.published == 3
    assert len(pool.index) == before + (0 if gone else 3)


@pytest.mark.parametrize("announced", [None, "another", "same"])
def test_blocks_are_published_together_unless_one_of_them_is_waited_for(announced: str | None) -> None:
    whole, pool = cache()
    pool.index.expect(8)
    rows = [computed(pool, seq_id, [seq_id, 9, 5, seq_id]) for seq_id in (1, 2)]
    for row in rows:
        row.computed = 2
    whole.publish(*rows)
    before, blocks = (np.array([row.blocks[at] for row in rows]) for at in (0, 1))
    parents = b"".join(row.hashes[0] for row in rows)
    content = np.array([row.tokens[2:] for row in rows], dtype=np.int32).reshape(-1).view("V8")
    if announced is not None:
        digest = pool.index.child(rows[0].hashes[0], rows[0].tokens[2:] if announced == "same" else [7, 7])
        whole.announce(SequenceTable(3, [], hashes=[digest]))
    done = whole.publish_alike(before, blocks, np.frombuffer(parents, HASH), content)
    assert (done is None) is (announced == "same")
    assert len(pool.index) == (2 if done is None else 4)
