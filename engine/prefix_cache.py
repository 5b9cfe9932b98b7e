"""The prefix cache at work: what a prompt finds, what is being computed, what becomes findable."""

from __future__ import annotations

from collections.abc import Sequence

from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import Extras
from kvscope.engine.tables import PrefixMatch, SequenceTable
from kvscope.traces.schema import Kind, Reason


class PrefixCache:
    """Matches prompts against the pool's prefix index and enters finished blocks in it; its owner locks.

    Prompt blocks that a sequence is computing are known here, so that a follower with the same prompt can wait for
    them instead of computing them again.
    """

    def __init__(self, pool: BlockPool, *, share: bool) -> None:
        self._pool = pool
        self.share = share
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
        parent = row.hashes[lblock - 1] if lblock else index.root(row.extras)
        tokens = row.tokens[lblock * size : (lblock + 1) * size]
        details = index.words(parent, tokens, row.hashes[lblock], row.extras) if self._pool.sink is not None else ()
        self._pool.retain(block, Kind.HIT, seq_id=row.seq_id, lblock=lblock, reason=Reason.PREFIX_HIT, details=details)
        row.add(block, int(self._pool.gen[block]))

    def announce(self, row: SequenceTable) -> None:
        """The row's full prompt blocks that were not found are being computed from now on."""
        for digest in row.hashes[row.published :]:
            self._computing.setdefault(digest, row.seq_id)

    def withdraw(self, row: SequenceTable, *, from_block: int = 0) -> None:
        """The row's blocks from here on will not be computed by it after all."""
        for digest in row.hashes[from_block:]:
            if self._computing.get(digest) == row.seq_id:
                del self._computing[digest]

    def publish(self, row: SequenceTable) -> None:
        """Enter the row's blocks that are full and computed, in order.

        A block whose prefix is served by another one's block stays private: so what is entered can always be reached
        through blocks of this very row, and is evicted before them.
        """
        if not self.share:
            return
        size, index = self._pool.block_size, self._pool.index
        for lblock in range(row.published, row.computed // size):
            tokens = row.tokens[lblock * size : (lblock + 1) * size]
            parent = row.hashes[lblock - 1] if lblock else index.root(row.extras)
            if lblock == len(row.hashes):
                row.hashes.append(index.child(parent, tokens))
            digest, block = row.hashes[lblock], row.blocks[lblock]
            row.published = lblock + 1
            if block >= 0 and (lblock == 0 or index.find(parent) == row.blocks[lblock - 1]):
                self._pool.publish(block, digest, parent, tokens, row.extras, seq_id=row.seq_id, lblock=lblock)
            if self._computing.get(digest) == row.seq_id:
                del self._computing[digest]
