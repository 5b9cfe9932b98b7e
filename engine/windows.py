"""Sliding windows: blocks that no later position attends to are given back while the sequence goes on.

A row keeps its logical positions: the entries of released blocks become `NULL`, and `row.first` counts them. Nobody
may read through a NULL entry; a step's read range begins behind them.
"""

from __future__ import annotations

from kvscope.engine.tables import SequenceTable


def first_needed(position: int, window: int | None) -> int:
    """The first position that the query at `position` attends to: itself and the `window - 1` before it."""
    return 0 if window is None else max(0, position - window + 1)


def blocks_behind(row: SequenceTable, first_position: int, block_size: int) -> range:
    """Logical blocks of the row that are computed, lie wholly in front of `first_position`, and are held still."""
    return range(row.first, max(row.first, min(first_position, row.computed) // block_size))
