"""Block tables: the ledger of which sequence holds which block as what.

positions   0 ............ computed ......... issued ......... len(tokens) ...... len(blocks) * block_size
            [ bytes exist ) [ this step writes ) [ known, not yet scheduled ) [ reserved, empty slots )

Behind a sliding window the leading entries are `NULL`: the positions stay where they are, their blocks are gone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvscope.engine.prefix import Extras
from kvscope.traces.schema import digest_word, table_digest, to_signed

if TYPE_CHECKING:
    from kvscope.engine.lane import Lane

_MANY = 8  # entries from here on are digested faster as arrays
NULL = -1  # the entry of a logical block that was given back behind a sliding window: nobody reads through it


@dataclass(slots=True)
class SequenceTable:
    """One sequence's row: its blocks in logical order, and how far its KV has got."""

    seq_id: int
    tokens: list[int]
    extras: Extras = ()
    blocks: list[int] = field(default_factory=list)
    gens: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # chained hashes of the leading full blocks known so far
    issued: int = 0  # positions [0, issued) are written or will be by an open step
    computed: int = 0  # positions [0, computed) exist
    published: int = 0  # leading blocks that were entered in, or came from, the prefix index
    first: int = 0  # leading entries that are NULL
    digest: int = 0  # of the leading `digested` entries, modulo 2**64
    digested: int = 0
    lane: Lane | None = None  # what it decodes in, which knows tokens, issued and computed before the row does
    identity: tuple[bytes, int] | None = None  # the index's root and word for `extras`, once they were asked for

    def catch_up(self) -> None:
        """Before tokens, issued or computed are read."""
        if self.lane is not None:
            self.lane.catch_up(self)

    def step_out(self) -> None:
        """Before anything of the row is changed."""
        if self.lane is not None:
            self.lane.leave(self)

    def add(self, block: int, gen: int) -> None:
        """Append a block at the end of the row."""
        self.blocks.append(block)
        self.gens.append(gen)

    def held(self) -> tuple[list[int], list[int]]:
        """The blocks that the row holds, and their lives, from logical block `first` on."""
        return (self.blocks[self.first :], self.gens[self.first :]) if self.first else (self.blocks, self.gens)

    def replace(self, lblock: int, block: int, gen: int) -> None:
        """Put another block at a logical position (copy-on-write)."""
        self.step_out()
        if self.first <= lblock < self.digested:
            old = digest_word(self.blocks[lblock], self.gens[lblock], lblock)
            self.digest += digest_word(block, gen, lblock) - old
        self.blocks[lblock] = block
        self.gens[lblock] = gen

    def cut(self, keep: int) -> None:
        """Take the entries from `keep` on out."""
        self.step_out()
        gone = self.digested - keep
        if keep == self.first or gone >= _MANY:
            self.digest = self.digested = 0
        elif gone > 0:
            entries = zip(self.blocks[keep:], self.gens[keep:], range(keep, self.digested), strict=False)
            self.digest -= sum(digest_word(*entry) for entry in entries)
            self.digested = keep
        del self.blocks[keep:], self.gens[keep:]

    def changed(self) -> None:
        """Entries were taken out in front: what is known of their digest is void."""
        self.digest = self.digested = 0
        self.step_out()

    def table_digest(self) -> int:
        """`schema.table_digest` of the row, at the cost of the entries that are new."""
        end = len(self.blocks)
        start = self.digested or self.first
        if start < end:
            if end - start < _MANY:
                entries = zip(self.blocks[start:], self.gens[start:], range(start, end), strict=True)
                self.digest += sum(digest_word(*entry) for entry in entries)
            else:
                self.digest += table_digest(self.blocks[start:], self.gens[start:], start)
            self.digested = end
        return to_signed(self.digest)


@dataclass(frozen=True, slots=True)
class Copy:
    """A block copy that the device has to run before this step's writes: `slots` leading slots of every layer."""

    source: int
    target: int
    target_gen: int
    slots: int
    lease_id: int


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What the prefix cache has for a prompt, and what admission would take."""

    hits: tuple[int, ...]  # blocks, logical order
    hashes: tuple[bytes, ...]  # chained hashes of all full prompt blocks
    cached_tokens: int
    needed: int  # blocks that must be taken from the pool
    available: int  # blocks that could be taken, the hits not counted as evictable
    pending: int | None  # the sequence that is computing the first missing block right now
    stop: int  # Reason why the match ended

    @property
    def fits(self) -> bool:
        """Whether admission would succeed now."""
        return self.needed <= self.available
