"""The arithmetic of paging, from lengths and sizes alone: what reserving wastes, what a pool and a card hold.

Nothing here runs a scheduler; what a queue, a spread of lengths and peaks make of it is `kvscope simulate`'s answer.
Lengths are tokens, sizes are bytes, waste is 0..1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.errors import UsageError
from kvscope.inspector.shapes import ModelShape
from kvscope.inspector.units import percent

BLOCK_SIZES = (8, 16, 32, 64, 128)
TAIL_LIMIT = 0.02  # a recommended block size wastes at most this in tails
CURVE = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1.0)


def check_size(name: str, value: int, most: int = 1 << 50) -> int:
    """The value; UsageError unless it is 1..most."""
    if not 1 <= value <= most:
        raise UsageError(f"{name} is {value:,}: must be 1..{most:,}")
    return value


@dataclass(frozen=True, slots=True)
class Waste:
    """One length: what reserving `max_len` for it wastes, and what paging does."""

    length: int
    waste: float  # of the reservation
    blocks: int
    tail_waste: float  # of the blocks that paging takes

    def to_json(self) -> dict[str, float]:
        return {"length": self.length, "waste": self.waste, "blocks": self.blocks, "tail_waste": self.tail_waste}


def waste(max_len: int, lengths: Sequence[int], block_size: int = 16) -> list[Waste]:
    """For each length, the share of a reservation of `max_len` tokens that stays empty, and paging's.

    Raises:
        UsageError: a length is below 1 or above `max_len`.
    """
    check_size("max-len", max_len)
    check_size("block-size", block_size, 1 << 15)
    rows = []
    for length in lengths:
        if not 1 <= length <= max_len:
            raise UsageError(f"length {length:,} is outside 1..{max_len:,}: a request ends at max-len")
        blocks = blocks_of(length, block_size)
        rows.append(Waste(length, 1 - length / max_len, blocks, 1 - length / (blocks * block_size)))
    return rows


def blocks_of(length: int, block_size: int) -> int:
    """Blocks that hold `length` tokens."""
    return -(-length // block_size)


@dataclass(frozen=True, slots=True)
class Pool:
    """What a pool of `memory` bytes holds."""

    memory: int
    bytes_per_token: int
    block_size: int
    block_bytes: int
    num_blocks: int

    @property
    def tokens(self) -> int:
        """Slots of all blocks."""
        return self.num_blocks * self.block_size


def pool(memory: int, shape: ModelShape, block_size: int) -> Pool:
    """Blocks of `block_size` slots in `memory` bytes, all layers of a block counted together.

    Raises:
        UsageError: not even one fits.
    """
    check_size("memory", memory, 1 << 60)
    check_size("block-size", block_size, 1 << 15)
    each = block_size * shape.bytes_per_token
    if memory < each:
        raise UsageError(f"{memory:,} bytes hold no block: one of {block_size} slots takes {each:,} bytes")
    return Pool(memory, shape.bytes_per_token, block_size, each, memory // each)


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many sequences of one length fit, reserving `max_len` for each and paging."""

    mean_len: int
    reserved: int
    paged: int

    @property
    def gain(self) -> float | None:
        """Paged over reserved; None when reserving holds none."""
        return self.paged / self.reserved if self.reserved else None


def bytes_of(shape: ModelShape, length: int, block_size: int) -> int:
    """Bytes of one sequence of `length` tokens in whole blocks; windowed layers keep their window and a block.

    A window is given back in whole blocks, so such a layer keeps at most the blocks that the window touches.
    """
    per_layer = shape.bytes_per_token_layer * block_size
    full = blocks_of(length, block_size)
    near = min(full, blocks_of(shape.window, block_size) + 1) if shape.window else full
    return per_layer * ((shape.num_layers - shape.window_layers) * full + shape.window_layers * near)


def capacity(kv_memory: int, shape: ModelShape, max_len: int, mean_len: int, block_size: int = 16) -> Capacity:
    """Sequences at once in theory: all `mean_len` tokens long, memory the only limit.

    Raises:
        UsageError: a size is out of its range, or the mean is above the limit.
    """
    check_size("kv-memory", kv_memory, 1 << 60)
    check_size("max-len", max_len)
    check_size("block-size", block_size, 1 << 15)
    if not 1 <= mean_len <= max_len:
        raise UsageError(f"mean-len is {mean_len:,}: must be 1..{max_len:,}, the max-len")
    reserved = kv_memory // (max_len * shape.bytes_per_token)
    return Capacity(mean_len, reserved, kv_memory // bytes_of(shape, mean_len, block_size))


def curve(kv_memory: int, shape: ModelShape, max_len: int, block_size: int = 16) -> list[Capacity]:
    """How the gain shrinks as the mean length grows towards the limit."""
    means = dict.fromkeys(max(1, int(max_len * share)) for share in CURVE)
    return [capacity(kv_memory, shape, max_len, mean, block_size) for mean in means]


@dataclass(frozen=True, slots=True)
class BlockSize:
    """What one block size costs a set of lengths."""

    block_size: int
    tail_waste: float  # unfilled slots / slots of the blocks that hold all lengths
    entries: float  # block table entries per sequence, mean; as many allocations, and gathers in each attention read
    copy_bytes: int  # most that one copy-on-write moves
    shareable: int  # leading tokens of a common prefix that are shared, of `prefix` asked

    def to_json(self) -> dict[str, float]:
        return {
            "block_size": self.block_size, "tail_waste": self.tail_waste, "entries": self.entries,
            "allocations": self.entries, "gathers": self.entries, "copy_bytes": self.copy_bytes,
            "shareable_tokens": self.shareable,
        }  # fmt: skip


def block_sizes(shape: ModelShape, lengths: Sequence[int], prefix: int = 0, *, mean: bool = False) -> list[BlockSize]:
    """The trade-off over block sizes for these lengths.

    Args:
        prefix: tokens that requests have in common.
        mean: the lengths are means of lengths that spread, so that half a block stays empty on average.
    """
    rows = []
    for size in BLOCK_SIZES:
        blocks = [
            check_size("length", length) / size + 0.5 - 0.5 / size if mean else blocks_of(length, size)
            for length in lengths
        ]
        slots = sum(blocks) * size
        rows.append(BlockSize(size, 1 - sum(lengths) / slots, sum(blocks) / len(blocks),
                              size * shape.bytes_per_token, prefix // size * size))  # fmt: skip
    return rows


def recommend(rows: Sequence[BlockSize]) -> tuple[BlockSize, str]:
    """The largest block size, 64 at most, whose tails waste no more than 2 %; and why, in one line.

    Fewer, larger blocks mean fewer table entries, allocations and gathers; beyond 64 slots there is little left of
    that to win, while copies grow and shared prefixes are rounded down further.
    """
    good = [row for row in rows if row.tail_waste <= TAIL_LIMIT and row.block_size <= 64]
    if good:
        best = max(good, key=lambda row: row.block_size)
        return best, (
            f"the largest up to 64 whose tails waste at most {percent(TAIL_LIMIT, 0)} of these lengths "
            f"({percent(best.tail_waste)}), with {best.entries:,.0f} table entries per sequence"
        )
    best = min(rows, key=lambda row: (row.tail_waste, -row.block_size))
    most, wasted = percent(TAIL_LIMIT, 0), percent(best.tail_waste)
    return best, f"requests are short: at any size tails waste more than {most}, here {wasted}"


@dataclass(frozen=True, slots=True)
class Sharing:
    """What sharing a prefix saves."""

    blocks_apart: int  # every sequence for itself
    blocks_shared: int
    saved_bytes: int
    prefill_saved: int  # tokens that are not computed again
    copies: int  # copy-on-write of a half-filled last prompt block, n samples of one prompt
    worth: str  # one line: whether, and why


def sharing(shape: ModelShape, prefix: int, sequences: int, tail: int, block_size: int = 16, *,
            samples: bool = False) -> Sharing:  # fmt: skip
    """`sequences` with one common prefix of `prefix` tokens and `tail` tokens of their own each.

    Args:
        samples: they are samples of one prompt (its half-filled last block is shared until someone appends), rather
            than requests behind one system prompt (whole blocks only are shared).

    Raises:
        UsageError: a size is out of its range.
    """
    for name, value in (("prefix", prefix), ("sequences", sequences), ("tail", tail)):
        check_size(name, value)
    each = blocks_of(prefix + tail, block_size)
    common = prefix // block_size
    apart, together = sequences * each, common + sequences * (each - common)
    half = samples and prefix % block_size > 0
    computed = prefix if samples else common * block_size
    saved = apart - together
    if sequences == 1:
        worth = "no: there is one sequence, and nobody to share with"
    elif not saved:
        worth = f"no: a prefix below one block of {block_size} slots is never shared, and nothing else is common"
    elif saved < 0.02 * apart:
        worth = f"hardly: it saves {percent(saved / apart)} of the blocks; the prefix is short beside what follows it"
    else:
        tokens = computed * (sequences - 1)
        worth = f"yes: it saves {percent(saved / apart)} of the blocks and {tokens:,} prefill tokens"
    return Sharing(apart, together, saved * block_size * shape.bytes_per_token, computed * (sequences - 1),
                   sequences - 1 if half else 0, worth)  # fmt: skip
