"""How many bytes an Arrow message will unpack to, read from its frame before anything is unpacked.

Each compressed buffer of a record batch begins with its unpacked length, an int64; where the buffers lie is in the
batch's flatbuffer. A decoder believes that length: without this look, 16 KiB could claim 16 GiB.

Source: Arrow's format/Message.fbs (Message: header is field 2; RecordBatch: buffers is field 2, compression field 3)
and the FlatBuffers binary format (a table begins with the distance back to its vtable; offsets are relative).
"""

from __future__ import annotations

import struct

_I32, _I64 = struct.Struct("<i"), struct.Struct("<q")
_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
_CONTINUATION = 0xFFFFFFFF


def unpacked_bytes(message: bytes) -> int:
    """The sum of the lengths of all buffers of a framed record batch, once unpacked.

    Raises:
        ValueError: the frame makes no sense.
    """
    try:
        mark, length = _U32.unpack_from(message)[0], _I32.unpack_from(message, 4)[0]
        if mark != _CONTINUATION or not 0 < length <= len(message) - 8:
            raise ValueError("not a framed Arrow message")
        head = memoryview(message)[8 : 8 + length]
        body = memoryview(message)[8 + length :]
        batch = _field(head, _at(head, 0), 2)
        if batch is None:
            raise ValueError("an Arrow message without a header")
        table = _at(head, batch)
        buffers = _field(head, table, 2)
        if buffers is None:
            return 0
        return _total(head, _at(head, buffers), body, _field(head, table, 3) is not None)
    except struct.error as error:
        raise ValueError(f"not a readable Arrow message: {error}") from error


def head_of(metadata: bytes) -> tuple[int, int, int]:
    """(kind, bytes of the body, rows if it is a record batch) of a message, from its flatbuffer.

    Raises:
        ValueError: it makes no sense.
    """
    head = memoryview(metadata)
    try:
        table = _at(head, 0)
        kind, header, length = (_field(head, table, number) for number in (1, 2, 3))
        if kind is None or header is None:
            raise ValueError("an Arrow message without a header")
        rows = _field(head, _at(head, header), 0)
        return (
            head[kind],
            0 if length is None else int(_I64.unpack_from(head, length)[0]),
            0 if rows is None or head[kind] != 3 else int(_I64.unpack_from(head, rows)[0]),
        )
    except (struct.error, IndexError) as error:
        raise ValueError(f"not a readable Arrow message: {error}") from error


def _total(head: memoryview, vector: int, body: memoryview, packed: bool) -> int:
    """The unpacked lengths of all buffers in a vector of (offset, length) pairs, summed up."""
    count = _U32.unpack_from(head, vector)[0]
    if count > len(head) // 16:
        raise ValueError(f"an Arrow message with {count} buffers in {len(head)} bytes")
    total = 0
    for offset, length in struct.iter_unpack("<qq", head[vector + 4 : vector + 4 + 16 * count]):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise ValueError(f"an Arrow buffer outside of its message: {length} bytes at {offset}")
        claimed = _I64.unpack_from(body, offset)[0] if packed and length >= 8 else -1
        total += claimed if claimed >= 0 else length  # -1: this buffer is not packed
    return total


def _at(data: memoryview, place: int) -> int:
    """Where the offset stored at `place` leads to."""
    if place < 0:
        raise ValueError("an Arrow message that points before itself")
    return place + int(_U32.unpack_from(data, place)[0])


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table lies; None where it is absent."""
    vtable = table - int(_I32.unpack_from(data, table)[0])
    if vtable < 0 or _U16.unpack_from(data, vtable)[0] < 6 + 2 * number:
        return None
    distance = int(_U16.unpack_from(data, vtable + 4 + 2 * number)[0])
    return table + distance if distance else None
