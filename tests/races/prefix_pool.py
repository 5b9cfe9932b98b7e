"""A paged pool with a prefix cache and one lock around every method, and two that are wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from kvscope.errors import OutOfBlocks
from kvscope.inspector.fuzz.protocol import Copy

Key = tuple[int, ...]


class PrefixPool:
    """Full blocks are found again by all tokens up to their end; those that nobody holds are evicted, oldest first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.counts = [0] * num_blocks
        self.free_blocks = list(range(num_blocks))  # those with a key in front: the next to go
        self.keys: dict[int, Key] = {}
        self.index: dict[Key, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[int]] = {}
        self.copies: list[Copy] = []
        self.lock = threading.RLock()

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        with self.lock:
            hits = self._hits(tokens)
            self._need(-(-len(tokens) // self.block_size) - len(hits) + sum(not self.counts[b] for b in hits))
            self._hold(hits)
            self._admit(seq, tokens, hits)
            return len(hits) * self.block_size

    def append(self, seq: int, token: int) -> None:
        with self.lock:
            table, (lblock, slot) = self.tables[seq], divmod(len(self.tokens[seq]), self.block_size)
            if lblock == len(table):
                self._need(1)
                table.append(self._take())
            elif self.counts[table[lblock]] > 1:
                self._need(1)
                shared, table[lblock] = table[lblock], self._take()
                self._drop(shared)
                self.copies.append(Copy(shared, table[lblock], slot))
            self.tokens[seq].append(token)
            self._publish(seq)

    def fork(self, parent: int, child: int) -> None:
        with self.lock:
            self._hold(self.tables[parent])
            self.tables[child], self.tokens[child] = list(self.tables[parent]), list(self.tokens[parent])

    def free(self, seq: int) -> None:
        with self.lock:
            del self.tokens[seq]
            for block in reversed(self.tables.pop(seq)):
                self._drop(block)

    def table(self, seq: int) -> list[int]:
        with self.lock:
            return list(self.tables[seq])

    def num_free(self) -> int:
        with self.lock:
            return len(self.free_blocks)

    def refcount(self, block: int) -> int:
        with self.lock:
            return self.counts[block]

    def drain(self) -> list[Copy]:
        with self.lock:
            moves, self.copies = self.copies, []
            return moves

    # Under the lock.

    def _need(self, blocks: int) -> None:
        if blocks > len(self.free_blocks):
            raise OutOfBlocks(blocks, len(self.free_blocks), "too few")

    def _take(self) -> int:
        block = self.free_blocks.pop(0)
        self.index.pop(self.keys.pop(block, ()), None)
        self.counts[block] = 1
        return block

    def _hold(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if not self.counts[block]:
                self.free_blocks.remove(block)
            self.counts[block] += 1

    def _drop(self, block: int) -> None:
        self.counts[block] -= 1
        if not self.counts[block]:
            self.free_blocks.append(block)

    def _keys(self, tokens: Sequence[int]) -> list[Key]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [tuple(tokens[:end]) for end in ends]

    def _hits(self, tokens: Sequence[int]) -> list[int]:
        hits: list[int] = []
        for key in self._keys(tokens[:-1]):
            if key not in self.index:
                break
            hits.append(self.index[key])
        return hits

    def _admit(self, seq: int, tokens: Sequence[int], hits: list[int]) -> None:
        fresh = -(-len(tokens) // self.block_size) - len(hits)
        self.tables[seq] = hits + [self._take() for _ in range(fresh)]
        self.tokens[seq] = list(tokens)
        self._publish(seq)

    def _publish(self, seq: int) -> None:
        for key, block in zip(self._keys(self.tokens[seq]), self.tables[seq], strict=False):
            if key not in self.index and block not in self.keys:
                self.index[key], self.keys[block] = block, key


class WithoutDrain(PrefixPool):
    """The same, its copies told by the tables alone."""

    drain = None  # type: ignore[assignment]


class PublishedTooEarly(PrefixPool):
    """Blocks are published in one critical section, and a prompt that is too long is taken back in the next one."""

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        with self.lock:
            hits = self._hits(tokens)
            self._need(-(-len(tokens) // self.block_size) - len(hits) + sum(not self.counts[b] for b in hits))
            self._hold(hits)
            self._admit(seq, tokens, hits)
        with self.lock:
            if not hits and len(tokens) > self.block_size:
                self.free(seq)
                raise OutOfBlocks(1, 0, "longer than what one step may compute")
            return len(hits) * self.block_size


class HandedOutTwice(PrefixPool):
    """A block is chosen in one critical section and taken in the next: two equal prompts have one block."""

    def _take(self) -> int:
        block = self.free_blocks[0]
        self.lock.release()
        self.lock.acquire()
        if block in self.free_blocks:
            self.free_blocks.remove(block)
        self.index.pop(self.keys.pop(block, ()), None)
        self.counts[block] = 1
        return block
