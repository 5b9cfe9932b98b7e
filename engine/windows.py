"""Sliding windows: blocks that no later position attends to are given back while the sequence goes on.

A row keeps its logical positions: the entries of released blocks become `NULL`, and `row.first` counts them. Nobody
may read through a NULL entry; a step's read range begins behind them.
"""

from __future__ import annotations

from kvscope.engine.tables import SequenceTable
from kvscope.errors import FaultyCall


def first_needed(position: int, window: int | None) -> int:
    """The first position that the query at `position` attends to: itself and the `window - 1` before it."""
    return 0 if window is None else max(0, position - window + 1)


def blocks_behind(row: SequenceTable, first_position: int, block_size: int) -> range:
    """Logical blocks of the row that lie wholly in front of `first_position` and are held still.

    Raises:
        FaultyCall: the position is not within what the sequence has.
    """
    if not 0 <= first_position <= row.issued:
        raise FaultyCall(
            f"slide of sequence {row.seq_id} to position {first_position}: its KV has positions 0..{row.issued}"
        )
    return range(row.first, max(row.first, min(first_position, row.computed) // block_size))
