"""Shadow words: what a slot's key and value depend on, in one 64-bit number.

The key and value of position p are a function of tokens 0..p (and of whatever else the model was given: the seed). The
word of position p is a rolling hash of them, so a word is extended token by token, and two words are equal where the
prefixes are:

    word[p] = word[p - 1] * BASE + mix(token[p])  mod 2**64,   word[-1] = seed

Numpy alone; no torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse mod 2**64
SEED = 0x2545F4914F6CDD1D
MASK = 2**64 - 1
CHUNK = 1 << 14  # tokens whose powers of BASE are kept


def prefix_words(tokens: ArrayLike, seed: int = SEED) -> NDArray[np.int64]:
    """The word of each token, int64 [n]; to continue a sequence, the seed is its last word.

    Args:
        tokens: ids [n], in order.
        seed: word before the first token; a different one for another model, adapter or image.
    """
    mixed = _mix(np.asarray(tokens).astype(np.uint64))
    out = np.empty(len(mixed), np.uint64)
    last = np.uint64(seed & MASK)
    rising, falling = _powers()
    for start in range(0, len(mixed), CHUNK):
        part = mixed[start : start + CHUNK]
        n = len(part)
        # word[i] = BASE**(i + 1) * (seed + sum over j <= i of mix[j] * BASE**-(j + 1))
        out[start : start + n] = rising[:n] * (last + np.cumsum(part * falling[:n], dtype=np.uint64))
        last = out[start + n - 1]
    return out.view(np.int64)


def next_words(words: NDArray[np.int64], tokens: ArrayLike) -> NDArray[np.int64]:
    """The words of one more token for each of several sequences: int64 [B] from their last words and new tokens."""
    mixed = _mix(np.asarray(tokens).astype(np.uint64))
    return (words.view(np.uint64) * np.uint64(BASE) + mixed).view(np.int64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finisher: one-to-one, and close numbers become far ones."""
    x = x + np.uint64(BASE)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_kept: list[NDArray[np.uint64]] = []


def _powers() -> list[NDArray[np.uint64]]:
    """BASE**(1..CHUNK) and BASE**-(1..CHUNK), made once."""
    if not _kept:
        inverse = pow(BASE, -1, 2**64)
        _kept.extend(np.cumprod(np.full(CHUNK, base, np.uint64), dtype=np.uint64) for base in (BASE, inverse))
    return _kept
