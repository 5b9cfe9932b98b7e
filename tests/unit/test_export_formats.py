"""Exports, read back by other tools' own readers: Perfetto's protos, pyarrow, csv, and what InferLens asks."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from kvscope.errors import UsageError
from kvscope.inspector.export import FORMATS, export
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.lanes import lanes
from kvscope.inspector.measures import COUNT_NAMES, series
from kvscope.traces import Kind, open_trace
from kvscope.traces.sink import Site

EVENT = protos.TrackEvent


def written(trace: Any, to: str, **options: Any) -> bytes:
    out = io.BytesIO()
    export(trace, to, out, **options)
    return out.getvalue()


def perfetto(trace: Any, **options: Any) -> tuple[dict[int, str], dict[int, list[Any]]]:
    """(track names, events by track in the order in which Perfetto sorts them)."""
    packets = protos.Trace.FromString(written(trace, "perfetto", **options)).packet
    assert packets[0].sequence_flags & 1
    assert {packet.trusted_packet_sequence_id for packet in packets} == {1}
    names = {p.track_descriptor.uuid: p.track_descriptor.name for p in packets if p.HasField("track_descriptor")}
    events = [p for p in packets if p.HasField("track_event")]
    tracks = defaultdict(list)
    for packet in sorted(events, key=lambda p: p.timestamp):  # stable, as Perfetto's sorter
        tracks[packet.track_event.track_uuid].append(packet)
    assert set(tracks) <= set(names)
    return names, tracks


@pytest.fixture(scope="module")
def traces(toy_traces: dict[str, Path]) -> dict[str, Any]:
    return {name: open_trace(path) for name, path in toy_traces.items()}


@pytest.mark.parametrize("seqs", [None, (300, 1500), (0, 1)])
def test_perfetto_slices_close_in_order(traces: dict[str, Any], seqs: tuple[int, int] | None) -> None:
    _, tracks = perfetto(traces["clean"], seqs=seqs)
    slices = 0
    for events in tracks.values():
        depth = 0
        for packet in events:
            if packet.track_event.type == EVENT.TYPE_SLICE_BEGIN:
                assert depth == 0
                assert packet.track_event.name
                depth, slices = 1, slices + 1
            elif packet.track_event.type == EVENT.TYPE_SLICE_END:
                assert depth == 1
                depth = 0
        assert depth == 0
    assert slices


def test_perfetto_has_a_lane_for_every_sequence(traces: dict[str, Any]) -> None:
    names, tracks = perfetto(traces["clean"])
    for lane in lanes(traces["clean"]):
        (uuid,) = (uuid for uuid, name in names.items() if name == f"{lane.name} (s{lane.seq_id})")
        begins = [p for p in tracks[uuid] if p.track_event.type == EVENT.TYPE_SLICE_BEGIN]
        assert [(p.track_event.name, p.timestamp) for p in begins] == [(bar.phase, bar.t0_ns) for bar in lane.bars]


def test_perfetto_counters_add_up_to_the_pool(traces: dict[str, Any]) -> None:
    trace = traces["clean"]
    names, tracks = perfetto(trace)
    counters = {name: uuid for uuid, name in names.items()}
    changes = [
        (packet.timestamp, name, packet.track_event.counter_value)
        for name in (*COUNT_NAMES, "held_blocks", "table_entries")
        for packet in tracks[counters[name.replace("_", " ")]]
    ]
    now: dict[str, int] = {}
    by_time: dict[int, dict[str, int]] = {}
    for t_ns, name, value in sorted(changes):
        now[name] = value
        by_time[t_ns] = dict(now)
    assert len(by_time) > 40
    measured = series(trace)
    for t_ns, values in by_time.items():
        assert sum(values[name] for name in COUNT_NAMES) == trace.num_blocks
        row = int(np.searchsorted(measured.t_ns, t_ns, side="right")) - 1
        assert all(values[name] == getattr(measured, name)[row] for name in values)


@pytest.mark.parametrize("seqs", [None, (300, 1500)])
def test_perfetto_flows_pair(traces: dict[str, Any], seqs: tuple[int, int] | None) -> None:
    trace = traces["clean"]
    _, tracks = perfetto(trace, seqs=seqs)
    starts, ends = {}, {}
    for packet in (packet for events in tracks.values() for packet in events):
        for flow in packet.track_event.flow_ids:
            assert flow not in starts
            starts[flow] = packet
        for flow in packet.track_event.terminating_flow_ids:
            assert flow not in ends
            ends[flow] = packet
    assert set(starts) == set(ends)
    assert all(starts[flow].timestamp <= ends[flow].timestamp for flow in starts)
    if seqs is None:
        kinds = trace.events["kind"]
        assert len(starts) == np.count_nonzero(kinds == Kind.COW) + np.count_nonzero(kinds == Kind.FORK)


def test_perfetto_shows_findings_and_only_findings(traces: dict[str, Any]) -> None:
    for name, found in (("clean", 0), ("missing-copy", 1)):
        names, tracks = perfetto(traces[name])
        (uuid,) = (uuid for uuid, track in names.items() if track == "findings")
        assert bool(tracks.get(uuid)) == bool(found)
        assert all("KV0" in packet.track_event.name for packet in tracks.get(uuid, ()))


def test_perfetto_of_odd_times_and_of_nothing() -> None:
    trace = HandTrace(num_blocks=4, block_size=4)
    assert perfetto(trace)[1] == {}
    trace.event(Kind.SUBMIT, seq_id=7, aux=3, t_ns=500).alloc(0, seq_id=7, t_ns=-90).event(
        Kind.ADMIT, seq_id=7, t_ns=40
    )
    _, tracks = perfetto(trace)
    assert min(p.timestamp for events in tracks.values() for p in events) == 500


def test_parquet_has_every_row(traces: dict[str, Any], tmp_path: Path) -> None:
    trace = traces["clean"]
    export(trace, "parquet", tmp_path / "t.parquet")
    tables = {path.stem: pq.read_table(path) for path in (tmp_path / "t.parquet").iterdir()}
    assert set(tables) == {"events", "details", "sites", "facts"}
    events = tables["events"]
    for name, column in (("seq", trace.seqs), *((n, trace.events[n]) for n in ("t_ns", "block", "gen", "aux", "fill"))):
        np.testing.assert_array_equal(np.asarray(events[name]), column)
    assert events["kind"].to_pylist() == [Kind(k).name for k in trace.events["kind"]]
    details = defaultdict(list)
    for row in tables["details"].to_pylist():
        details[row["seq"]].append(row["value"])
    assert {seq: tuple(values) for seq, values in details.items()} == {
        seq: found for seq in trace.seqs.tolist() if (found := trace.detail(seq)) is not None
    }
    assert [json.loads(fact) for fact in tables["facts"]["fact"].to_pylist()] == trace.facts
    assert json.loads(events.schema.metadata[b"kvscope"])["manifest"]["pool"]["num_blocks"] == trace.num_blocks
    column = pq.ParquetFile(tmp_path / "t.parquet" / "events.parquet").metadata.row_group(0).column(2)
    assert (column.compression, column.has_dictionary_page) == ("ZSTD", True)


def test_csv_reads_back_and_names_no_formula() -> None:
    trace = HandTrace(num_blocks=4, block_size=4, actors=["unknown", "=cmd|'/c calc'!A1"])
    trace.sites.append(Site("+evil.py", 3, "@f"))
    trace.request(0, '=HYPERLINK("http://x")', [1], 3).alloc(0, seq_id=1, actor=1, site=1).write(0, 0, 3, seq_id=1)
    trace.event(Kind.WAIT, seq_id=1, details=(3, 1, 0))
    rows = list(csv.DictReader(io.StringIO(written(trace, "csv").decode(), newline="")))
    assert [row["kind"] for row in rows] == ["ALLOC", "WRITE", "WAIT"]
    assert rows[0]["reason"] == "PREFILL"
    assert (rows[0]["block"], rows[2]["block"]) == ("0", "-1")
    assert rows[2]["details"] == "needed=3 free=1 evictable=0"
    texts = [row[name] for row in rows for name in ("kind", "reason", "sequence", "actor", "site", "details")]
    assert not any(text.startswith(("=", "+", "-", "@", "\t", "\r")) for text in texts)
    assert rows[0]["sequence"] == '\'=HYPERLINK("http://x")'


REQUIRED = {
    "trace_meta": {"engine", "engine_version", "model", "wall_time_unix", "monotonic_time", "schema_version"},
    "engine_snapshot": {"ts", "num_running_reqs", "num_waiting_reqs", "kv_cache_usage"},
    "request_finished": {"ts", "request_id", "finish_reason", "e2e_latency_s", "queued_time_s", "prefill_time_s",
                         "decode_time_s", "num_prompt_tokens", "num_generation_tokens"},
    "kv_block_stored": {"ts", "seq", "wall_time_unix", "block_hashes", "parent_block_hash", "num_tokens", "block_size"},
    "kv_block_removed": {"ts", "seq", "wall_time_unix", "block_hashes"},
    "collector_gap": {"ts", "source", "reason"},
}  # fmt: skip


def test_ilens_says_what_the_run_did(traces: dict[str, Any]) -> None:
    trace = traces["clean"]
    records = [json.loads(line) for line in written(trace, "ilens").splitlines()]
    assert records[0]["kind"] == "trace_meta"
    assert records[0]["schema_version"] == "0.3"
    assert all(REQUIRED[record["kind"]] <= set(record) for record in records)
    assert [r["ts"] for r in records[1:]] == sorted(r["ts"] for r in records[1:])
    by_kind = defaultdict(list)
    for record in records:
        by_kind[record["kind"]].append(record)
    steps = by_kind["engine_snapshot"]
    kinds = trace.events["kind"]
    assert len(steps) == np.count_nonzero(kinds == Kind.STEP_END)
    held = series(trace).held_blocks[kinds == Kind.STEP_END]
    assert [step["kv_cache_usage"] for step in steps] == (held / trace.num_blocks).tolist()
    assert sum(step["num_preempted_reqs"] for step in steps) == np.count_nonzero(kinds == Kind.PREEMPT)
    assert sum(step["prefix_cache_hits"] for step in steps) == series(trace).prefix_hit_tokens[-1]
    finished = {record["request_id"]: record for record in by_kind["request_finished"]}
    outputs = {lane.name: lane.output_tokens for lane in lanes(trace)}
    assert {name: record["num_generation_tokens"] for name, record in finished.items()} == outputs
    assert {record["finish_reason"] for record in finished.values()} == {"length"}
    # A fork samples its first token in its parent's step: one generated token stands for those of all samples there.
    forked = np.count_nonzero(kinds == Kind.FORK)
    assert sum(step["num_generation_tokens"] for step in steps) == sum(outputs.values()) - forked
    alive: dict[int, int] = defaultdict(int)
    for record in records:
        if record["kind"] == "kv_block_stored":
            assert record["parent_block_hash"] is None or alive[record["parent_block_hash"]]
            alive[record["block_hashes"][0]] += 1
        elif record["kind"] == "kv_block_removed":
            alive[record["block_hashes"][0]] -= 1
    assert min(alive.values()) >= 0


@pytest.mark.parametrize("to", [name for name, form in FORMATS.items() if not form.folder])
def test_a_range_and_a_range_of_nothing(traces: dict[str, Any], to: str) -> None:
    whole, part = written(traces["clean"], to), written(traces["clean"], to, seqs=(100, 200))
    assert 0 < len(part) < len(whole)
    with pytest.raises(UsageError, match="no event lies in the range 5000000:6000000"):
        export(traces["clean"], to, io.BytesIO(), seqs=(5_000_000, 6_000_000))


@pytest.mark.parametrize("to", list(FORMATS))
def test_nothing_is_left_behind_and_nothing_replaced_unasked(
    traces: dict[str, Any], tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "there"
    export(traces["clean"], to, out)
    with pytest.raises(UsageError, match="exists"):
        export(traces["clean"], to, out)
    before = [path.stat().st_mtime_ns for path in (out, *sorted(tmp_path.rglob("*")))]

    class Interrupting:
        """A trace whose reading is interrupted at its facts."""

        def __getattr__(self, name: str) -> Any:
            if name == "facts":
                raise KeyboardInterrupt
            return getattr(traces["clean"], name)

    with pytest.raises(KeyboardInterrupt):
        export(Interrupting(), to, out, overwrite=True)  # type: ignore[arg-type]
    assert [path.stat().st_mtime_ns for path in (out, *sorted(tmp_path.rglob("*")))] == before
    export(traces["clean"], to, out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_holds_more_is_never_replaced(traces: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match="more than an export"):
        export(traces["clean"], "parquet", tmp_path / "mine", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for to in ("parquet", "csv"):
        with pytest.raises(UsageError, match="in the way"):
            export(traces["clean"], to, tmp_path / "link", overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"
