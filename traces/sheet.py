"""Rows prepared in advance: for a writer that writes many of one kind again and again and changes little of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.rows import ROW_BYTES, ROW_DTYPE


class Sheet:
    """Rows of one kind as they will lie in the buffer; a sink copies them whole and adds moment, origin and mark.

    The columns are views: what is stored in them is in the next copy. Values must fit their columns.
    """

    __slots__ = (
        "aux", "block", "fill", "gen", "kind", "lblock", "raw", "reason", "ref_after", "ref_before", "rows", "seq_id",
    )  # fmt: skip

    def __init__(self, rows: npt.NDArray[np.void]) -> None:
        self.rows = rows
        self.raw = rows.view(f"V{ROW_BYTES}")
        self.block: npt.NDArray[Any] = rows["block"]
        self.gen: npt.NDArray[Any] = rows["gen"]
        self.seq_id: npt.NDArray[Any] = rows["seq_id"]
        self.lblock: npt.NDArray[Any] = rows["lblock"]
        self.ref_before: npt.NDArray[Any] = rows["ref_before"]
        self.ref_after: npt.NDArray[Any] = rows["ref_after"]
        self.fill: npt.NDArray[Any] = rows["fill"]
        self.aux: npt.NDArray[Any] = rows["aux"]
        self.kind: npt.NDArray[Any] = rows["kind"]
        self.reason: npt.NDArray[Any] = rows["reason"]

    @classmethod
    def of(cls, kind: int, reason: int, count: int) -> Sheet:
        """`count` rows of this kind, with every other column as in a row to which it does not apply."""
        rows = np.zeros(count, ROW_DTYPE)
        for name in ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill"):
            rows[name] = -1
        rows["kind"], rows["reason"] = kind, reason
        return cls(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def become(self, other: Sheet) -> None:
        """Take over the rows of another sheet of this length, but for their kind and reason; without `aux`."""
        kind, reason = int(self.kind[0]), int(self.reason[0])
        self.raw[:] = other.raw
        self.kind[:], self.reason[:], self.aux[:] = kind, reason, 0
