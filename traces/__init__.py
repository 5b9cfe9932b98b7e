"""What every room of KVScope speaks: the event schema, recorders, the trace folder and its reader.

pyarrow is imported only when a segment is sealed or read.
"""

from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.pack import pack, unpack
from kvscope.traces.reader import TraceReader, open_trace
from kvscope.traces.recorder import Recorder
from kvscope.traces.schema import (
    DETAIL_FIELDS,
    EVENT_DTYPE,
    FORMAT_VERSION,
    EventArray,
    Kind,
    Reason,
    pack_range,
    table_digest,
    to_signed,
    unpack_range,
)
from kvscope.traces.several import SeveralTraces, find_traces, open_traces
from kvscope.traces.sink import EventSink, Frame, PoolFacts, Site, Trace

__all__ = [
    "DETAIL_FIELDS",
    "EVENT_DTYPE",
    "FORMAT_VERSION",
    "EventArray",
    "EventSink",
    "Frame",
    "Kind",
    "MemoryRecorder",
    "PoolFacts",
    "Reason",
    "Recorder",
    "SeveralTraces",
    "Site",
    "Trace",
    "TraceReader",
    "find_traces",
    "open_trace",
    "open_traces",
    "pack",
    "pack_range",
    "table_digest",
    "to_signed",
    "unpack",
    "unpack_range",
]
