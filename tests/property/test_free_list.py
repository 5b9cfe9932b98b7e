"""The free list against a queue: single ids and many of them, in any order, come out in the order they went in."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.free_list import AHEAD, FreeList

CALLS = st.lists(
    st.tuples(st.sampled_from(["pop", "push", "pop_many", "push_many", "of"]), st.integers(0, 3 * AHEAD)), max_size=40
)


@given(st.integers(1, 5 * AHEAD), CALLS)
def test_first_in_first_out(num_blocks: int, calls: list[tuple[str, int]]) -> None:
    free, expected = FreeList(num_blocks), deque(range(num_blocks))
    out: list[int] = []
    for name, amount in calls:
        many = min(amount, len(expected) if name.startswith("pop") else len(out))
        if name == "of":
            free = FreeList.of(list(expected), num_blocks)
        elif name == "pop_many":
            taken = free.pop_many(many).tolist()
            assert taken == [expected.popleft() for _ in range(many)]
            out += taken
        elif name == "push_many":
            free.push_many(np.array(out[:many], dtype=np.int64))
            expected.extend(out[:many])
            del out[:many]
        elif name == "pop":
            for _ in range(many):
                out.append(free.pop())
                assert out[-1] == expected.popleft()
        else:
            for _ in range(many):
                free.push(out[0])
                expected.append(out.pop(0))
        assert len(free) == free.count == len(expected)
        assert free.to_list() == list(expected)
