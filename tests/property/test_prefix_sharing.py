"""Who may share a block, which cached block goes first, and that whatever is in the index can be found."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras, PrefixIndex, identity, identity_bytes
from kvscope.engine.steps import Scheduled
from kvscope.errors import OutOfBlocks, UsageError
from kvscope.traces import Kind, MemoryRecorder, Reason


def computed(manager: BlockManager, seq_id: int, tokens: list[int], extras: Extras = ()) -> int:
    """Admit a prompt and compute it; returns its cached tokens."""
    cached = manager.admit(seq_id, tokens, extras)
    manager.write(seq_id, cached, len(tokens))
    manager.begin_step([Scheduled(seq_id, cached, len(tokens))])
    manager.copies_done(manager.drain_copies())
    manager.end_step()
    return cached


class ForgedIndex(PrefixIndex):
    """Every block has the same hash: the worst forgery there is."""

    def child(self, parent: bytes, tokens: object) -> bytes:
        return bytes(16)


def test_forged_equal_hash_does_not_share() -> None:
    sink = MemoryRecorder(num_blocks=8, block_size=2)
    manager = BlockManager(8, 2, sink=sink, hash_key=b"test")
    manager.pool.index = ForgedIndex(2, key=b"test")
    computed(manager, 0, [1, 2, 3])
    assert computed(manager, 1, [4, 5, 6]) == 0, "other tokens, equal hash"
    assert set(manager.table(0)).isdisjoint(manager.table(1))
    misses = sink.events[sink.events["kind"] == Kind.MISS]
    assert misses["reason"].tolist() == [Reason.NOT_IN_INDEX, Reason.TOKENS_DIFFER]
    assert computed(manager, 2, [1, 2, 9]) == 2, "equal tokens still do"
    assert computed(manager, 3, [1, 2, 9], ("other",)) == 0, "equal tokens of another identity do not"


IDENTITIES: list[Extras] = [
    (), identity(adapter="a"), identity(adapter="b"), identity(tenant="a"), identity(tenant="b"),
    identity(adapter="a", tenant="b"), identity(inputs=["a"]), identity(inputs=["a", "b"]), identity(inputs=["ab"]),
    identity(epoch=1), identity(epoch=2), identity(epoch="1"), identity(epoch=1.0), identity(epoch=True),
    identity(epoch=b"1"), (("adapter", ("a", "b")),), (("adapter", "a", "b"),), (("adapter", "('a', 'b')"),),
]  # fmt: skip


def test_every_identity_keeps_apart() -> None:
    assert len({identity_bytes(extras) for extras in IDENTITIES}) == len(IDENTITIES)
    manager = BlockManager(256, 2, hash_key=b"test")
    for seq_id, extras in enumerate(IDENTITIES):
        assert computed(manager, seq_id, [1, 2, 3, 4, 5], extras) == 0, extras
    for seq_id, extras in enumerate(IDENTITIES, 100):
        assert computed(manager, seq_id, [1, 2, 3, 4, 5], extras) == 4, extras
        assert manager.table(seq_id)[:2] == manager.table(seq_id - 100)[:2]


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.binary(max_size=3)),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@given(PLAIN, PLAIN)
def test_identity_bytes_are_equal_for_equal_values_only(a: object, b: object) -> None:
    same = a == b and repr(a) == repr(b)  # 1 == True, but they are not the same identity
    assert (identity_bytes(a) == identity_bytes(b)) == same


def test_identity_that_nothing_tells_apart_is_refused() -> None:
    manager = BlockManager(4, 2, hash_key=b"test")
    with pytest.raises(UsageError, match="use text, bytes, numbers"):
        manager.admit(0, [1, 2, 3], (object(),))
    manager.check_integrity()


@given(st.integers(2, 10), st.integers(1, 3), st.integers(0, 2**32), st.booleans())
def test_index_is_closed_under_prefixes_and_eviction_takes_leaves(
    num_blocks: int, block_size: int, seed: int, windows: bool
) -> None:
    """Random sharing, rollback and eviction: an entry's parent is in the index (`check_integrity`), always."""
    random_ = random.Random(seed)
    sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    manager = BlockManager(num_blocks, block_size, sink=sink, hash_key=b"test")
    ids, live = itertools.count(), dict[int, list[int]]()
    for _ in range(40):
        action = random_.choice(["admit", "admit", "decode", "fork", "truncate", "free", "slide"])
        try:
            if action == "admit":
                seq_id, tokens = next(ids), [random_.randint(0, 1) for _ in range(random_.randint(1, 4 * block_size))]
                computed(manager, seq_id, tokens)
                live[seq_id] = tokens
            elif live:
                seq_id = random_.choice(list(live))
                tokens = live[seq_id]
                if action == "decode":
                    manager.append(seq_id, 1)
                    tokens.append(1)
                    manager.begin_step([Scheduled(seq_id, len(tokens) - 1, len(tokens))])
                    manager.copies_done(manager.drain_copies())
                    manager.end_step()
                elif action == "fork":
                    child = next(ids)
                    manager.fork(seq_id, child)
                    live[child] = list(tokens)
                elif action == "truncate" and -1 not in manager.table(seq_id):
                    del tokens[random_.randint(1, len(tokens)) :]
                    manager.truncate(seq_id, len(tokens))
                elif action == "slide" and windows:
                    manager.slide(seq_id, random_.randint(0, len(tokens)))
                elif action == "free":
                    manager.free(seq_id)
                    del live[seq_id]
        except OutOfBlocks:
            manager.copies_done(manager.drain_copies())
            for seq_id in list(live):
                manager.free(seq_id)
            live.clear()
        manager.check_integrity()


def test_duplicate_of_a_served_prefix_is_not_published_behind_it() -> None:
    """Two compute the same prefix at once; what the second adds to it must not outlive the first one's block."""
    manager = BlockManager(4, 2, hash_key=b"test")
    manager.admit(0, [1, 2])
    manager.admit(1, [1, 2, 3, 4, 5])
    manager.write(0, 0, 2)
    manager.write(1, 0, 5)
    manager.begin_step([Scheduled(0, 0, 2), Scheduled(1, 0, 5)])
    manager.end_step()
    manager.check_integrity()
    manager.free(0)
    manager.admit(2, [9])  # evicts the block that serves [1, 2]
    manager.check_integrity()
    assert manager.probe([1, 2, 3, 4, 5]).cached_tokens == 0


def test_eviction_of_a_front_that_slid_withdraws_what_lies_behind() -> None:
    sink = MemoryRecorder(num_blocks=4, block_size=2)
    manager = BlockManager(4, 2, sink=sink, hash_key=b"test")
    computed(manager, 0, [1, 2, 3, 4, 5, 6])
    assert manager.slide(0, 4) == 2
    assert manager.probe([1, 2, 3, 4, 5, 6, 7]).cached_tokens == 6, "what slid stays in the cache while there is room"
    computed(manager, 1, [8, 9, 8, 9])
    manager.check_integrity()
    assert manager.probe([1, 2, 3, 4, 5, 6, 7]).cached_tokens in (0, 2)
    computed(manager, 2, [7])
    manager.check_integrity()
    assert manager.probe([1, 2, 3, 4, 5, 6, 7]).cached_tokens == 0
    manager.free(0)
    assert Kind.UNPUBLISH in sink.events["kind"], "the block that is still held is found no more"


def test_samples_copy_a_shared_tail_once_less_than_they_are() -> None:
    manager = BlockManager(16, 4, hash_key=b"test")
    computed(manager, 0, [1, 2, 3, 4, 5])
    for child in (1, 2, 3):
        manager.fork(0, child)
    for seq_id in range(4):
        manager.append(seq_id, seq_id)
    copies = manager.drain_copies()
    assert [copy.slots for copy in copies] == [1, 1, 1]
    assert len({manager.table(seq_id)[0] for seq_id in range(4)}) == 1
    assert len({manager.table(seq_id)[1] for seq_id in range(4)}) == 4
    manager.copies_done(copies)


def test_speculative_tokens_are_rolled_back_to_the_accepted_ones() -> None:
    manager = BlockManager(8, 2, hash_key=b"test")
    computed(manager, 0, [1, 2, 3])
    for token in (4, 5, 6, 7):
        manager.append(0, token)
    manager.begin_step([Scheduled(0, 3, 7)])
    manager.truncate(0, 5)  # two of four accepted, before the step has ended
    assert manager.num_free() == 4
    assert manager.pool.counts()["quarantined"] == 1, "the step still writes the block of the rejected ones"
    manager.end_step()
    assert manager.num_free() == 5
    assert manager.probe([1, 2, 3, 4, 5]).cached_tokens == 4
    assert manager.probe([1, 2, 3, 4, 5, 6, 7]).cached_tokens == 4, "rejected tokens are not published"
