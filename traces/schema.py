"""The event schema: one fixed-width row per event, and what its numbers mean.

A row is 48 bytes (`EVENT_DTYPE`); `seq`, the row's number, is implicit: dense from 0, given in the order of the
operations. (An event that had to be dropped takes no number; a GAP row stands for it.) A value that does not apply is
-1 in `block`, `gen`, `seq_id`, `lblock`, `ref_before`, `ref_after`, `fill`, and 0 in `aux`. References saturate at
32,767; any other value that its column cannot hold is cut to the column's range, and the trace says in how many rows.

Of every row: `t_ns` nanoseconds since the trace began, the same for all rows of an operation; `step` the engine's
step, -1 before the first; `site` and `actor` index the tables of call sites and of threads, 0 is "unknown"; `tier`
0 is the device's memory, 1 the host's.

`step` is the step that the operation belongs to: the one being planned for admissions, writes, waits and
preemptions, the one that ends for what STEP_END brings, else the last one begun.

What the columns hold, kind by kind (columns not named do not apply):

    ALLOC          block gen ref 0->1 seq_id lblock            free block handed to one holder; gen is the new life
    SHARE          block gen ref n->n+1 seq_id lblock fill     one more table entry (fork)
    RELEASE        block gen ref n->n-1 seq_id lblock fill     one table entry gone. n-1 == 0 is followed by exactly
                                                               one of FREE, QUARANTINE, or nothing: it stays cached
    FREE           block gen                                   on the free list again
    QUARANTINE     block gen                                   unheld, but an open step still uses it
    SETTLE         block gen                                   that step is done: on the free list again
    WRITE          block gen ref n->n seq_id lblock fill       slots of this step, ISSUED; aux = range(lo, hi) of slots;
                                                               fill = filled slots once it has landed
    COMMIT         block gen fill                              the step that wrote it has completed
    PUBLISH        block gen                                   entered in the prefix index
    UNPUBLISH      block gen                                   index entry withdrawn (its writer was aborted)
    HIT            block gen ref n->n+1 seq_id lblock fill     found in the prefix index; held by one more table
    MISS           seq_id lblock                               prefix match stopped before this logical block
    EVICT          block gen                                   cached block given up; followed by FREE
    COW            block gen seq_id lblock fill aux=source     `block` (just ALLOCated) replaces `source` in the table
    COPY_DONE      block gen aux=source                        the copy has run on the device
    LEASE/UNLEASE  block gen ref n->n+-1 aux=lease id          named temporary holder; seq_id: the sequence it is for;
                                                               a lease of several blocks has a row for each
    FORK           seq_id aux=parent seq_id                    the child's entries follow as SHARE rows
    TRUNCATE       seq_id aux=new length
    SWAP_OUT       block gen seq_id lblock fill aux=slot       the block's bytes go to a slot of the host tier (details:
                                                               tier, lease; lease -1: that slot has them already). Its
                                                               RELEASE follows; free only when the lease ends
    SWAP_IN        block gen seq_id lblock fill aux=slot       a fresh block is filled from a slot, under a lease
    SUBMIT         seq_id aux=prompt tokens                    request enters; details name the request
    ADMIT          seq_id aux=cached tokens                    blocks given, prefill may start
    WAIT           seq_id                                      not admitted now; details: counters
    REFUSED        seq_id                                      operation refused, nothing changed; details: counters
    PREEMPT        seq_id aux=tokens computed so far           its blocks are released in the rows that follow
    RESUME         seq_id aux=tokens to recompute              admitted again after PREEMPT
    FINISH/ABORT   seq_id aux=output tokens                    its blocks are released in the rows that follow
    STEP_BEGIN     aux=sequences in the step
    SCHED          seq_id aux=range(lo, hi) read               lblock = first position written, fill = how many;
                                                               details: digest of the table row the worker used
    STEP_END       aux=tokens computed                         writes of the step have landed
    WITNESS                                                    the pool's own counters, in details
    CHECK          aux=slots compared, lblock=sequences        a checker beside the tensors has looked: PROVENANCE,
                   fill=of them wrong                          CONTENT (lblock=blocks) or POISON
    MISMATCH       block gen seq_id lblock fill=slot           what it found, reason as of its CHECK; details: what was
                   aux=position                                expected, what was found, and whose that is
    POOL           aux=num_blocks, block=-1, fill=block_size   geometry; also in the manifest
    GROW/SHRINK    aux=num_blocks from now on, lblock=before   ids 0..aux - 1 exist from here on
    GAP            aux=events dropped just before this row     -n: another writer goes on, with a new pool of n blocks
                                                               and new names; 0: so it is, and n is not told
    NOTE           aux=free for the writer
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

FORMAT_VERSION = (1, 0)


class Kind(IntEnum):
    """What happened. Grows at its end only: a number, once written to a file, keeps its meaning."""

    ALLOC = 0
    SHARE = 1
    RELEASE = 2
    FREE = 3
    WRITE = 4
    COMMIT = 5
    PUBLISH = 6
    UNPUBLISH = 7
    HIT = 8
    MISS = 9
    EVICT = 10
    COW = 11
    COPY_DONE = 12
    QUARANTINE = 13
    SETTLE = 14
    LEASE = 15
    UNLEASE = 16
    FORK = 17
    TRUNCATE = 18
    SWAP_OUT = 19
    SWAP_IN = 20
    SUBMIT = 21
    ADMIT = 22
    WAIT = 23
    REFUSED = 24
    PREEMPT = 25
    RESUME = 26
    FINISH = 27
    ABORT = 28
    STEP_BEGIN = 29
    SCHED = 30
    STEP_END = 31
    WITNESS = 32
    SIGNAL = 33
    AWAIT = 34
    CHECK = 35
    MISMATCH = 36
    POOL = 37
    GROW = 38
    SHRINK = 39
    GAP = 40
    NOTE = 41


class Reason(IntEnum):
    """Why. Grows at its end only; `NONE` where a kind needs no reason."""

    NONE = 0
    # why blocks are taken
    PREFILL = 1
    DECODE = 2
    COPY_ON_WRITE = 3
    FORK = 4
    PREFIX_HIT = 5
    # why blocks are given back, why a sequence ends
    STOP = 6  # end-of-sequence token or stop string
    LENGTH = 7  # max_tokens or context reached
    ABORTED = 8
    PREEMPTED = 9
    TRUNCATED = 10
    WINDOW = 11
    # why an eviction or a preemption
    CAPACITY = 12
    # why a request waits, an operation is refused
    NO_BLOCKS = 13
    TOKEN_BUDGET = 14
    SEQUENCE_LIMIT = 15
    PREFIX_PENDING = 16  # another sequence is computing the same prefix right now
    TOO_LONG = 17  # more than the whole pool or the context could ever hold
    BAD_CALL = 18  # the state of the block or sequence does not allow the call
    # why a prefix match stopped
    NOT_IN_INDEX = 19
    LAST_TOKEN = 20  # the last prompt token is always computed
    TOKENS_DIFFER = 21  # equal hash, different tokens
    DRAINED = 22  # engine shut down with the request unfinished
    BEAM = 23  # beam search: none of the beam's continuations was among the best, or the search is over
    # why a lease is taken or ends (a copy's: COPY_ON_WRITE)
    LOOKUP = 24  # what a prompt has found is kept until it is admitted
    TRANSFER = 25  # work outside the steps reads or writes the block
    EXPIRED = 26  # the lease's deadline passed before it was ended
    # why a block is evicted, moved or refused
    RESIZED = 27  # the pool shrinks, and its last blocks go
    # why a sequence gives its blocks up, or has them again, without computing anything twice
    SWAPPED = 28  # they wait in host memory
    NO_HOST = 29  # refused: host memory has no room for them
    # which checker beside the tensors has looked
    PROVENANCE = 30  # whose KV a slot holds: its shadow word is that of the sequence's own prefix
    CONTENT = 31  # the bytes of a block are those that were written
    POISON = 32  # what no life of a block has written is not read


EVENT_DTYPE = np.dtype(
    [
        ("t_ns", "<i8"),
        ("aux", "<i8"),
        ("step", "<i4"),
        ("block", "<i4"),
        ("gen", "<i4"),
        ("seq_id", "<i4"),
        ("lblock", "<i4"),
        ("ref_before", "<i2"),
        ("ref_after", "<i2"),
        ("fill", "<i2"),
        ("site", "<u2"),
        ("kind", "u1"),
        ("reason", "u1"),
        ("actor", "u1"),
        ("tier", "u1"),
    ]
)
assert EVENT_DTYPE.itemsize == 48

# `struct` format of one row, for the scalar path; the same bytes as EVENT_DTYPE.
EVENT_STRUCT = "<qqiiiiihhhHBBBB"

EventArray = npt.NDArray[np.void]

# Details: a row of int64 values keyed by the seq of the event it belongs to. Names by kind; a trailing "*"
# means "and any number more".
DETAIL_FIELDS: dict[Kind, tuple[str, ...]] = {
    Kind.COW: ("source", "source_gen", "slot_lo", "slot_hi"),
    Kind.PUBLISH: ("parent_hash", "tokens_digest", "prefix_hash", "identity_digest"),
    Kind.HIT: ("parent_hash", "tokens_digest", "prefix_hash", "identity_digest"),
    Kind.SCHED: ("table_digest", "table_length"),
    Kind.WITNESS: (
        "free",
        "private",
        "shared",
        "cached",
        "quarantined",
        "in_transit",
        "table_entries",
        "tables_digest",
        "host_used",  # slots of the host tier that are held; absent without one
    ),
    Kind.WAIT: ("needed", "free", "evictable", "holders*"),  # holders: sequence, its blocks, next sequence, ...
    Kind.REFUSED: ("needed", "free", "evictable", "largest"),  # largest: side by side, where blocks must lie so
    Kind.SUBMIT: ("request", "max_tokens", "samples"),
    Kind.FORK: ("request", "sample"),
    Kind.SWAP_OUT: ("tier", "lease"),
    Kind.SWAP_IN: ("tier", "lease"),
    Kind.LEASE: ("slot_lo", "slot_hi", "deadline"),  # deadline: by the clock of the leases; -1 = none
    # expected, found: keyed words or digests, 0 = never written. writer: sequence of the last write, its step. owner:
    # a sequence whose prefix the found word is, and how long that prefix is; -1 = none that is known
    Kind.MISMATCH: ("expected", "found", "writer", "written_step", "owner", "owner_tokens"),
}


def pack_range(lo: int, hi: int) -> int:
    """One int64 for the half-open range [lo, hi); both below 2**31."""
    return lo | hi << 32


def unpack_range(aux: int) -> tuple[int, int]:
    """The (lo, hi) that `pack_range` packed."""
    return aux & 0xFFFFFFFF, aux >> 32


_MASK = (1 << 64) - 1
# The finalizer of splitmix64 (Steele et al., OOPSLA 2014). Arrays: numpy is faster with them than with numbers.
_ONE, _HALF, _GOLDEN = (np.array(value, dtype=np.uint64) for value in (1, 32, 0x9E3779B97F4A7C15))
_ROUNDS = [
    (np.array(30, dtype=np.uint64), np.array(0xBF58476D1CE4E5B9, dtype=np.uint64)),
    (np.array(27, dtype=np.uint64), np.array(0x94D049BB133111EB, dtype=np.uint64)),
]
_LAST_SHIFT = np.array(31, dtype=np.uint64)
_shifted = np.right_shift


def table_digest(
    blocks: Sequence[int] | npt.NDArray[np.integer], gens: Sequence[int] | npt.NDArray[np.integer], first: int = 0
) -> int:
    """Order-dependent 64-bit digest of a block table row, signed; equal rows of (block, gen) give equal digests.

    A sum of mixed words, so a table that grows can be digested incrementally and rows add up to a pool digest.

    Args:
        blocks, gens: the row from logical block `first` on; those before it were given back behind a sliding window.
    """
    lblocks = np.arange(first, first + len(blocks), dtype=np.uint64)
    words = digest_words(np.asarray(blocks, dtype=np.uint64), np.asarray(gens, dtype=np.uint64), lblocks)
    return to_signed(int(words.sum(dtype=np.uint64)))


def digest_words(
    blocks: npt.NDArray[np.uint64], gens: npt.NDArray[np.uint64], lblocks: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """The words that these table entries add to `table_digest`."""
    return life_words(gens << _HALF | blocks, lblocks)


def life_words(lives: npt.NDArray[np.uint64], lblocks: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`digest_words` of lives, which are block + gen * 2**32."""
    x = (lblocks + _ONE) * _GOLDEN
    x ^= lives
    y = np.empty_like(x)
    for shift, factor in _ROUNDS:
        x ^= _shifted(x, shift, y)
        x *= factor
    x ^= _shifted(x, _LAST_SHIFT, y)
    return x


def digest_word(block: int, gen: int, lblock: int) -> int:
    """The word that one table entry adds to `table_digest`, unsigned."""
    x = ((block | gen << 32) ^ (lblock + 1) * 0x9E3779B97F4A7C15) & _MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def to_signed(value: int) -> int:
    """A 64-bit pattern as the int64 that details hold."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value
