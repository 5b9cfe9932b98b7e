"""How a row lies in a recorder's buffer, and what packs it.

56 bytes, native alignment, little endian: the columns of EVENT_DTYPE in an order that packs fast, and last the row's
mark, `seq + 1`. (The file of sealed rows has a form of its own: `codec`.)
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from kvscope.traces.schema import EVENT_DTYPE, EventArray, Kind

# t_ns, step, (site actor tier), aux, block gen seq_id lblock, ref_before ref_after fill, kind reason, mark
ROW = struct.Struct("<qi4sqiiiihhhBBq")
ROW_DTYPE = np.dtype(
    [
        ("t_ns", "<i8"),
        ("step", "<i4"),
        ("site", "<u2"),
        ("actor", "u1"),
        ("tier", "u1"),
        ("aux", "<i8"),
        ("block", "<i4"),
        ("gen", "<i4"),
        ("seq_id", "<i4"),
        ("lblock", "<i4"),
        ("ref_before", "<i2"),
        ("ref_after", "<i2"),
        ("fill", "<i2"),
        ("kind", "u1"),
        ("reason", "u1"),
        ("mark", "<i8"),
    ]
)
ROW_BYTES = ROW.size
assert ROW_BYTES == ROW_DTYPE.itemsize == 56

# As ROW, but what is the same in all such rows is one string of bytes, or left out where it is 0.
ALLOC_ROW = struct.Struct("<qi4s8xiiii7sBq")
END_ROWS = struct.Struct("<qi4s8xiiii4sh1sBqqi4s8xii15sBq")
TO_ONE = struct.pack("<hhhB", 0, 1, 0, Kind.ALLOC)
TO_NONE, RELEASED = struct.pack("<hh", 1, 0), bytes([Kind.RELEASE])
FREED = struct.pack("<iihhhB", -1, -1, 0, 0, 0, Kind.FREE)
assert 2 * ALLOC_ROW.size == END_ROWS.size == 2 * ROW_BYTES
# Step, site, actor and tier as one number; block and life as one.
PARTS = np.dtype({"names": ["origin", "life"], "formats": ["<i8", "<i8"], "offsets": [8, 24], "itemsize": ROW_BYTES})
ORIGIN, WORD = struct.Struct("<i4s"), struct.Struct("<q")
WHOLE = f"V{ROW_BYTES}"


def marks_from(seq: int, rows: int) -> npt.NDArray[np.int64]:
    """The marks of `rows` rows from `seq` on."""
    return np.arange(seq + 1, seq + 1 + rows, dtype=np.int64)


def events_of(rows: npt.NDArray[np.void]) -> EventArray:
    """Buffer rows as EVENT_DTYPE rows (a copy)."""
    events = np.empty(len(rows), EVENT_DTYPE)
    for name in EVENT_DTYPE.names or ():
        events[name] = rows[name]
    return events


def empty_row() -> tuple[memoryview, npt.NDArray[np.void]]:
    """Room for one row: as bytes, and as an array."""
    one = np.zeros(1, WHOLE)
    return one.view(np.uint8).data, one
