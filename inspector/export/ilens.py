"""InferLens traces (.ilens, schema 0.3): JSON lines of steps, requests and prefix-cache events.

Source: the format's specification and its normative dataclasses (github.com, InferLens: TRACE_SPEC.md,
inferlens/schema/events.py, v0.3 draft). What we say and what we leave to the format's defaults:

    trace_meta        the anchor of the clock is the trace's; `extra` has the pool's geometry
    engine_snapshot   at the end of each step. Usage counts held blocks, not cached ones. Prompt, generated, looked-up
                      and hit tokens, and preemptions, are those since the snapshot before. No latencies
    request_finished  one for each *sequence*, named like `haiku/1` for a further sample; time spent preempted counts
                      as queued
    kv_block_stored   at PUBLISH, one block each, with the keyed prefix hash (unsigned, 64 bits); the parent is null
                      where it is no block. `ts` and `wall_time_unix` are one moment; `seq` is the event's number
    kv_block_removed  at EVICT or UNPUBLISH of a block whose PUBLISH the trace holds
    collector_gap     where events are missing
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from kvscope import __version__
from kvscope.inspector.export.jsonl import manifest_of
from kvscope.inspector.export.parts import Progress, no_progress, parts, reason_names
from kvscope.inspector.lanes import DECODE, PREEMPTED, PREFILL, QUEUED, Lane, lanes
from kvscope.inspector.measures import held_at
from kvscope.inspector.source import Frozen, TraceLike, details_map, frozen, gap_rows
from kvscope.inspector.spans import model_facts
from kvscope.inspector.state import kind_mask
from kvscope.traces.schema import Kind, Reason

SCHEMA_VERSION = "0.3"
Records = Iterator[tuple[int, dict[str, Any]]]  # the row they belong to, in order
_REASONS: dict[int, str] = {
    Reason.STOP: "stop",
    Reason.LENGTH: "length",
    Reason.ABORTED: "abort",
    Reason.DRAINED: "abort",
}
_NAMES = reason_names()
_WAITING, _RUNNING = 0, 1
_LOAD_KINDS = (
    Kind.SUBMIT, Kind.ADMIT, Kind.RESUME, Kind.FORK, Kind.PREEMPT, Kind.FINISH, Kind.ABORT, Kind.SCHED, Kind.STEP_END,
)  # fmt: skip
_LOAD_MASK = kind_mask(_LOAD_KINDS)
# As numbers: a member is looked up in Python, and there are millions of rows.
_SUBMIT, _ADMIT, _RESUME, _FORK, _PREEMPT, *_ENDS, _SCHED, _STEP_END = map(int, _LOAD_KINDS)
_PUBLISH = int(Kind.PUBLISH)


def write_ilens(trace: TraceLike, rows: range, file: BinaryIO, progress: Progress = no_progress) -> int:
    """Write the records that belong to `rows`; returns their number."""
    manifest, trace = manifest_of(trace), frozen(trace)
    times = trace.events["t_ns"]
    clock = manifest.get("clock") if isinstance(manifest.get("clock"), dict) else {}
    wall, start = (_seconds(clock.get(name)) if clock else 0.0 for name in ("wall_ns", "monotonic_ns"))
    file.write(_line(_meta(trace, manifest, wall, start)))
    count = 1
    for row, record in heapq.merge(_snapshots(trace, rows), _finished(trace, rows), _cache(trace, rows, progress),
                                   _gaps(trace, rows), key=lambda pair: pair[0]):  # fmt: skip
        t = float(times[row]) * 1e-9
        record = {"kind": record.pop("kind"), "ts": start + t, **record}
        if record["kind"].startswith("kv_"):
            record["wall_time_unix"] = wall + t
        file.write(_line(record))
        count += 1
    return count


def _meta(trace: TraceLike, manifest: dict[str, Any], wall: float, start: float) -> dict[str, Any]:
    extra = {"num_blocks": trace.num_blocks, "block_size": trace.block_size, "block_bytes": trace.block_bytes}
    return {
        "kind": "trace_meta", "engine": str(manifest.get("engine") or "kvscope"), "engine_version": __version__,
        "model": str(model_facts(trace).get("name") or "unknown"), "wall_time_unix": wall, "monotonic_time": start,
        "schema_version": SCHEMA_VERSION, "extra": extra,
    }  # fmt: skip


class _Load:
    """Who waits and who runs, and what was done since the last snapshot."""

    def __init__(self) -> None:
        self.place: dict[int, int] = {}
        self.count = [0, 0]  # how many wait, how many run
        self.decode_from: dict[int, int] = {}  # by sequence the first position whose token is new
        self.prompts: dict[int, int] = {}
        self.prompt = self.generated = self.preempted = self.hits = self.queries = 0

    def goes(self, seq_id: int, place: int | None) -> None:
        """A sequence waits or runs from now on, or has left."""
        before = self.place.pop(seq_id, None)
        if before is not None:
            self.count[before] -= 1
        if place is not None:
            self.place[seq_id] = place
            self.count[place] += 1

    def take(self, kind: int, seq_id: int, aux: int, lblock: int, fill: int) -> None:
        """One event."""
        if kind == _SCHED:  # of most rows
            new_from, end = self.decode_from.get(seq_id, 0), lblock + max(fill, 0)
            self.prompt += max(0, min(end, new_from) - lblock)
            self.generated += end >= new_from
        elif kind == _SUBMIT:
            self.goes(seq_id, _WAITING)
            self.decode_from[seq_id] = aux
            self.prompts[seq_id] = aux
        elif kind in (_ADMIT, _RESUME):
            self.goes(seq_id, _RUNNING)
            if kind == _ADMIT and seq_id in self.prompts:  # without its SUBMIT it says nothing about a rate
                self.hits, self.queries = self.hits + aux, self.queries + self.prompts[seq_id]
        elif kind == _FORK:
            self.goes(seq_id, _RUNNING)
            self.decode_from[seq_id] = self.decode_from.get(aux, 0)
        elif kind == _PREEMPT:
            self.goes(seq_id, _WAITING)
            self.decode_from[seq_id] = max(self.decode_from.get(seq_id, 0), aux)
            self.preempted += 1
        elif kind in _ENDS:
            self.goes(seq_id, None)
            self.decode_from.pop(seq_id, None)


def _snapshots(trace: Frozen, rows: range) -> Records:
    events, load = trace.events, _Load()
    picked = np.flatnonzero(_LOAD_MASK[events["kind"]])
    ends = np.flatnonzero(events["kind"] == Kind.STEP_END)
    held = iter(held_at(trace, ends).tolist())
    for lo in range(0, len(picked), 65_536):
        piece = picked[lo : lo + 65_536]
        told = events[piece]
        columns = [told[name].tolist() for name in ("kind", "seq_id", "aux", "lblock", "fill")]
        for row, kind, *values in zip(piece.tolist(), *columns, strict=True):
            if kind != _STEP_END:
                load.take(kind, *values)
                continue
            used = next(held)
            if row in rows:
                yield row, {
                    "kind": "engine_snapshot", "num_running_reqs": load.count[_RUNNING],
                    "num_waiting_reqs": load.count[_WAITING],
                    "kv_cache_usage": used / trace.num_blocks,
                    "prefix_cache_queries": load.queries, "prefix_cache_hits": load.hits,
                    "num_preempted_reqs": load.preempted, "num_generation_tokens": load.generated,
                    "num_prompt_tokens": load.prompt,
                }  # fmt: skip
            load.prompt = load.generated = load.preempted = load.hits = load.queries = 0


def _finished(trace: Frozen, rows: range) -> Records:
    events, seqs = trace.events, np.asarray(trace.seqs, dtype=np.int64)
    found = []
    for lane in lanes(trace, held=False):
        if lane.outcome == "running" or not lane.bars:
            continue
        seq = lane.bars[-1].seq_hi
        row = int(np.searchsorted(seqs, seq))
        if row in rows:
            found.append((row, _request(lane, int(events["reason"][row]))))
    return iter(sorted(found, key=lambda pair: pair[0]))


def _request(lane: Lane, reason: int) -> dict[str, Any]:
    def spent(*phases: str) -> float:
        return sum(bar.t1_ns - bar.t0_ns for bar in lane.bars if bar.phase in phases) * 1e-9

    known, other = _REASONS.get(reason), _NAMES[reason].lower()
    return {
        "kind": "request_finished", "request_id": lane.name,
        "finish_reason": known or ("abort" if lane.outcome == "abort" else other),
        "e2e_latency_s": (lane.bars[-1].t1_ns - lane.bars[0].t0_ns) * 1e-9,
        "queued_time_s": spent(QUEUED, PREEMPTED), "prefill_time_s": spent(PREFILL), "decode_time_s": spent(DECODE),
        "num_prompt_tokens": lane.prompt_tokens, "num_generation_tokens": lane.output_tokens or 0,
        "num_cached_tokens": lane.cached_tokens,
    }  # fmt: skip


def _cache(trace: Frozen, rows: range, progress: Progress) -> Records:
    """What entered the prefix index, and what left it again."""
    hashes = {
        seq: (values[2], values[0]) for seq, values in details_map(trace, Kind.PUBLISH).items() if len(values) > 2
    }
    stored: dict[tuple[int, int], int] = {}
    known: set[int] = set()
    wanted = kind_mask((Kind.PUBLISH, Kind.UNPUBLISH, Kind.EVICT))
    begin = 0  # the row of the part's first event
    for part in parts(trace, range(rows.stop), progress):
        picked = np.flatnonzero(wanted[part.events["kind"]])
        told = part.events[picked]
        columns = [told[name].tolist() for name in ("kind", "block", "gen", "tier")]
        for at, seq, kind, block, gen, tier in zip(picked.tolist(), part.seqs[picked].tolist(), *columns, strict=True):
            life, medium = (block, gen), "CPU" if tier else "GPU"
            record: dict[str, Any] = {"seq": seq, "wall_time_unix": 0.0, "medium": medium, "group_idx": 0}
            if kind != _PUBLISH:
                gone = stored.pop(life, None)
                if gone is None:
                    continue
                record |= {"kind": "kv_block_removed", "block_hashes": [_unsigned(gone)]}
            elif seq in hashes:
                own, parent = hashes[seq]
                stored[life] = own
                record |= {
                    "kind": "kv_block_stored", "block_hashes": [_unsigned(own)],
                    "parent_block_hash": _unsigned(parent) if parent in known else None,
                    "num_tokens": trace.block_size, "block_size": trace.block_size,
                }  # fmt: skip
                known.add(own)
            if begin + at >= rows.start and "kind" in record:
                yield begin + at, record
        begin += len(part.events)


def _gaps(trace: Frozen, rows: range) -> Records:
    for row, lost in gap_rows(trace):
        if row not in rows:
            continue
        seq, before = int(trace.seqs[row]), int(trace.seqs[row - 1]) if row else -1
        hole = seq - before > 1
        yield row, {
            "kind": "collector_gap", "source": "kvscope", "reason": "missing" if hole else f"{lost}_dropped",
            "first_seq": before + 1 if hole else None, "last_seq": seq - 1 if hole else None,
        }  # fmt: skip


def _unsigned(value: int) -> int:
    return value & (1 << 64) - 1


def _seconds(value: Any) -> float:
    return value * 1e-9 if type(value) is int and abs(value) < 2**63 else 0.0


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
