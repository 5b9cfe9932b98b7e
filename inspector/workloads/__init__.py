"""Workloads: requests with arrival times and lengths, from published traces, our own traces, or a generator.

    azure       CSV: TIMESTAMP,ContextTokens,GeneratedTokens (2023, 2024)
    burstgpt    CSV: Timestamp,...,Request tokens,Response tokens,...
    mooncake    JSONL: timestamp, input_length, output_length, hash_ids (which name the shared prefixes)
    sharegpt    JSON or JSONL: conversations; each answer is a request behind a growing prefix
    trace       a trace folder of KVScope
    gen:        key=value list, see `generate`

The kind is seen from the file. `.gz` and a byte order mark are fine; what is not fine is one line with its number.
"""

from kvscope.inspector.workloads.opening import open_workload
from kvscope.inspector.workloads.request import Workload, WorkRequest

__all__ = ["WorkRequest", "Workload", "open_workload"]
