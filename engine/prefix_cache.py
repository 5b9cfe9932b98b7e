"""The prefix cache at work: what a prompt finds, what is being computed, what becomes findable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.engine.block_arrays import ENTRY, STATE
from kvscope.engine.block_life import PUBLISHED, Published
from kvscope.engine.free_list import IntArray
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import BlockTokens, Extras
from kvscope.engine.prefix_store import HASH
from kvscope.engine.tables import PrefixMatch, SequenceTable
from kvscope.traces.schema import Kind, Reason


class Entered(NamedTuple):
    """Blocks that were published: their hashes, also as an array, and those of their tokens alone."""

    hashes: list[bytes]
    digests: npt.NDArray[np.void]
    tokens: npt.NDArray[np.void]  # empty without a sink


class PrefixCache:
    """Matches prompts against the pool's prefix index and enters finished blocks in it; its owner locks.

    Prompt blocks that a sequence is computing are known here, so that a follower with the same prompt can wait for
    them instead of computing them again.
    """

    __slots__ = ("_computing", "_pool", "_published", "share")

    def __init__(self, pool: BlockPool, *, share: bool) -> None:
        self._pool = pool
        self.share = share
        self._published = np.array(ENTRY | PUBLISHED * STATE | pool.block_size)  # the word of a block with one holder
        self._computing: dict[bytes, int] = {}  # hash of a prompt block -> the sequence that computes it

    def match(self, tokens: Sequence[int], extras: Extras) -> PrefixMatch:
        """Walk the prompt's full blocks through the index until one is missing; changes nothing."""
        pool, size, index = self._pool, self._pool.block_size, self._pool.index
        hits: list[int] = []
        hashes: list[bytes] = []
        stop, computing = Reason.NONE, None
        if self.share:
            hashes = index.chain(tokens, extras)
            parent = index.root(extras)
            usable = (len(tokens) - 1) // size  # the last token is always computed: its logits are wanted
            for i, digest in enumerate(hashes):
                if i >= usable:
                    stop = Reason.LAST_TOKEN
                    break
                block = index.find(digest)
                if block is None:
                    stop, computing = Reason.NOT_IN_INDEX, self._computing.get(digest)
                    break
                if not index.same(block, parent, tokens[i * size : (i + 1) * size]):
                    stop = Reason.TOKENS_DIFFER
                    break
                hits.append(block)
                parent = digest
        needed = -(-len(tokens) // size) - len(hits)
        available = pool.num_available - sum(pool.is_evictable(block) for block in hits)
        return PrefixMatch(tuple(hits), tuple(hashes), len(hits) * size, needed, available, computing, stop)

    def hit(self, row: SequenceTable, lblock: int, block: int) -> None:
        """The row takes a block that was found for it, recorded with the row's own view of its prefix."""
        size, index = self._pool.block_size, self._pool.index
        details: tuple[int, ...] = ()
        if self._pool.sink is not None:
            root, identity = self._identity(row)
            parent = row.hashes[lblock - 1] if lblock else root
            tokens = row.tokens[lblock * size : (lblock + 1) * size]
            details = index.words(parent, tokens, row.hashes[lblock], identity)
        self._pool.retain(block, Kind.HIT, seq_id=row.seq_id, lblock=lblock, reason=Reason.PREFIX_HIT, details=details)
        row.add(block, int(self._pool.gen[block]))

    def _identity(self, row: SequenceTable) -> tuple[bytes, int]:
        """The root of the row's prefix, and what rows of the trace say of its identity."""
        if row.identity is None:
            index = self._pool.index
            row.identity = (index.root(row.extras), index.identity_word(row.extras))
        return row.identity

    def announce(self, row: SequenceTable) -> None:
        """The row's full prompt blocks that were not found are being computed from now on."""
        for digest in row.hashes[row.published :]:
            self._computing.setdefault(digest, row.seq_id)

    def withdraw(self, row: SequenceTable, *, from_block: int = 0) -> None:
        """The row's blocks from here on will not be computed by it after all."""
        for digest in row.hashes[from_block:]:
            if self._computing.get(digest) == row.seq_id:
                del self._computing[digest]

    def publish(self, *rows: SequenceTable) -> None:
        """Enter the rows' blocks that are full and computed, row by row and in order.

        A block whose prefix is served by another one's block stays private: so what is entered can always be reached
        through blocks of this very row, and is evicted before them.
        """
        if not self.share:
            return
        size, pool, computing = self._pool.block_size, self._pool, self._computing
        index, recorded = pool.index, pool.sink is not None
        entered: list[Published] = []
        for row in rows:
            root, identity = self._identity(row)
            hashes, blocks = row.hashes, row.blocks
            for lblock in range(row.published, row.computed // size):
                tokens = BlockTokens(row.tokens[lblock * size : (lblock + 1) * size])
                parent = hashes[lblock - 1] if lblock else root
                if lblock == len(hashes):
                    hashes.append(index.child(parent, tokens))
                digest, block = hashes[lblock], blocks[lblock]
                row.published = lblock + 1
                reached = block >= 0 and (
                    lblock == 0 or (blocks[lblock - 1] >= 0 and index.serves(blocks[lblock - 1], parent))
                )
                if reached and pool.publish(block, digest, parent, tokens):
                    words = index.words(parent, tokens, digest, identity) if recorded else ()
                    entered.append((block, row.seq_id, lblock, words))
                if computing and computing.get(digest) == row.seq_id:
                    del computing[digest]
        pool.record_published(entered)

    def identity_word(self, row: SequenceTable) -> int:
        """What rows of the trace say of the row's identity."""
        return self._identity(row)[1]

    def publish_alike(
        self, before: IntArray, blocks: IntArray, parents: npt.NDArray[np.void], content: npt.NDArray[np.void]
    ) -> Entered | None:
        """`publish` of a block of each of several rows at once: the pool and the index know of it, the rows do not.

        Args:
            before: the blocks in front of them, of the same rows. blocks: full, committed and held by their row alone.
            parents: the hashes of `before`, known to be published. content: the tokens, 4 bytes each.

        Returns:
            None if it has to be done row by row, and nothing was changed.
        """
        index, pool = self._pool.index, self._pool
        prefix = parents.tobytes()
        if not index.plain or not index.serve(before, prefix):
            return None
        hashes, own = index.children(prefix, content.tobytes(), own=pool.sink is not None)
        if self._computing and not self._computing.keys().isdisjoint(hashes):
            return None
        digests = np.frombuffer(b"".join(hashes), HASH)
        if not index.publish_alike(blocks, digests, parents, content):
            return None
        pool.words[blocks] = self._published
        return Entered(hashes, digests, np.frombuffer(b"".join(own), HASH))
