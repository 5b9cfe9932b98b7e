"""A trace as one file: the same trace, read in place or unpacked; and files that lie about themselves."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.errors import TraceError
from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace, pack, unpack

POOL = PoolFacts(num_blocks=64, block_size=16)
SAMPLES = sorted((Path(__file__).resolve().parents[2] / "traces" / "samples").glob("*.kvtrace"))


def fill(sink: Recorder, rows: int = 300) -> None:
    for i in range(rows):
        sink.begin()
        seq = sink.emit(Kind.FREE, block=i % 64, lblock=i, aux=i * 7)
        if i % 3 == 0:
            sink.detail(seq, range(i % 11))
    sink.fact({"name": "Grüße"})


def same(one: TraceReader, other: TraceReader) -> None:
    np.testing.assert_array_equal(one.events, other.events)
    np.testing.assert_array_equal(one.seqs, other.seqs)
    assert [one.detail(s) for s in one.seqs.tolist()] == [other.detail(s) for s in one.seqs.tolist()]
    for name in ("sites", "actors", "facts", "warnings", "gaps", "manifest", "clean", "dropped", "missing"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_packed_and_unpacked_it_is_the_same_trace(tmp_path: Path, sample: Path) -> None:
    packed = pack(sample, tmp_path / "a.kvpack")
    same(open_trace(sample), open_trace(packed))
    same(open_trace(sample), open_trace(unpack(packed, tmp_path / "deep" / "b.kvtrace")))
    again = pack(tmp_path / "deep" / "b.kvtrace", tmp_path / "c.kvpack")
    assert again.read_bytes() == packed.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.kvpack", "c.kvpack", "deep"]


def test_a_growing_trace_can_be_packed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=POOL, hot_rows=256, seal_rows=64, sealing="inline") as sink:
        fill(sink)
        live = open_trace(sink.path)
        packed = open_trace(pack(sink.path, tmp_path / "a.kvpack"))
        np.testing.assert_array_equal(live.events, packed.events)
        assert [live.detail(i) for i in range(300)] == [packed.detail(i) for i in range(300)]
        assert live.live
        assert not packed.live
        assert packed.warnings == ["the trace was not closed: its writer was stopped; all that it acknowledged is here"]
        fill(sink)
        assert not packed.refresh()
    assert (tmp_path / "a.kvpack").stat().st_size < 100_000  # of the hot tail only the rows


def test_what_is_in_the_way_stays(tmp_path: Path) -> None:
    packed = pack(SAMPLES[0], tmp_path / "a.kvpack")
    before = packed.read_bytes()
    with pytest.raises(TraceError, match="there already; choose another name"):
        pack(SAMPLES[1], packed)
    assert packed.read_bytes() == before
    pack(SAMPLES[1], packed, overwrite=True)
    same(open_trace(packed), open_trace(SAMPLES[1]))
    with pytest.raises(TraceError, match="is packed already"):
        pack(packed, tmp_path / "b.kvpack")
    with pytest.raises(TraceError, match="is a folder, not a packed trace"):
        unpack(SAMPLES[0], tmp_path / "b")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for target in ("full", "link", "a.kvpack"):
        with pytest.raises(TraceError, match=r"there already and (not empty|is no folder)"):
            unpack(packed, tmp_path / target)
    (tmp_path / "empty").mkdir()
    unpack(packed, tmp_path / "empty")
    assert os.listdir(tmp_path / "full") == ["mine"]
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(TraceError, match=r"cannot write .*is no folder"):
        unpack(packed, packed / "below")


def archive(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED, mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = compression
            out.writestr(info, content)
    return path


@pytest.fixture
def members() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in SAMPLES[0].iterdir()}


def refused(path: Path, tmp_path: Path, match: str) -> None:
    around = sorted(tmp_path.rglob("*"))
    for attempt in (lambda: open_trace(path), lambda: unpack(path, tmp_path / "in" / "out.kvtrace")):
        with pytest.raises(TraceError, match=match) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == around


@pytest.mark.parametrize(
    "name",
    ["../evil", "/evil", "a/b", "..", ".", "C:\\evil", "a\\b", "events-00000.arrows/../../evil", ".hidden", "é"],
)
def test_names_that_lead_elsewhere(tmp_path: Path, members: dict[str, bytes], name: str) -> None:
    refused(archive(tmp_path / "a.kvpack", {**members, name: b"evil"}), tmp_path, "which no trace does")


def test_links_doubles_and_compressed_members(tmp_path: Path, members: dict[str, bytes]) -> None:
    link = stat.S_IFLNK | 0o777
    refused(archive(tmp_path / "a.kvpack", members, mode=link), tmp_path, "which no trace does")
    bomb = {**members, "facts.jsonl": bytes(50_000_000)}
    refused(archive(tmp_path / "b.kvpack", bomb, zipfile.ZIP_DEFLATED), tmp_path, "compressed or encrypted")
    with (
        pytest.warns(UserWarning, match="Duplicate"),
        zipfile.ZipFile(archive(tmp_path / "c.kvpack", members), "a") as z,
    ):
        z.writestr("manifest.json", b"{}")
    refused(tmp_path / "c.kvpack", tmp_path, "it holds 'manifest.json' twice")


def test_unknown_files_of_a_newer_version_are_passed_over(tmp_path: Path, members: dict[str, bytes]) -> None:
    packed = archive(tmp_path / "a.kvpack", {**members, "newer.bin": b"x"})
    same(open_trace(packed), open_trace(SAMPLES[0]))
    assert not (unpack(packed, tmp_path / "b") / "newer.bin").exists()


def test_any_cut_and_any_random_bytes_are_one_line(tmp_path: Path) -> None:
    data = pack(SAMPLES[1], tmp_path / "a.kvpack").read_bytes()
    rng = np.random.default_rng(0)
    for number in range(120):
        changed = bytearray(data)
        if number % 3 == 0:
            del changed[int(rng.integers(len(changed))) :]
        elif number % 3 == 1:
            changed[-int(rng.integers(1, 900)) :] = rng.bytes(40)
        else:  # the directory and the end record lie
            at = len(changed) - int(rng.integers(4, 900))
            changed[at : at + 4] = struct.pack("<I", int(rng.integers(2**32)))
        path = tmp_path / "b.kvpack"
        path.write_bytes(changed)
        for attempt in (lambda path=path: open_trace(path).events, lambda path=path: unpack(path, tmp_path / "out")):
            with contextlib.suppress(TraceError):  # anything else is a failure
                attempt()
        for made in (tmp_path / "out").glob("*"):
            made.unlink()
    path.write_bytes(rng.bytes(5000))
    refused(path, tmp_path, "is not a trace folder, nor a packed trace")


def test_a_huge_directory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.kvpack"
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<HHHHHII", 1, 0, 0, 0, 0, 0, 0) + b"x"
    directory = entry * 200_000
    end = struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, 1, 1, len(directory), 0, 0)
    path.write_bytes(directory + end)
    refused(path, tmp_path, "its directory claims")


@pytest.mark.parametrize("flip", range(0, 4000, 97))
def test_a_flipped_bit_in_a_packed_trace_is_found(tmp_path: Path, flip: int) -> None:
    packed = pack(SAMPLES[1], tmp_path / "a.kvpack")
    data = bytearray(packed.read_bytes())
    with zipfile.ZipFile(packed) as z:
        spans = [(i.header_offset + 30 + len(i.filename), i.file_size) for i in z.infolist() if "events" in i.filename]
    at, size = spans[flip % len(spans)]
    data[at + flip % size] ^= 1 << flip % 8
    packed.write_bytes(data)
    trace, whole = open_trace(packed), open_trace(SAMPLES[1])
    if len(trace.events) < len(whole.events):
        assert len(trace.warnings) > len(whole.warnings)
    else:  # a schema, or an end mark, that the reader does not need
        np.testing.assert_array_equal(trace.events, whole.events)
    unpack(packed, tmp_path / "b")  # and the reader says the same of the folder
    assert open_trace(tmp_path / "b").warnings == trace.warnings


def test_an_interrupted_unpack_leaves_nothing(tmp_path: Path) -> None:
    packed = pack(SAMPLES[0], tmp_path / "a.kvpack")
    code = """
import resource, sys
from kvscope.errors import TraceError
from kvscope.traces import pack, unpack
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for call in (lambda: unpack(sys.argv[1], sys.argv[2]), lambda: pack(sys.argv[3], sys.argv[4])):
    try:
        call()
    except TraceError as error:
        print(error)
"""
    arguments: list[Any] = [packed, tmp_path / "b.kvtrace", SAMPLES[1], tmp_path / "c.kvpack"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    assert done.stdout.count("File too large") == 2
    assert os.listdir(tmp_path) == ["a.kvpack"]
