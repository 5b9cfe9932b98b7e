"""The block manager: block tables over the pool, with sharing, copy-on-write and fences, behind one lock.

    admit ---> append / write ---> begin_step ... drain_copies, copies_done ... end_step ---> free
                 fork, truncate anywhere between steps

Every public operation is one critical section over counts, free list, tables and the event append, so the order
of a trace is an order in which the operations could have happened. Every operation is all-or-nothing: what is
refused leaves no trace in the state, and a REFUSED row with what was needed and available.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kvscope.engine.batch import Decodes
from kvscope.engine.elastic import Elastic
from kvscope.engine.integrity import check_integrity
from kvscope.engine.prefix import Extras
from kvscope.engine.stepping import Stepping
from kvscope.engine.swapping import Swapping
from kvscope.engine.tables import Copy, PrefixMatch, SequenceTable
from kvscope.errors import OutOfBlocks, UsageError
from kvscope.traces.schema import Kind, Reason


class BlockManager(Elastic, Swapping, Stepping):
    """Block tables of all sequences over one pool; every operation is atomic and recorded.

    Args:
        num_blocks, block_size: pool geometry, in blocks and slots.
        sink: where events go; None records nothing.
        share_prefixes: publish full blocks and look prompts up among them.
        lock_factory: makes the one lock, `threading.Lock` if None; a race explorer puts its own in the place of either.
        hash_key: key of the prefix hashes; random when None (give one for repeatable traces).
        lease_clock: what the deadlines of leases are counted in; the number of the step begun last when None.
        host_blocks: slots of the host tier, where `swap_out` puts blocks.
    """

    # -- queries --------------------------------------------------------------------------------------------------

    def table(self, seq_id: int) -> list[int]:
        """Physical block ids of a sequence, logical order; `tables.NULL` where a sliding window has passed."""
        with self._lock:
            return list(self._known(seq_id).blocks)

    def inputs_of(self, decodes: Decodes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]] | None:
        """What the device needs for the tokens that `append_many` took last: [n] the tokens, [n, blocks] the tables.

        Entries of the tables that hold no block are 0. None where they are to be asked for one by one (`table`).
        """
        if type(self).table is not BlockManager.table:
            return None
        with self._lock:
            return decodes.lane.inputs() if decodes.latest else None

    def length(self, seq_id: int) -> int:
        """Positions of a sequence whose KV exists or is being written."""
        with self._lock:
            row = self._known(seq_id)
            row.catch_up()
            return row.issued

    def num_free(self) -> int:
        """Blocks that an allocation could take now, evictable ones included."""
        with self._lock:
            return self.pool.num_available

    def refcount(self, block: int) -> int:
        """Table entries that hold the block."""
        with self._lock:
            return int(self.pool.entries[block])

    def sequences(self) -> list[int]:
        """Ids of the sequences that hold a table."""
        with self._lock:
            return list(self._tables)

    def held(self) -> dict[int, int]:
        """Blocks in the table of each sequence that holds one."""
        with self._lock:
            return {seq_id: len(row.blocks) for seq_id, row in self._tables.items()}

    def supply(self) -> tuple[int, int]:
        """Blocks that are free, and cached ones that could be evicted now."""
        with self._lock:
            return self.pool.num_free, self.pool.num_evictable

    def in_flight(self) -> int:
        """Steps that have begun and not ended, and swaps that have not run."""
        with self._lock:
            return len(self._steps.open) + len(self._swaps) + len(self._moving)

    def step_number(self) -> int:
        """The step begun last; -1 before the first."""
        with self._lock:
            return self._steps.number

    def probe(self, tokens: Sequence[int], extras: Extras = ()) -> PrefixMatch:
        """What admitting this prompt would find and take; changes nothing."""
        with self._lock:
            return self.prefixes.match(tokens, extras)

    # -- a sequence's life ----------------------------------------------------------------------------------------

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        """Give a sequence the blocks of its whole prompt; returns how many leading tokens are cached already.

        What was looked up for the sequence (`lookup`) is held by its table from here on, and that lease ends.

        Raises:
            OutOfBlocks: the blocks cannot be had; nothing was changed.
            UsageError: the prompt is empty. FaultyCall: the sequence holds a table already.
        """
        if not tokens:
            raise UsageError("the prompt is empty: a sequence needs at least one token")
        with self._lock:
            self._begin(ahead=1)
            if seq_id in self._tables:
                raise self._fault(seq_id, f"sequence {seq_id} is admitted already: free or preempt it first")
            if seq_id in self._host.parked:
                raise self._fault(
                    seq_id, f"sequence {seq_id} waits in the host tier: swap it in, or end it with forget_swapped"
                )
            match = self.prefixes.match(tokens, extras)
            if not match.fits:
                self._refuse(seq_id, match.needed, match.available, match.hits)
            aux = len(tokens) - match.cached_tokens if resumed else match.cached_tokens
            self._emit(Kind.RESUME if resumed else Kind.ADMIT, seq_id=seq_id, aux=aux)
            row = SequenceTable(seq_id, list(tokens), extras, hashes=list(match.hashes))
            for lblock, block in enumerate(match.hits):
                self.prefixes.hit(row, lblock, block)
            if match.stop != Reason.NONE:
                self._emit(Kind.MISS, match.stop, seq_id=seq_id, lblock=len(match.hits))
            self._extend(row, match.needed, Reason.PREFILL)
            row.issued = row.computed = match.cached_tokens
            row.published = len(match.hits)
            self._tables[seq_id] = row
            self.prefixes.announce(row)
            if self._leases.lookups:
                self._leases.end_lookup(seq_id)
            return match.cached_tokens

    def write(self, seq_id: int, lo: int, hi: int) -> None:
        """Reserve and record the writes of positions [lo, hi), copying shared blocks first.

        `lo` must be where the sequence's KV ends; `hi` at most its known tokens.
        Raises: OutOfBlocks (nothing was changed), FaultyCall.
        """
        with self._lock:
            self._begin(ahead=1)
            self._write(self._row(seq_id), lo, hi, Reason.PREFILL)

    def append(self, seq_id: int, token: int) -> None:
        """One more token, to be computed in the next step: its slot is reserved and the write recorded.

        Raises: OutOfBlocks (nothing was changed).
        """
        with self._lock:
            self._begin(ahead=1)
            row = self._row(seq_id)
            row.tokens.append(token)
            try:
                self._write(row, row.issued, len(row.tokens), Reason.DECODE)
            except OutOfBlocks:
                row.tokens.pop()
                raise

    def fork(self, parent: int, child: int) -> None:
        """Let `child` continue from everything `parent` has: all blocks shared, none copied yet."""
        with self._lock:
            self._begin()
            source = self._row(parent)
            if child in self._tables:
                raise self._fault(child, f"sequence {child} is admitted already: a fork needs a new id")
            self._emit(Kind.FORK, Reason.FORK, seq_id=child, aux=parent)
            row = SequenceTable(
                child, list(source.tokens), source.extras, list(source.blocks), list(source.gens), list(source.hashes),
                source.issued, source.computed, source.published, source.first,
            )  # fmt: skip
            held = np.asarray(row.blocks[row.first :], dtype=np.int64)
            self.pool.retain_row(held, Kind.SHARE, seq_id=child, lblock=row.first, reason=Reason.FORK)
            self._tables[child] = row

    def truncate(self, seq_id: int, length: int) -> None:
        """Drop the positions from `length` on (rejected speculative tokens) and the blocks only they needed."""
        with self._lock:
            self._begin()
            row = self._row(seq_id)
            if not 1 <= length <= len(row.tokens):
                raise self._fault(seq_id, f"truncate of sequence {seq_id} to {length}: it has {len(row.tokens)} tokens")
            if length < row.first * self.block_size:
                raise self._fault(
                    seq_id,
                    f"truncate of sequence {seq_id} to {length}: positions below {row.first * self.block_size} "
                    "were given back behind its window; preempt it to compute them again",
                )
            self._emit(Kind.TRUNCATE, Reason.TRUNCATED, seq_id=seq_id, aux=length)
            keep = -(-length // self.block_size)
            self._release_tail(row, keep, Reason.TRUNCATED)
            self.prefixes.withdraw(row, from_block=length // self.block_size)
            del row.tokens[length:], row.hashes[length // self.block_size :]
            self._steps.cut(seq_id, length)
            row.issued, row.computed = min(row.issued, length), min(row.computed, length)
            row.published = min(row.published, length // self.block_size)

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        """Give all blocks of a sequence back: it finished, was aborted, or is preempted (`kind`)."""
        with self._lock:
            self._begin(ahead=1 if kind == Kind.PREEMPT else 0)
            row = self._row(seq_id)
            self._emit(kind, reason, seq_id=seq_id, aux=aux)
            self._release_tail(row, 0, reason)
            self.prefixes.withdraw(row)
            self._steps.drop(seq_id)
            self.pool.forget_user(seq_id)
            del self._tables[seq_id]

    def record(self, kind: Kind, reason: Reason, seq_id: int, aux: int = 0, *, details: Sequence[int] = (),
               needed: int | None = None) -> None:  # fmt: skip
        """Record an event of a sequence that touches no block: submitted, waiting (for `needed`), gone."""
        if self._sink is not None:
            with self._lock:
                self._begin(ahead=1)
                seq = self._emit(kind, reason, seq_id=seq_id, aux=aux)
                if needed is not None:
                    details = (needed, self.pool.num_free, self.pool.num_evictable, *details)
                if details:
                    self._sink.detail(seq, details)

    def report(
        self, kind: Kind, reason: Reason, *, block: int = -1, gen: int = -1, fill: int = -1, seq_id: int = -1,
        lblock: int = -1, aux: int = 0, details: Sequence[int] = (), step: int | None = None,
    ) -> None:  # fmt: skip
        """Record what a checker beside the tensors compared (CHECK), or found (MISMATCH); changes nothing.

        Args:
            step: the open step that was looked at; the last one begun if None.
        """
        if self._sink is not None:
            with self._lock:
                self._begin(ahead=0 if step is None else step - self._steps.number)
                seq = self._emit(kind, reason, block, gen, fill=fill, seq_id=seq_id, lblock=lblock, aux=aux)
                if details:
                    self._sink.detail(seq, details)

    # -- copies ---------------------------------------------------------------------------------------------------

    def drain_copies(self) -> list[Copy]:
        """Copies the device must run now, in order, before the writes of the step."""
        with self._lock:
            return self._copies.drain()

    def copies_done(self, copies: Iterable[Copy]) -> None:
        """These copies have run: their sources are no longer leased."""
        with self._lock:
            self._begin()
            self._copies.done(copies)

    def check_integrity(self) -> None:
        """Compare counts, states, free list, index and tables with each other.

        Raises:
            FaultyCall: they disagree; says where.
        """
        with self._lock:
            check_integrity(self.pool, self._tables, self._leases)
            self._host.check([*self._swaps, *self._moving])
