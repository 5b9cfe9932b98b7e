"""The last tokens of the sequences of a lane, a column for each sequence: a step adds them as one row."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.engine.free_list import IntArray
from kvscope.engine.lane_move import Move

_STEPS = 64  # rows that are kept beside those of one block
_NARROW = np.dtype(np.int32)


class TokenColumns:
    """Holds the tokens of the last block of each sequence, and of at most 64 steps more.

    In 4 bytes each; once one of them needs more, all of them are objects.
    """

    __slots__ = ("_block", "_kept", "_narrow", "_size", "_used")  # lanes.c reads them

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._used = block_size
        self._block = np.dtype(f"V{4 * block_size}")
        self._kept: npt.NDArray[Any] = np.zeros((block_size + _STEPS, 0), dtype=_NARROW)
        self._narrow = True  # tokens are in 4 bytes each

    @property
    def full(self) -> bool:
        """Whether no step can be added before `rewind`."""
        return self._used == len(self._kept)

    def have(self, joining: list[list[int]], move: Move) -> None:
        """Move the columns, and put in those of sequences that join, of which these are all tokens."""
        size, used = self._size, self._used
        tails = [tokens[-size:] if len(tokens) >= size else [0] * (size - len(tokens)) + tokens for tokens in joining]
        last: npt.NDArray[Any]
        try:
            last = np.array(array("i", chain.from_iterable(tails)), dtype=self._kept.dtype)
        except (OverflowError, TypeError):
            self._widen()
            last = np.array(tails, dtype=object)
        fresh = np.zeros((len(self._kept), len(joining)), dtype=self._kept.dtype)
        fresh[used - size : used] = last.reshape(-1, size).T
        self._kept = move.columns(self._kept, fresh)

    def add(self, tokens: Sequence[int]) -> None:
        """The next token of each sequence."""
        used = self._used
        if self._narrow:
            try:
                struct.pack_into(f"{len(tokens)}i", self._kept[used].data.cast("B"), 0, *tokens)
                self._used = used + 1
                return
            except struct.error:
                self._widen()
        self._kept[used] = tokens
        self._used = used + 1

    def last(self, at: IntArray) -> npt.NDArray[np.void] | None:
        """The last block's worth of tokens of these sequences, 4 bytes each; None if these do not hold them."""
        if not self._narrow:
            return None
        end = self._used
        return self._kept[end - self._size : end].take(at, axis=1).T.copy().reshape(-1).view(self._block)

    def newest(self) -> npt.NDArray[np.int64]:
        """The last token of each sequence."""
        return np.array(self._kept[self._used - 1], dtype=np.int64)

    def of(self, at: int, count: int) -> list[int]:
        """The last `count` tokens of one sequence."""
        tokens: list[int] = self._kept[self._used - count : self._used, at].tolist()
        return tokens

    def each(self, count: int) -> list[list[int]]:
        """The last `count` tokens of every sequence."""
        tokens: list[list[int]] = self._kept[self._used - count : self._used].T.tolist()
        return tokens

    def rewind(self) -> None:
        """Keep the last block's worth only."""
        self._kept[: self._size] = self._kept[self._used - self._size : self._used].copy()
        self._used = self._size

    def _widen(self) -> None:
        self._kept, self._narrow = self._kept.astype(object), False
