"""Hypothesis strategies for tests of one's own: prompts whose prefixes collide, sizes, and whole programs."""

from __future__ import annotations

from hypothesis import strategies as st

from kvscope.inspector.fuzz.harness import Call
from kvscope.inspector.fuzz.program import Program
from kvscope.inspector.fuzz.protocol import Sizes


def prompts(max_size: int = 8) -> st.SearchStrategy[list[int]]:
    """Prompts of two token values: equal prefixes are frequent."""
    return st.lists(st.integers(0, 1), min_size=1, max_size=max_size)


def pools(sizes: Sizes | None = None) -> st.SearchStrategy[tuple[int, int]]:
    """(num_blocks, block_size): small, so that refusals, eviction and reuse are frequent."""
    sizes = sizes or Sizes()
    return st.tuples(st.sampled_from(sizes.pools), st.sampled_from(sizes.blocks))


def programs(max_calls: int = 30, *, forks: bool = True) -> st.SearchStrategy[Program]:
    """Programs to `run` on an allocator; calls that a program may not make are left out when it runs.

    Args:
        forks: for allocators that offer `fork`.
    """
    ids = st.integers(0, 5)
    calls: list[st.SearchStrategy[Call]] = [
        st.builds(lambda seq, tokens: ("add", (seq, tokens)), ids, prompts()),
        st.builds(lambda seq, token: ("append", (seq, token)), ids, st.integers(0, 1)),
        st.builds(lambda seq: ("free", (seq,)), ids),
    ]
    if forks:
        calls.append(st.builds(lambda parent, child: ("fork", (parent, child)), ids, ids))
    return st.builds(
        lambda size, made: Program(size[0], size[1], tuple(made)),
        pools(),
        st.lists(st.one_of(calls), max_size=max_calls),
    )
