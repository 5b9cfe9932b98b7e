"""A table row whose entries are the right ones in another order, found again from its digest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kvscope.traces.schema import digest_word

Life = tuple[int, int]  # block, life
Entries = dict[int, Life]  # logical block -> block, life

_ALL = 6  # entries of which every order is tried
_MOST = 500_000  # words that are added up for one row; more than enough for a hundred entries
_WORD = (1 << 64) - 1


def permuted(own: Entries, digest: int) -> Entries | None:
    """The entries of `own` in the order that has this digest, where that is one by which rows get mixed up.

    Every order of a few entries; of more: sorted by block, two that are exchanged, one that is moved (all between it
    and its new place shift), a part that is reversed, the whole turned round.
    """
    places, lives = sorted(own), [own[place] for place in sorted(own)]
    known: dict[tuple[int, int], int] = {}

    def word(entry: int, at: int) -> int:
        if (entry, at) not in known:
            known[entry, at] = digest_word(*lives[entry], places[at])
        return known[entry, at]

    wanted = (digest - sum(word(i, i) for i in range(len(lives)))) & _WORD
    by_block = sorted(range(len(lives)), key=lives.__getitem__)
    added = 0
    for first, order in itertools.chain([(0, by_block)], _orders(len(lives))):
        added += len(order)
        if added > _MOST:
            return None
        if sum(word(entry, at) - word(at, at) for at, entry in enumerate(order, first)) & _WORD == wanted:
            moved = {places[at]: lives[entry] for at, entry in enumerate(order, first)}
            return own | moved
    return None


def _orders(count: int) -> Iterator[tuple[int, list[int]]]:
    """(first place, the entries that stand from there on)."""
    if count <= _ALL:
        yield from ((0, list(order)) for order in itertools.permutations(range(count)))
        return
    yield from ((0, [*range(by, count), *range(by)]) for by in range(1, count))
    for a, b in itertools.combinations(range(count), 2):
        between = list(range(a + 1, b))
        yield a, [b, *between, a]
        yield a, [*between, b, a]
        yield a, [b, a, *between]
        yield a, [*range(b, a - 1, -1)]
