"""JSON lines: the whole trace as text, exact; `kvscope import --from jsonl` makes the same trace of it again.

    {"record":"trace","format":"kvscope-jsonl","version":1,"manifest":{...}}      first
    {"record":"actor","i":1,"name":"MainThread"}
    {"record":"site","i":1,"frames":[["engine/pool.py",88,"BlockPool.take"]]}
    {"record":"base",...} {"record":"block",...}      what events that were let go had made: see base_lines.py
    {"seq":0,"t_ns":1200,"kind":"ALLOC","reason":"PREFILL","block":3,...,"detail":[...]}   one for each event
    {"record":"fact","fact":{...}}
    {"record":"end","events":1,"facts":1}                                         last: what is cut short shows

An event's columns are left out where they do not apply (-1; 0 in t_ns, aux, site, actor, tier, reason, as in the
schema). A kind or reason without a name is its number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO

from kvscope.inspector.export.base_lines import base_lines
from kvscope.inspector.export.parts import Part, Progress, no_progress, parts
from kvscope.inspector.source import TraceLike
from kvscope.traces.losses import Losses, as_members
from kvscope.traces.schema import EVENT_DTYPE, Kind, Reason

FORMAT, VERSION = "kvscope-jsonl", 1
# Columns as they are written, with the value that is left out.
COLUMNS: dict[str, int] = {
    name: 0 if EVENT_DTYPE[name].kind == "u" or name in ("t_ns", "aux") else -1
    for name in ("t_ns", "step", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux",
                 "site", "actor", "tier")
}  # fmt: skip
_KIND = [f'"{Kind(i).name}"' if i in set(Kind) else str(i) for i in range(256)]
_REASON = ["", *(f',"reason":"{Reason(i).name}"' if i in set(Reason) else f',"reason":{i}' for i in range(1, 256))]


def write_jsonl(trace: TraceLike, rows: range, file: BinaryIO, progress: Progress = no_progress) -> int:
    """Write the rows, and all names and facts; returns the number of lines."""
    lines = 0
    for record in chain(_head(trace), base_lines(trace) if not rows.start else ()):
        file.write(_dump(record))
        lines += 1
    for part in parts(trace, rows, progress):
        file.write("".join(_event_lines(part)).encode())
        lines += len(part.seqs)
    facts = 0
    for fact in trace.facts:
        file.write(_dump({"record": "fact", "fact": fact}))
        facts += 1
    file.write(_dump({"record": "end", "events": len(rows), "facts": facts}))
    return lines + facts + 1


def manifest_of(trace: TraceLike) -> dict[str, Any]:
    """What the trace says of itself; the geometry at least."""
    held: dict[str, Any] = dict(getattr(trace, "manifest", None) or {})
    held.pop("crc", None)
    pool = {"num_blocks": trace.num_blocks, "block_size": trace.block_size, "block_bytes": trace.block_bytes}
    counted = {"dropped": int(trace.dropped), **as_members(Losses.of(trace))}
    if (clipped := getattr(trace, "clipped", None)) is not None:
        counted["clipped"] = int(clipped)
    return {**held, "pool": {**held.get("pool", {}), **pool}, "clean": bool(trace.clean), **counted}


def _head(trace: TraceLike) -> Iterator[dict[str, Any]]:
    yield {"record": "trace", "format": FORMAT, "version": VERSION, "manifest": manifest_of(trace)}
    for i, name in enumerate(trace.actors):
        if i:
            yield {"record": "actor", "i": i, "name": name}
    for i, site in enumerate(trace.sites):
        frames = site.frames or ([(site.file, site.line, site.function)] if site.file else [])
        if i and frames:
            yield {"record": "site", "i": i, "frames": [list(frame) for frame in frames]}


def _event_lines(part: Part) -> Iterator[str]:
    """One line for each event: columns turned to text one by one, then joined row by row."""
    events, details = part.events, part.details()
    columns: list[list[str]] = [[_KIND[kind] for kind in events["kind"].tolist()]]
    columns.append([_REASON[reason] for reason in events["reason"].tolist()])
    for name, absent in COLUMNS.items():
        values = events[name]
        if (values != absent).any():
            head = f',"{name}":'
            columns.append(["" if value == absent else f"{head}{value}" for value in values.tolist()])
    seqs = part.seqs.tolist()
    if details:
        columns.append([f',"detail":{json.dumps(details[s], separators=(",", ":"))}' if s in details else ""
                        for s in seqs])  # fmt: skip
    for seq, *texts in zip(seqs, *columns, strict=True):
        yield f'{{"seq":{seq},"kind":{"".join(texts)}}}\n'


def _dump(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
