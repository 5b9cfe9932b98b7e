"""As much of Protocol Buffers as Perfetto's track events need: varints, tags and length-delimited fields.

Field numbers are those of perfetto_trace.proto (perfetto.dev/docs/reference/trace-packet-proto).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

VARINT, FIXED64, BYTES = 0, 1, 2
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  # TrackEvent.Type


def varint(value: int) -> bytes:
    """A number of up to 64 bits, seven at a time; negative ones as two's complement."""
    value &= (1 << 64) - 1
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = [bytes([i]) for i in range(0x80)]
_WRITER = b"\x50\x01"  # trusted_packet_sequence_id: all packets are of one writer


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3 | VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of 8 bytes."""
    return varint(field << 3 | FIXED64) + struct.pack("<Q", value)


def data(field: int, value: bytes) -> bytes:
    """A field of bytes: a message within a message, or text."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A text field."""
    return data(field, value.encode("utf-8", "backslashreplace"))


def track(
    uuid: int, parent: int, name: str, *, rank: int = 0, counter: bool = False, process: int = 0, by_time: bool = False
) -> bytes:
    """A framed packet with a TrackDescriptor: a lane, a counter, or (with a number) a process at the top.

    Args:
        rank: place among its siblings.
        by_time: order its children by their first event instead.
    """
    body = number(1, uuid)
    if process:
        body += data(3, number(1, process) + text(6, name))  # ProcessDescriptor: pid, process_name
    else:
        body += text(2, name) + number(5, parent) + number(15, 2)  # never merged with a sibling of its name
    if counter:
        body += data(8, number(3, 2))  # CounterDescriptor: a count
    body += number(11, 2 if by_time else 3) + number(12, rank)
    # The top one comes first: there begins what a reader may remember of this writer (SEQ_INCREMENTAL_STATE_CLEARED).
    return packet(_WRITER + (number(13, 1) if process else b"") + data(60, body))


def event(t_ns: int, kind: int, uuid: int, rest: bytes = b"") -> bytes:
    """A framed packet with a TrackEvent of one of the four kinds, on the track `uuid`."""
    inner = b"\x48" + _SMALL[kind] + b"\x58" + varint(uuid) + rest
    return packet(b"\x40" + varint(t_ns) + _WRITER + b"\x5a" + varint(len(inner)) + inner)


def packet(body: bytes) -> bytes:
    """One TracePacket, framed as a field of a Trace."""
    return b"\x0a" + varint(len(body)) + body


def name(value: str) -> bytes:
    """The name of an event."""
    return text(23, value)


def count(value: int) -> bytes:
    """The value of a counter."""
    return b"\xf0\x01" + varint(value)


def flow(identity: int, *, ends: bool = False) -> bytes:
    """The event is on this flow; `ends`: and the flow ends here."""
    return fixed64(48 if ends else 47, identity)


def notes(pairs: Iterable[tuple[str, int | str]]) -> bytes:
    """Named values, as the UI lists them for an event."""
    return b"".join(
        data(4, text(10, key) + (number(4, value) if isinstance(value, int) else text(6, value)))
        for key, value in pairs
    )
