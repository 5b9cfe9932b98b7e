"""Files made to harm: every command that reads one says so in a clear line, in bounded memory, and writes nowhere else.

One child process runs every command on every file, under an address-space limit, and reports after each; the tests
look at its report.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kvscope.inspector.cli import COMMANDS
from kvscope.traces import EVENT_DTYPE, Frame, Kind, PoolFacts
from kvscope.traces.bulk import BulkWriter, empty_events
from kvscope.traces.files import dump_late, dump_line
from kvscope.traces.fold import BLOCK_BYTES
from kvscope.traces.manifest import manifest_crc
from kvscope.traces.pack import pack
from kvscope.traces.segment import BATCH_ENTRY, INDEX_DTYPE, SCHEMA_ENTRY

ADDRESS_SPACE = 6 << 30
MOST_RSS = 500 << 20  # bytes; a third of it is what the imports take
SPARSE = 1 << 36  # bytes of a file with nothing in it, 64 GiB
# What reads no trace and no file of a trace, or is a program that stays.
OTHERS = {"demo", "generate", "models", "serve", "plan", "fuzz", "faults", "bench", "dashboard"}

Entry = dict[str, Any]


def sound(path: Path) -> Path:
    """A small trace that is as it should be."""
    events = empty_events(40)
    events["kind"], events["block"], events["gen"] = Kind.WRITE, np.arange(40) % 4, 1
    with BulkWriter(path, pool=PoolFacts(4, 4, 64)) as writer:
        writer.rows(np.arange(40), events, (np.array([3]), np.array([0, 2]), np.array([1, 2])))
        writer.site(1, [Frame("a.py", 1, "f")])
        writer.actor(1, "MainThread")
        writer.fact({"type": "model", "name": "m"})
    return path


def most_resident() -> int:
    """Bytes this process has had in memory at most. (`ru_maxrss` of a child begins with what its parent had.)"""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) << 10


def manifest(path: Path, **members: Any) -> Path:
    """Change the manifest and make its checksum right again."""
    held = json.loads((path / "manifest.json").read_text()) | members
    (path / "manifest.json").write_text(json.dumps(held | {"crc": manifest_crc(held)}))
    return path


def segment(path: Path, schema: pa.Schema, messages: list[bytes], rows: int = 40, **entry: int) -> Path:
    """Put other messages into the segment, with index and checksums that vouch for them."""
    data, index = b"", b""
    for what, message in [(SCHEMA_ENTRY, bytes(schema.serialize())), *((BATCH_ENTRY, m) for m in messages)]:
        line = np.zeros(1, INDEX_DTYPE)
        line[0] = (len(data), len(message), 0, 0, 0, rows if what else 0, zlib.crc32(message), what, 0)
        for name, value in entry.items() if what else ():
            line[name] = value
        line["check"] = zlib.crc32(line.tobytes()[:-4])
        data, index = data + message, index + line.tobytes()
    (path / "events-00000.arrows").write_bytes(data)
    (path / "events-00000.index").write_bytes(index)
    return path


def message(batch: pa.RecordBatch, codec: str | None = None) -> bytes:
    """One framed Arrow batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()[len(bytes(batch.schema.serialize())) : -8]


def columns(count: int) -> dict[str, pa.Array]:
    return {name: pa.array(np.zeros(count, EVENT_DTYPE[name])) for name in EVENT_DTYPE.names or ()}


def random_bytes(path: Path) -> Path:
    path.write_bytes(random.Random(1).randbytes(100_000))
    return path


def random_folder(path: Path) -> Path:
    for i, file in enumerate(sorted(sound(path).iterdir())):
        file.write_bytes(random.Random(i).randbytes(5000))
    return path


def random_segment(path: Path) -> Path:
    (sound(path) / "events-00000.arrows").write_bytes(random.Random(2).randbytes(5000))
    return path


def random_message(path: Path) -> Path:
    return segment(sound(path), pa.schema([("kind", pa.uint8())]), [random.Random(3).randbytes(3000)])


def huge_lengths(path: Path) -> Path:
    batch = pa.record_batch(columns(40))
    return segment(sound(path), batch.schema, [message(batch)], length=2**63, offset=0)


def huge_rows(path: Path) -> Path:
    batch = pa.record_batch(columns(40))
    return segment(sound(path), batch.schema, [message(batch)], rows=2**32 - 1)


def far_seq(path: Path) -> Path:
    batch = pa.record_batch(columns(40))
    return segment(sound(path), batch.schema, [message(batch)], first_seq=2**63 - 41)


def wrong_schema(path: Path) -> Path:
    batch = pa.record_batch({"kind": pa.array(["ALLOC"] * 40), "t_ns": pa.array([1.5] * 40)})
    return segment(sound(path), batch.schema, [message(batch)])


def bomb_in_arrow(path: Path) -> Path:
    """16 KiB that unpack to 4 GiB: the details of one row."""
    many = pa.array(np.zeros(1 << 27, np.int64))
    lists = pa.ListArray.from_arrays(pa.array([0] * 40 + [1 << 27], pa.int32()), many)
    batch = pa.record_batch({**columns(40), "detail": lists})
    return segment(sound(path), batch.schema, [message(batch, "zstd")])


def huge_pool(path: Path) -> Path:
    return manifest(sound(path), pool={"num_blocks": 2**31 - 1, "block_size": 32767, "block_bytes": 2**31})


def spread_rows(path: Path, blocks: int, first: list[dict[str, int]] | None = None) -> Path:
    """A row for every 64th part of a pool of so many blocks, behind some others."""
    rows = empty_events(64 + len(first or ()))
    rows["kind"], rows["gen"], rows["ref_before"], rows["ref_after"], rows["seq_id"] = Kind.ALLOC, 1, 0, 1, 7
    rows["block"] = np.linspace(0, blocks - 1, len(rows))
    for i, columns in enumerate(first or ()):
        rows[i] = empty_events(1)[0]
        for name, value in columns.items():
            rows[name][i] = value
    with BulkWriter(path, pool=PoolFacts(4 if first else blocks, 4, 64)) as writer:
        writer.rows(np.arange(len(rows)), rows)
    return path


def huge_pool_in_use(path: Path) -> Path:
    return spread_rows(path, 2**31 - 1)


def large_pool_in_use(path: Path) -> Path:
    """As large as a pool of our own engine may be."""
    return spread_rows(path, 1 << 24)


def grown_pool(path: Path) -> Path:
    return spread_rows(path, 1 << 24, [{"kind": Kind.GROW, "aux": 1 << 24, "lblock": 4}])


def writers_of_any_size(path: Path) -> Path:
    """One after the other goes on with the trace, each with a pool of another size."""
    sizes = (-(2**63), -(2**31), -(1 << 24), -(1 << 22), 2**63 - 1, -5)
    return spread_rows(path, 1 << 24, [{"kind": Kind.GAP, "aux": size} for size in sizes])


def bomb_in_base(path: Path, blocks: int = 1 << 24) -> Path:
    """What was let go is said to have been of blocks that nobody ever touched: all zeros, well deflated."""
    fold = np.asarray([blocks, blocks], "<i8").tobytes() + zlib.compress(bytes(blocks * BLOCK_BYTES), 9)
    body = struct.pack("<q", 0) + fold
    (sound(path) / "base.bin").write_bytes(struct.pack("<8sI", b"KVSBASE1", zlib.crc32(body)) + body)
    return path


def bomb_in_base_of_large_pool(path: Path) -> Path:
    return manifest(bomb_in_base(path), pool={"num_blocks": 1 << 24, "block_size": 4, "block_bytes": 64})


def bomb_in_base_lines(path: Path) -> Path:
    path.write_text(
        '{"record":"trace","format":"kvscope-jsonl","version":1,"manifest":{"pool":{"num_blocks":4,"block_size":4}}}\n'
        '{"record":"base","before":1,"num_blocks":16777216,"blocks":16777216}\n{"record":"block","i":16777215,"gen":1}\n'
        '{"record":"end","events":0,"facts":0}\n'
    )
    return path


def odd_manifest(path: Path) -> Path:
    return manifest(sound(path), meta="x", clock=[1], engine={"a": 1}, events=-5, dropped="many", record=7)


def deep_manifest(path: Path) -> Path:
    (sound(path) / "manifest.json").write_text("[" * 200_000)
    return path


def sparse_manifest(path: Path) -> Path:
    return grow(sound(path), "manifest.json")


def newer(path: Path) -> Path:
    return manifest(sound(path), version=[99, 0])


def grow(path: Path, name: str, size: int = SPARSE) -> Path:
    with open(path / name, "ab") as file:
        file.truncate(size)
    return path


def sparse_segment(path: Path) -> Path:
    return grow(sound(path), "events-00000.arrows", 1 << 28)  # as much as `pack` may copy in a test


def hot_of_terabytes(path: Path) -> Path:
    (sound(path) / "hot.bin").write_bytes(b"KVSHOT01" + struct.pack("<IIQ", 56, 72, 2**40))
    return path


def links(path: Path) -> Path:
    for name, target in (("facts.jsonl", "/etc/passwd"), ("events-00000.arrows", "/dev/zero"), ("late.bin", "..")):
        (sound(path) if not path.exists() else path).joinpath(name).unlink()
        (path / name).symlink_to(target)
    return path


def linked_manifest(path: Path) -> Path:
    (sound(path) / "manifest.json").unlink()
    (path / "manifest.json").symlink_to("/dev/zero")
    return path


def pipes(path: Path) -> Path:
    for name in ("facts.jsonl", "events-00000.index"):
        (sound(path) if not path.exists() else path).joinpath(name).unlink()
        os.mkfifo(path / name)
    return path


def odd_facts(path: Path) -> Path:
    facts = [
        {"type": "request", "request": "x", "seq_ids": 5, "prompt_tokens": None},
        {"type": "request", "request": 1, "seq_ids": ["a", {}], "prompt_tokens": "3"},
        {"type": "request"}, {"type": "sample", "seq_id": []}, {"type": "output", "seq_id": 1, "tokens": "many"},
        {"type": "model", "max_model_len": "long", "bytes_per_token": [], "name": 7}, {"type": ["model"]}, {"type": 3},
    ]  # fmt: skip
    (sound(path) / "facts.jsonl").write_bytes(b"".join(map(dump_line, facts)))
    return path


def late_of_anything(path: Path) -> Path:
    (sound(path) / "late.bin").write_bytes(dump_late(2**62, [1]) + dump_late(0, range(5000)) + b"LATE" + b"\xff" * 40)
    return path


def odd_events(path: Path) -> Path:
    """Every kind with every column at an end of its range."""
    rows = empty_events(512)
    rows["kind"], rows["reason"] = np.arange(512) % 256, np.arange(512) % 256
    for name in EVENT_DTYPE.names or ():
        if name not in ("kind", "reason"):
            info = np.iinfo(EVENT_DTYPE[name])
            rows[name] = np.where(np.arange(512) < 256, info.min, info.max)
    with BulkWriter(path, pool=PoolFacts(4, 4, 64)) as writer:
        writer.rows(np.arange(512), rows)
    return path


def zip_of(path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    made = sound(path.with_suffix(".source"))
    with zipfile.ZipFile(path, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice is meant
        for file in sorted(made.iterdir()):
            archive.write(file, file.name)
        for name, data in members:
            archive.writestr(name, data)
    shutil.rmtree(made)
    return path


def zip_upward(path: Path) -> Path:
    return zip_of(path, [("../escaped.txt", b"x"), ("../../escaped.txt", b"x"), ("a/../../escaped.txt", b"x")])


def zip_absolute(path: Path) -> Path:
    return zip_of(path, [(str(path.parent.parent / "escaped.txt"), b"x")])


def zip_link(path: Path) -> Path:
    link = zipfile.ZipInfo("facts.jsonl")
    link.external_attr = 0o120777 << 16
    return zip_of(path, [(link, b"/etc/passwd")])


def zip_bomb(path: Path) -> Path:
    return zip_of(path, [("late.bin", bytes(1 << 26))], zipfile.ZIP_DEFLATED)


def zip_cut(path: Path) -> Path:
    data = zip_of(path, []).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def zip_of_lies(path: Path) -> Path:
    """Every size and offset of the directory is enormous."""
    data = zip_of(path, []).read_bytes()
    at = data.rindex(b"PK\x05\x06")
    path.write_bytes(data[: at + 8] + b"\xff" * 12 + data[at + 20 :])
    return path


def sparse_pack(path: Path) -> Path:
    pack(sound(path.with_suffix(".source")), path)
    shutil.rmtree(path.with_suffix(".source"))
    with open(path, "ab") as file:
        file.truncate(SPARSE)
    return path


def endless_lines(path: Path) -> Path:
    path.write_text('{"record":"trace","format":"kvscope-jsonl","version":1,"manifest":{"pool":{"num_blocks":4,')
    with open(path, "ab") as file:
        file.truncate(SPARSE)
    return path


def a_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def a_device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    maker.__name__: maker
    for maker in (
        random_bytes, random_folder, random_segment, random_message, huge_lengths, huge_rows, far_seq, wrong_schema,
        bomb_in_arrow, huge_pool, odd_manifest, deep_manifest, sparse_manifest, newer, sparse_segment, hot_of_terabytes,
        huge_pool_in_use, large_pool_in_use, grown_pool, writers_of_any_size, bomb_in_base, bomb_in_base_of_large_pool,
        bomb_in_base_lines, links, linked_manifest, pipes,
        odd_facts, late_of_anything, odd_events, zip_upward, zip_absolute, zip_link,
        zip_bomb, zip_cut, zip_of_lies, sparse_pack, endless_lines, a_pipe, a_device,
    )
}  # fmt: skip
POOLS = {"huge_pool", "huge_pool_in_use", "large_pool_in_use", "grown_pool", "writers_of_any_size", "bomb_in_base"}
THOROUGH = POOLS | {"bomb_in_arrow", "odd_facts", "odd_events", "far_seq", "late_of_anything", "zip_link"}
TABLES = ("events", "details", "sites", "facts", "blocks", "sequences", "findings")


def calls(path: str) -> Iterator[list[str]]:
    """Every command on a file; every form of it on those files that get as far as its own code."""
    whole = path in THOROUGH
    counted = ", ".join(f"(SELECT count(*) FROM {table})" for table in (TABLES if whole else TABLES[:2]))
    forms = ("perfetto", "parquet", "jsonl", "csv", "ilens") if whole else ("perfetto", "jsonl")
    special = {
        "query": [["query", path, f"SELECT {counted}"]],
        "export": [["export", path, "--to", to, "--out", f"out/{to}", "--overwrite"] for to in forms],
        "import": [["import", path, "--from", "jsonl", "--out", "out/imported", "--overwrite"]],
        "pack": [["pack", path, "out/packed", "--overwrite"]],
        "unpack": [["unpack", path, "out/unpacked"]],
        "compare": [["compare", path, path]],
        "top": [["top", path, "--once"], ["top", path, "--json"]],
        "explain": [["explain", path, "--request", "0"]],
    }  # fmt: skip
    for name in COMMANDS:
        if name not in OTHERS:
            yield from special.get(name, [[name, path]])


def drive(names: list[str]) -> None:
    """The child: run every command on every file in the working folder, and report each as a line of JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    import typer

    from kvscope.inspector import cli

    report, command = os.dup(1), typer.main.get_command(cli.build())
    typer.main.get_command = lambda _: command  # made once: making it takes longer than most calls
    for name in names:
        for call in calls(name):
            out, err, began = io.StringIO(), io.StringIO(), time.process_time()
            shutil.rmtree("out/unpacked", ignore_errors=True)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    status: int | str = cli.run(call)
                except BaseException as error:  # noqa: BLE001 - a traceback is what is looked for
                    status = f"{type(error).__name__}: {error}"
            peak = most_resident()
            entry = {"file": name, "call": call, "status": status, "err": err.getvalue(), "out": out.getvalue()[:2000],
                     "peak": peak, "seconds": time.process_time() - began}  # fmt: skip
            os.write(report, json.dumps(entry).encode() + b"\n")


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every path below a folder but those below `out`, with its size and time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if "out" not in path.relative_to(folder).parts:
            state = path.lstat()
            found[str(path)] = state.st_size if path.is_file() else 0, state.st_mtime_ns
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Entry]]:
    work = tmp_path_factory.mktemp("hostile") / "a" / "b"
    (work / "out").mkdir(parents=True)
    for name, make in MAKERS.items():
        make(work / name)
    os.utime(work, (0, 0))
    before = tree(work.parent.parent)
    command = [sys.executable, str(Path(__file__)), *MAKERS]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""
    after = tree(work.parent.parent)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} - {str(work)}
    assert changed == set(), "something was written outside the target"
    assert not any("partial" in path.name for path in (work / "out").iterdir())
    entries: dict[str, list[Entry]] = {name: [] for name in MAKERS}
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        entries[entry["file"]].append(entry)
    return entries


@pytest.mark.parametrize("name", MAKERS)
def test_hostile(report: dict[str, list[Entry]], name: str) -> None:
    entries = report[name]
    assert len(entries) == len(list(calls(name)))
    for entry in entries:
        assert entry["status"] in (0, 1, 2), entry
        lines = entry["err"].splitlines()
        assert all(line.startswith(("kvscope: ", "out/")) and len(line) < 600 for line in lines), entry
        errors = [line for line in lines if line.startswith("kvscope: error: ")]
        assert len(errors) <= 1, entry
        assert bool(errors) == (entry["status"] == 2) or "nothing to check" in entry["out"], entry
        assert "Traceback" not in entry["err"], entry
        assert entry["peak"] < MOST_RSS, entry
        assert entry["seconds"] < 30, entry


def test_what_is_no_trace_is_refused_by_all(report: dict[str, list[Entry]]) -> None:
    for name in ("random_bytes", "random_folder", "deep_manifest", "linked_manifest", "newer", "zip_cut", "a_pipe"):
        assert {entry["status"] for entry in report[name]} == {2}, name


if __name__ == "__main__":
    drive(sys.argv[1:])
