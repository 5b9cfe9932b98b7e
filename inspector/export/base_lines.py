"""What events that a recorder let go had made of the pool, as JSON lines: `base.bin` as text.

{"record":"base","before":212992,"num_blocks":64,"blocks":64}    behind the events below 212992; blocks followed
{"record":"block","i":3,"gen":7,"ref":2,"fill":4,"last_seq":212980}     one for each that was ever handed out
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvscope.inspector.source import TraceLike, fold_before
from kvscope.traces.fold import MAX_BLOCKS, BlockFold, believed


def base_lines(trace: TraceLike) -> Iterator[dict[str, Any]]:
    """The lines of a trace whose first events were let go; none of one that has its first event."""
    fold, seq = fold_before(trace), int(getattr(trace, "let_go", 0))
    if fold is None or not seq:
        return
    yield {"record": "base", "before": seq, "num_blocks": fold.size, "blocks": len(fold)}
    absent = _columns(BlockFold(fold.size, 0, 1))
    columns = _columns(fold)
    told = np.any([columns[name] != absent[name][0] for name in columns], axis=0)
    for block in np.flatnonzero(told).tolist():
        values = {name: int(column[block]) for name, column in columns.items() if column[block] != absent[name][0]}
        yield {"record": "block", "i": block, **values}


def base_of(record: dict[str, Any], size_bytes: int) -> tuple[int, BlockFold]:
    """(seq, the fold that `block` lines fill) of a `base` line in a file of so many bytes.

    Raises:
        ValueError: what is wrong with it.
    """
    seq, size, blocks = (record.get(name) for name in ("before", "num_blocks", "blocks"))
    if type(seq) is not int or not 0 < seq <= 2**62:
        raise ValueError(f"before of a base is a whole number above 0, got {seq!r:.40}")
    if type(size) is not int or type(blocks) is not int or not 0 <= size <= blocks <= MAX_BLOCKS:
        raise ValueError(f"a base follows num_blocks to {MAX_BLOCKS} blocks, got {size!r:.40} and {blocks!r:.40}")
    if blocks > (most := believed(size_bytes)):
        raise ValueError(f"a base in a file of {size_bytes:,} bytes follows at most {most:,} blocks, got {blocks:,}")
    fold = BlockFold(blocks)
    fold.size = size
    return seq, fold


def take_block(record: dict[str, Any], fold: BlockFold) -> None:
    """Enter a `block` line.

    Raises:
        ValueError: what is wrong with it.
    """
    block, columns = record.get("i"), _columns(fold)
    if type(block) is not int or not 0 <= block < len(fold):
        raise ValueError(f"the base follows blocks 0 to {len(fold) - 1}, got {block!r:.40}")
    if unknown := record.keys() - columns.keys() - {"record", "i"}:
        raise ValueError(f"a block of the base has no member {min(unknown)!r:.60}")
    for name in record.keys() & columns.keys():
        limits, value = np.iinfo(columns[name].dtype), record[name]
        if type(value) is not int or not limits.min <= value <= limits.max:
            raise ValueError(f"{name} is a whole number from {limits.min} to {limits.max}, got {value!r:.40}")
        columns[name][block] = value


def _columns(fold: BlockFold) -> dict[str, Any]:
    return {name: value for name, value in vars(fold).items() if isinstance(value, np.ndarray)}
