"""Shadow memory: what every physical slot holds, in place of its tensors.

The KV of position p is a function of the identity and of the tokens 0..p, and of nothing else. So the content of a
slot is that prefix itself: writes and copies carry it exactly as they carry the bytes, and a sequence reads right if
each of its slots holds its own prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.inspector.fuzz.protocol import Violation

Content = tuple[tuple[object, ...], tuple[int, ...]]


@dataclass(slots=True)
class Prefix:
    """What a sequence should read: its tokens under its identity."""

    tokens: list[int]
    identity: tuple[object, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    def content(self, position: int) -> Content:
        """What the slot of `position` must hold."""
        return self.identity, tuple(self.tokens[: position + 1])


class Shadow:
    """Slots of a pool, by (block, slot); a slot never written is absent."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.slots: dict[tuple[int, int], Content] = {}

    def place(self, table: Sequence[int], position: int) -> tuple[int, int]:
        """(block, slot) of a position through a block table."""
        return table[position // self.block_size], position % self.block_size

    def write(self, table: Sequence[int], prefix: Prefix, position: int) -> None:
        """The KV of one position lands where the table says."""
        self.slots[self.place(table, position)] = prefix.content(position)

    def copy(self, src: int, dst: int, slots: int) -> None:
        """The first `slots` slots of `src` are copied, unwritten ones too."""
        for slot in range(slots):
            content = self.slots.get((src, slot))
            if content is None:
                self.slots.pop((dst, slot), None)
            else:
                self.slots[dst, slot] = content

    def holds(self, block: int, lblock: int, prefix: Prefix) -> bool:
        """Whether a block already has what logical block `lblock` of this prefix needs."""
        first = lblock * self.block_size
        positions = range(first, min(first + self.block_size, len(prefix)))
        return all(self.slots.get((block, p - first)) == prefix.content(p) for p in positions)

    def check(self, seq: int, table: Sequence[int], prefix: Prefix) -> None:
        """The sequence reads exactly its own prefix through its table.

        Raises:
            Violation: KV009 or KV023 at the first wrong position.
        """
        for position in range(len(prefix)):
            block, slot = self.place(table, position)
            found = self.slots.get((block, slot))
            if found is None:
                raise Violation(
                    "KV009", f"sequence {seq} reads position {position} at b{block}[{slot}], which was never written"
                )
            if found != prefix.content(position):
                raise Violation(
                    "KV023",
                    f"sequence {seq} reads position {position} at b{block}[{slot}]: it should hold "
                    f"{_words(prefix.content(position))}, it holds {_words(found)}",
                )


def _words(content: Content) -> str:
    identity, tokens = content
    return f"the prefix {list(tokens)}" + (f" of {identity}" if identity else "")
