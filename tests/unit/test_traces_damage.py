"""Traces that were cut, flipped, mixed up or never were one: everything whole is used, nothing wrong is believed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.errors import TraceError, UsageError
from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace
from kvscope.traces.codec import encode_batch
from kvscope.traces.files import MAX_PENDING_BYTES, AppendFile, dump_late, dump_line, parse_line, read_late
from kvscope.traces.manifest import manifest_crc
from kvscope.traces.row_layout import ROW_DTYPE
from kvscope.traces.segment import INDEX_DTYPE, SegmentWriter

POOL = PoolFacts(num_blocks=64, block_size=16)
ROWS, BATCH = 650, 32


def record(path: Path) -> Recorder:
    recorder = Recorder(path, pool=POOL, sealing="inline", hot_rows=128, seal_rows=BATCH, max_batches=5)
    for i in range(ROWS):
        recorder.begin()
        recorder.detail(recorder.emit(Kind.FREE, block=i % 64, aux=i * 7), [i] * (i % 11))
    recorder.fact({"type": "run", "n": 1})
    recorder.fact({"type": "run", "n": 2})
    return recorder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly closed trace."""
    with record(tmp_path_factory.mktemp("whole") / "a.kvtrace") as recorder:
        return recorder.path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed writer leaves: some rows sealed, some in the hot tail."""
    folder = tmp_path_factory.mktemp("killed")
    with record(folder / "a.kvtrace") as recorder:
        shutil.copytree(recorder.path, folder / "b.kvtrace")
    return folder / "b.kvtrace"


def damaged(source: Path, target: Path, name: str, change: Callable[[bytearray], None]) -> TraceReader:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
    data = bytearray((target / name).read_bytes())
    change(data)
    (target / name).write_bytes(data)
    return open_trace(target)


def check_subset(trace: TraceReader, original: TraceReader) -> None:
    """Every row and detail that is there is right; what is missing is named in `gaps`."""
    position = np.searchsorted(original.seqs, trace.seqs)
    np.testing.assert_array_equal(original.seqs[position], trace.seqs)
    np.testing.assert_array_equal(original.events[position], trace.events)
    missing = sorted(set(original.seqs.tolist()) - set(trace.seqs.tolist()))
    named = [seq for lo, hi in trace.gaps for seq in range(lo, hi)]
    assert named == missing or (not trace.clean and set(named) <= set(missing))
    for seq in trace.seqs[::7].tolist():
        assert trace.detail(seq) in (original.detail(seq), None)
    assert all(fact in original.facts for fact in trace.facts)
    if missing or trace.facts != original.facts:
        assert trace.warnings


def names(folder: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix == suffix)


def test_a_segment_cut_anywhere_is_read_up_to_the_tear(whole: Path, tmp_path: Path) -> None:
    original = open_trace(whole)
    name = names(whole, ".arrows")[1]
    entries = np.frombuffer((whole / name).with_suffix(".index").read_bytes(), INDEX_DTYPE)
    size = (whole / name).stat().st_size
    for cut in [*range(0, size - 8, 173), *(int(e["offset"] + e["length"]) for e in entries)]:

        def change(data: bytearray, cut: int = cut) -> None:
            del data[cut:]

        trace = damaged(whole, tmp_path / "t.kvtrace", name, change)
        check_subset(trace, original)
        whole_batches = int((entries["offset"] + entries["length"] <= cut)[1:].sum())
        assert len(trace.events) == ROWS - 5 * BATCH + whole_batches * BATCH
        assert bool(trace.gaps) == (whole_batches < 5)


def test_a_sidecar_cut_anywhere_loses_no_row(whole: Path, tmp_path: Path) -> None:
    original = open_trace(whole)
    name = names(whole, ".index")[-1]
    size = (whole / name).stat().st_size
    for cut in range(0, size, 9):

        def change(data: bytearray, cut: int = cut) -> None:
            del data[cut:]

        trace = damaged(whole, tmp_path / "t.kvtrace", name, change)
        np.testing.assert_array_equal(trace.events, original.events)
        assert trace.gaps == []
        assert any("without their checksum" in line for line in trace.warnings)
        assert any("torn" in line for line in trace.warnings) == (cut % 56 != 0)


def test_a_missing_segment_is_a_gap(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.kvtrace"
    shutil.copytree(whole, target)
    (target / "events-00001.arrows").unlink()
    trace = open_trace(target)
    check_subset(trace, open_trace(whole))
    assert trace.gaps == [(5 * BATCH, 10 * BATCH)]


@pytest.mark.parametrize("name", ["sites.jsonl", "actors.jsonl", "facts.jsonl", "late.bin"])
def test_names_facts_and_late_details_may_be_missing(whole: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "t.kvtrace"
    shutil.copytree(whole, target)
    (target / name).unlink()
    trace = open_trace(target)
    assert trace.warnings == [f"{name} is missing"]
    np.testing.assert_array_equal(trace.events, open_trace(whole).events)
    assert trace.sites[1]
    assert trace.actors[1]


def test_a_hot_tail_cut_anywhere_keeps_its_whole_rows(killed: Path, tmp_path: Path) -> None:
    original = open_trace(killed)
    sealed = int(original.seqs[-1]) + 1 - ROWS % BATCH
    for cut in [0, 7, 4000, 4095, *range(4096, 4096 + 128 * 128, 391)]:

        def change(data: bytearray, cut: int = cut) -> None:
            del data[cut:]

        trace = damaged(killed, tmp_path / "t.kvtrace", "hot.bin", change)
        check_subset(trace, original)
        assert len(trace.events) >= sealed
        assert any("torn" in line for line in trace.warnings)
    shutil.rmtree(tmp_path / "t.kvtrace")


@pytest.mark.parametrize("suffix", [".arrows", ".index", ".jsonl", ".bin"])
def test_a_flipped_bit_is_noticed(whole: Path, tmp_path: Path, suffix: str) -> None:
    original = open_trace(whole)
    rng = random.Random(1)
    for name in names(whole, suffix):
        size = (whole / name).stat().st_size - (8 if suffix == ".arrows" else 0)  # the end mark is nothing to us
        for _ in range(24):
            bit = rng.randrange(size * 8)

            def change(data: bytearray, bit: int = bit) -> None:
                data[bit // 8] ^= 1 << bit % 8

            trace = damaged(whole, tmp_path / "t.kvtrace", name, change)
            check_subset(trace, original)
            assert trace.warnings, (name, bit)


def test_a_flipped_bit_in_the_manifest_is_noticed(whole: Path, tmp_path: Path) -> None:
    rng = random.Random(2)
    size = (whole / "manifest.json").stat().st_size
    noticed = 0
    for _ in range(100):
        bit = rng.randrange(size * 8)

        def change(data: bytearray, bit: int = bit) -> None:
            data[bit // 8] ^= 1 << bit % 8

        try:
            trace = damaged(whole, tmp_path / "t.kvtrace", "manifest.json", change)
        except TraceError:
            noticed += 1
            continue
        noticed += bool(trace.warnings)
        assert trace.warnings or trace.manifest | {"crc": ""} == open_trace(whole).manifest | {"crc": ""}
    assert noticed > 75


def test_random_bytes_in_any_file_never_break_the_reader(killed: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    for name in [path.name for path in killed.iterdir() if path.name != "manifest.json"]:
        for size in (0, 1, 56, 5000):

            def change(data: bytearray, size: int = size) -> None:
                data[:] = rng.randbytes(size)

            trace = damaged(killed, tmp_path / "t.kvtrace", name, change)
            assert trace.warnings
            trace.details_of(Kind.FREE)


@pytest.mark.parametrize("bad", [1, 3, 4, 102])
def test_many_damaged_entries_of_an_index_are_one_line(tmp_path: Path, bad: int) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=PoolFacts(8, 4), sealing="inline", hot_rows=64, seal_rows=4) as sink:
        for number in range(480):
            sink.emit(Kind.NOTE, aux=number)
    index = tmp_path / "a.kvtrace" / "events-00000.index"
    data = bytearray(index.read_bytes())
    for number in range(10, 10 + bad):
        data[number * 56] ^= 0xFF
    index.write_bytes(data)
    lines = [line for line in open_trace(tmp_path / "a.kvtrace").warnings if "index: " in line]
    if bad <= 3:
        assert lines == [f"events-00000.index: entry {number} is damaged" for number in range(10, 10 + bad)]
    else:
        assert lines == [f"events-00000.index: {bad} entries from 10 to {9 + bad} are damaged"]


def sealed_entry(**values: int) -> bytes:
    entry = np.zeros(1, INDEX_DTYPE)
    for name, value in values.items():
        entry[name] = value
    entry["check"] = zlib.crc32(entry.tobytes()[:52])
    return entry.tobytes()


@pytest.mark.parametrize(
    "entry",
    [
        {"offset": 0, "length": 2**63, "rows": 1, "kind": 1},
        {"offset": 2**63, "length": 2**62, "rows": 1, "kind": 1},
        {"offset": 0, "length": 10, "rows": 2**32 - 1, "kind": 1},
        {"offset": 0, "length": 0, "rows": 5, "kind": 1},
        {"offset": 0, "length": 8, "rows": 5, "kind": 1, "crc": zlib.crc32(b"\xff" * 8)},
        {"offset": 0, "length": 8, "kind": 0, "crc": zlib.crc32(b"\xff" * 8)},
        {"first_seq": 2**63 - 1, "rows": 16_384, "kind": 1},
        {"kind": 99},
    ],
)
def test_hostile_index_entries_are_harmless(tmp_path: Path, entry: dict[str, int]) -> None:
    path = tmp_path / "t.kvtrace"
    Recorder(path, pool=POOL).close()
    (path / "events-00000.arrows").write_bytes(b"\xff" * 8)
    (path / "events-00000.index").write_bytes(sealed_entry(**entry))
    trace = open_trace(path)
    assert len(trace.events) == 0
    assert trace.warnings or entry == {"kind": 99}  # kinds of entries to come are passed over


def test_overlapping_batches_count_once(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.kvtrace"
    shutil.copytree(whole, target)
    for suffix in ("arrows", "index"):
        shutil.copy(target / f"events-00001.{suffix}", target / f"events-00009.{suffix}")
    trace = open_trace(target)
    np.testing.assert_array_equal(trace.events, open_trace(whole).events)


def manifest_with(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "m.kvtrace"
    Recorder(path, pool=POOL).close()
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= changes
    (path / "manifest.json").write_text(json.dumps(manifest | {"crc": manifest_crc(manifest)}))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": [2, 0]}, "trace format 2.0, this KVScope reads up to 1.x: update KVScope"),
        ({"version": "1.0"}, "no format version"),
        ({"version": [1]}, "no format version"),
        ({"version": [True, 0]}, "no format version"),
        ({"version": [-1, 0]}, "no format version"),
        ({"version": [1, -1]}, "no format version"),
        ({"version": [0, 9]}, "no format version"),
        ({"version": [10**40, 0]}, "no format version"),
        ({"format": "else"}, "is not a trace"),
        ({"pool": None}, "no usable pool geometry"),
        ({"pool": {}}, "no usable pool geometry: no num_blocks and block_size"),
        ({"pool": {"num_blocks": 4}}, "no usable pool geometry: no num_blocks and block_size"),
        ({"pool": ["num_blocks", "block_size"]}, "no usable pool geometry: no num_blocks and block_size"),
        ({"pool": "num_blocks block_size"}, "no usable pool geometry: no num_blocks and block_size"),
        ({"pool": {"num_blocks": 40.5, "block_size": 16}}, "num_blocks is a whole number, got 40.5"),
        ({"pool": {"num_blocks": True, "block_size": 16}}, "num_blocks is a whole number, got True"),
        ({"pool": {"num_blocks": 4, "block_size": 16.0}}, "block_size is a whole number, got 16.0"),
        ({"pool": {"num_blocks": 4, "block_size": None}}, "block_size is a whole number, got None"),
        ({"pool": {"num_blocks": 4, "block_size": 16, "block_bytes": [1]}}, "block_bytes is a whole number"),
        ({"pool": {"num_blocks": 4, "block_size": 16, "block_bytes": 10**40}}, "less than 2**63 bytes"),
        ({"pool": {"num_blocks": 4, "block_size": 16, "name": 7}}, "the name of a pool is text, got 7"),
        ({"pool": {"num_blocks": "4", "block_size": 16}}, "no usable pool geometry"),
        ({"pool": {"num_blocks": -4, "block_size": 16}}, "no usable pool geometry"),
    ],
)
def test_wrong_manifests_are_one_clear_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        open_trace(manifest_with(tmp_path, **changes))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value).replace(str(tmp_path), "")) < 200


@pytest.mark.parametrize("count", [10**40, -1, 1.5, True, "9", None, [1]])
def test_counts_that_are_none_count_nothing(tmp_path: Path, count: Any) -> None:
    trace = open_trace(manifest_with(tmp_path, events=count, dropped=count, clipped=count, clean=True))
    assert (trace.dropped, trace.gaps, trace.warnings) == (0, [], [])


def test_newer_minor_versions_and_unknown_members_are_read(tmp_path: Path) -> None:
    pool = {"num_blocks": 3, "block_size": 4, "block_bytes": 5, "colour": "red"}
    trace = open_trace(manifest_with(tmp_path, version=[1, 9], pool=pool, more={"a": 1}, dropped="?", events=-1))
    assert (trace.num_blocks, trace.block_size, trace.block_bytes) == (3, 4, 5)
    assert trace.warnings == []


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 100, b"[1]", b"{", b"[" * 100_000, b" " * (2 << 20), b'"text"'])
def test_a_manifest_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(TraceError, match="is not a trace") as caught:
        open_trace(tmp_path)
    assert "\n" not in str(caught.value)


def test_places_without_a_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is missing: no trace there"):
        open_trace(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="is not a trace, and holds none"):
        open_trace(tmp_path)
    (tmp_path / "a.kvtrace").mkdir()
    with pytest.raises(TraceError, match=r"is not a trace: it holds no manifest\.json"):
        open_trace(tmp_path / "a.kvtrace")
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="is not a trace folder"):
        open_trace(tmp_path / "file")
    (tmp_path / "folder" / "manifest.json").mkdir(parents=True)
    with pytest.raises(TraceError, match="cannot read"):
        open_trace(tmp_path / "folder")


def test_a_trace_is_never_written_over_unasked(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    with Recorder(path, pool=POOL) as first:
        first.emit(Kind.FREE)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(TraceError, match="there is one already; choose another path, or overwrite it"):
        Recorder(path, pool=POOL)
    assert len(open_trace(path).events) == 1
    Recorder(path, pool=POOL, overwrite=True).close()
    assert len(open_trace(path).events) == 0
    assert (path / "notes.txt").read_text() == "mine"


def test_places_where_no_trace_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="a file is in the way"):
        Recorder(tmp_path / "file", pool=POOL, overwrite=True)
    with pytest.raises(TraceError, match="Not a directory"):
        Recorder(tmp_path / "file" / "a.kvtrace", pool=POOL)
    with pytest.raises(TraceError, match="not empty and holds no trace"):
        Recorder(tmp_path, pool=POOL, overwrite=True)
    assert (tmp_path / "file").read_text() == "x"
    (tmp_path / "empty").mkdir()
    Recorder(tmp_path / "empty", pool=POOL).close()
    deep = tmp_path / "deep" / "er" / "a.kvtrace"
    Recorder(deep, pool=POOL).close()
    assert open_trace(deep).clean


def test_an_unwritable_parent_is_one_clear_line() -> None:
    place = Path("/proc/self/a.kvtrace")  # nobody, not even root, makes folders here
    with pytest.raises(TraceError, match=r"cannot write a trace to /proc/self/a\.kvtrace: ") as caught:
        Recorder(place, pool=POOL)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("record", [{}, {"a": 1}, {"b": [1]}, {"text": 'a"crc":"00000000"}'}, {"ä": "\u2028"}])
def test_lines_come_back(record: dict[str, Any]) -> None:
    line = dump_line(record)
    assert line.count(b"\n") == 1
    assert parse_line(line[:-1]) == record
    assert {**json.loads(line), "crc": ""} == {**record, "crc": ""}  # any JSON reader can do it


def test_late_records_are_found_behind_damage() -> None:
    parts = [dump_late(1, [5]), dump_late(2, []), dump_late(3, [7] * 100)]
    assert read_late(b"".join(parts)) == ({1: (5,), 2: (), 3: (7,) * 100}, 0, sum(map(len, parts)))
    broken = bytearray(b"".join(parts))
    broken[len(parts[0]) + 10] ^= 1
    found, damage, used = read_late(bytes(broken))
    assert (found, used) == ({1: (5,), 3: (7,) * 100}, len(broken))
    assert damage >= 1
    for cut in range(1, len(parts[2])):
        data = b"".join(parts)[:-cut]
        assert read_late(data) == ({1: (5,), 2: ()}, 0, len(parts[0]) + len(parts[1]))


def test_an_append_file_gives_up_at_a_bound(tmp_path: Path) -> None:
    full = True

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if full:
            raise OSError(28, "No space left on device")
        return os.pwrite(fd, data, offset)

    file = AppendFile(tmp_path / "f", pwrite)
    assert not file.append(b"a" * MAX_PENDING_BYTES)
    assert not file.append(b"b")
    assert file.lost == 1
    full = False
    assert file.append(b"") or file.flush()
    assert file.append(b"c")
    file.close()
    file.close()
    assert (tmp_path / "f").read_bytes() == b"a" * MAX_PENDING_BYTES + b"c"


def rows_from(first: int, last: int) -> np.ndarray[Any, Any]:
    rows = np.zeros(last - first, ROW_DTYPE)
    rows["aux"] = np.arange(first, last)
    return rows


NOTHING = (np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))


def test_batches_that_overlap_in_part_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "t.kvtrace"
    Recorder(path, pool=POOL).close()
    writer = SegmentWriter(path)
    for first, last in ((5, 10), (8, 14), (9, 12), (20, 22)):
        rows = rows_from(first, last)
        writer.append(encode_batch(rows, NOTHING), first, rows)
    writer.close()
    trace = open_trace(path)
    assert trace.seqs.tolist() == trace.events["aux"].tolist() == [*range(5, 14), 20, 21]
    assert trace.gaps == [(0, 5), (14, 20)]
    assert trace.warnings == ["events 0 to 4 are missing (5)", "events 14 to 19 are missing (6)"]


def test_hot_rows_alone_may_start_late(killed: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.kvtrace"
    shutil.copytree(killed, target)
    for path in target.glob("events-*"):
        path.unlink()
    trace = open_trace(target)
    assert 0 < len(trace.events) < ROWS
    assert trace.gaps == [(0, ROWS - len(trace.events))]


def test_a_write_that_fails_between_batch_and_index_is_made_good(tmp_path: Path) -> None:
    calls = 0

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls in (2, 5):
            raise OSError(28, "No space left on device")
        return os.pwrite(fd, data, offset)

    path = tmp_path / "t.kvtrace"
    Recorder(path, pool=POOL).close()
    writer = SegmentWriter(path, pwrite)
    for first in (0, 3):
        rows = rows_from(first, first + 3)
        for _ in range(4):
            try:
                writer.append(encode_batch(rows, NOTHING), first, rows)
                break
            except OSError:
                continue
    writer.close()
    trace = open_trace(path)
    assert trace.events["aux"].tolist() == list(range(6))
    assert trace.warnings == []


def test_a_hot_tail_that_cannot_be_read_is_said(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.kvtrace"
    shutil.copytree(whole, target)
    (target / "hot.bin").mkdir()
    trace = open_trace(target)
    assert len(trace.events) == ROWS
    assert "hot tail cannot be read" in trace.warnings[0]


@pytest.mark.parametrize("what", ["pipe", "link to a device", "link to a file", "folder"])
@pytest.mark.parametrize("name", ["manifest.json", "hot.bin", "sites.jsonl", "actors.jsonl", "facts.jsonl", "late.bin",
                                  "events-00000.arrows", "events-00000.index"])  # fmt: skip
def test_what_is_no_regular_file_is_never_read(killed: Path, tmp_path: Path, name: str, what: str) -> None:
    target = tmp_path / "t.kvtrace"
    shutil.copytree(killed, target)
    assert (target / name).exists()
    if what == "folder":
        (target / name).unlink()
        (target / name).mkdir()
    elif what == "pipe":
        (target / name).unlink()
        os.mkfifo(target / name)
    else:
        (target / name).rename(tmp_path / "moved")
        (target / name).symlink_to("/dev/zero" if "device" in what else tmp_path / "moved")
    if name == "manifest.json":
        with pytest.raises(TraceError, match=r"manifest\.json: it is not a regular file") as caught:
            open_trace(target)
        assert "\n" not in str(caught.value)
        return
    trace = open_trace(target)
    part = "hot tail" if name == "hot.bin" else name
    said = [line for line in trace.warnings if part in line and "it is not a regular file" in line]
    assert said, trace.warnings
    trace.refresh()
    assert [line for line in trace.warnings if line == said[0]] == said[:1]
    if name == "hot.bin" and what == "pipe":
        with pytest.raises(TraceError, match="it is not a regular file"):
            Recorder(target, pool=POOL, overwrite=True)


@pytest.mark.parametrize(
    "options", [{"hot_rows": 100}, {"hot_rows": 1}, {"seal_rows": 0}, {"hot_rows": 8, "seal_rows": 5}]
)
def test_impossible_sizes_are_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Recorder(tmp_path / "a.kvtrace", pool=POOL, **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="record is"):
        Recorder(tmp_path / "a.kvtrace", pool=POOL, record="loud")  # type: ignore[arg-type]
    assert not (tmp_path / "a.kvtrace").exists()


def test_a_row_that_never_comes_costs_only_what_is_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.traces.sealing._PATIENCE", 3)
    recorder = Recorder(tmp_path / "a.kvtrace", pool=POOL, sealing="inline", hot_rows=32, seal_rows=8)
    recorder.emit_many(Kind.FREE, aux=list(range(20)))
    recorder._marks[18] = 0  # as if its thread had been stopped in the middle
    seqs = [recorder.emit(Kind.FREE, aux=i) for i in range(20, 80)]
    assert seqs.count(-1) == recorder.dropped > 0
    recorder.close()
    trace = open_trace(recorder.path)
    assert not trace.clean
    assert trace.gaps == [(18, 19)]
    assert trace.events["aux"].tolist() == [i for i in range(80 - recorder.dropped) if i != 18]
