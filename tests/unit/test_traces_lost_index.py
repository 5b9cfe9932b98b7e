"""A sidecar index that is lost: its entries are made again from the stream, and no event gets a wrong number."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.inspector.cli import main
from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace, pack, unpack
from kvscope.traces.rebuild import Lost, place_batches
from kvscope.traces.segment import ENTRY_BYTES

POOL = PoolFacts(num_blocks=64, block_size=16)
ROWS, BATCH, SEGMENT = 360, 32, 3  # twelve batches, the last of eight rows, in four segments


def fill(sink: Recorder, first: int, count: int) -> None:
    for i in range(first, first + count):
        sink.begin()
        sink.detail(sink.emit(Kind.FREE, block=i % 64, aux=i * 7), [i] * (i % 5))


def recorder(path: Path, **options: bool) -> Recorder:
    return Recorder(path, pool=POOL, sealing="inline", hot_rows=128, seal_rows=BATCH, max_batches=SEGMENT, **options)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trace that was closed; one whose writer was killed; and the killed one gone on with, and closed."""
    folder = tmp_path_factory.mktemp("sources")
    with recorder(folder / "closed.kvtrace") as sink:
        fill(sink, 0, ROWS)
    with recorder(folder / "a.kvtrace") as sink:
        fill(sink, 0, ROWS - 50)
        shutil.copytree(sink.path, folder / "killed.kvtrace")
    shutil.copytree(folder / "killed.kvtrace", folder / "resumed.kvtrace")
    with recorder(folder / "resumed.kvtrace", resume=True) as sink:
        fill(sink, ROWS - 50, 100)
    return {name: folder / f"{name}.kvtrace" for name in ("closed", "killed", "resumed")}


def copy(source: Path, target: Path) -> Path:
    if target.exists():
        shutil.rmtree(target)
    return shutil.copytree(source, target)


def same_rows(trace: TraceReader, original: TraceReader) -> None:
    np.testing.assert_array_equal(trace.seqs, original.seqs)
    np.testing.assert_array_equal(trace.events, original.events)
    assert [trace.detail(s) for s in trace.seqs.tolist()] == [original.detail(s) for s in original.seqs.tolist()]
    assert trace.gaps == []
    assert trace.missing == original.missing


def no_wrong_row(trace: TraceReader, original: TraceReader) -> None:
    position = np.searchsorted(original.seqs, trace.seqs)
    np.testing.assert_array_equal(original.seqs[position], trace.seqs)
    np.testing.assert_array_equal(original.events[position], trace.events)
    assert trace.warnings or len(trace.seqs) == len(original.seqs)


def said(trace: TraceReader) -> list[str]:
    return [line for line in trace.warnings if "without their checksum" in line]


@pytest.mark.parametrize("how", ["removed", "emptied"])
@pytest.mark.parametrize("name", ["closed", "killed", "resumed"])
def test_any_of_the_indexes_may_be_lost(sources: dict[str, Path], tmp_path: Path, name: str, how: str) -> None:
    original, target = open_trace(sources[name]), tmp_path / "t.kvtrace"
    segments = sorted(file.stem for file in sources[name].glob("*.index"))
    choices = [*itertools.combinations(segments, 1), *itertools.combinations(segments, 2), tuple(segments)]
    for lost in choices:
        copy(sources[name], target)
        for segment in lost:
            index = target / f"{segment}.index"
            index.unlink() if how == "removed" else index.write_bytes(b"")
        before = sorted((file.name, file.stat().st_size) for file in target.iterdir())
        trace = open_trace(target)
        same_rows(trace, original)
        lines = said(trace)
        assert [line.split(" ")[0] for line in lines] == [f"{segment}.index" for segment in lost]
        assert all("is lost: " in line for line in lines)
        assert sorted(set(trace.warnings) - set(lines)) == sorted(original.warnings)
        trace.refresh()
        assert said(trace) == lines
        assert sorted((file.name, file.stat().st_size) for file in target.iterdir()) == before  # a reader only reads


def test_an_index_cut_anywhere_loses_nothing(sources: dict[str, Path], tmp_path: Path) -> None:
    for name, segment in (("closed", 1), ("closed", 3), ("killed", 2)):
        original = open_trace(sources[name])
        size = (sources[name] / f"events-0000{segment}.index").stat().st_size
        for cut in [*range(0, size, ENTRY_BYTES), *range(20, size, ENTRY_BYTES)]:
            target = copy(sources[name], tmp_path / "t.kvtrace")
            with open(target / f"events-0000{segment}.index", "r+b") as file:
                file.truncate(cut)
            trace = open_trace(target)
            same_rows(trace, original)
            (line,) = said(trace)
            left = max(cut // ENTRY_BYTES - 1, 0)
            assert line.startswith(f"events-0000{segment}.index is {'incomplete' if left else 'lost'}: ")


def test_a_flipped_entry_costs_nothing_and_a_flipped_batch_costs_itself(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    original = open_trace(sources["closed"])
    for entry in range(SEGMENT + 1):
        target = copy(sources["closed"], tmp_path / "t.kvtrace")
        index = bytearray((target / "events-00001.index").read_bytes())
        index[entry * ENTRY_BYTES + 18] ^= 4
        (target / "events-00001.index").write_bytes(index)
        trace = open_trace(target)
        same_rows(trace, original)
        assert any(f"entry {entry} is damaged" in line for line in trace.warnings)
        assert len(said(trace)) == bool(entry)  # entry 0 is the schema's
        data = bytearray((target / "events-00001.arrows").read_bytes())
        data[-40] ^= 4  # of the last batch; its entry is whole but for the last round
        (target / "events-00001.arrows").write_bytes(data)
        trace = open_trace(target)
        if entry < SEGMENT:
            assert trace.gaps == [(5 * BATCH, 6 * BATCH)]
            no_wrong_row(trace, original)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_cuts_and_losses_at_random_never_make_a_wrong_row(
    sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    name = rng.choice(sorted(sources))
    target = copy(sources[name], tmp_path_factory.mktemp("cut") / "t.kvtrace")
    files = sorted(target.glob("events-*"))
    for file in rng.sample(files, rng.randrange(1, len(files))):
        if rng.random() < 0.3:
            file.unlink()
        else:
            with open(file, "r+b") as opened:
                opened.truncate(rng.randrange(file.stat().st_size + 1))
    if rng.random() < 0.2:
        (target / "hot.bin").unlink(missing_ok=True)
    no_wrong_row(open_trace(target), open_trace(sources[name]))
    shutil.rmtree(target)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_hostile_streams_without_an_index_are_harmless(
    sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    rng = random.Random(seed)
    target = copy(sources["closed"], tmp_path_factory.mktemp("hostile") / "t.kvtrace")
    for index in target.glob("*.index"):
        index.unlink()
    for file in target.glob("*.arrows"):
        data = bytearray(file.read_bytes())
        for _ in range(rng.randrange(4)):
            at = rng.choice([rng.randrange(len(data) - 8), rng.randrange(0, 64)])
            data[at : at + 4] = rng.choice([rng.randbytes(4), b"\xff\xff\xff\x7f", b"\0\0\0\0", b"\xff\xff\xff\xff"])
        file.write_bytes(data)
    trace = open_trace(target)
    assert (np.diff(trace.seqs) > 0).all()
    assert len(trace.events) <= ROWS
    assert trace.warnings
    shutil.rmtree(target)


@pytest.mark.parametrize("name", ["closed", "killed"])
def test_a_pack_takes_the_segment_along(sources: dict[str, Path], tmp_path: Path, name: str) -> None:
    target = copy(sources[name], tmp_path / "t.kvtrace")
    (target / "events-00001.index").unlink()
    folder = open_trace(target)
    packed = pack(target, tmp_path / "t.kvpack")
    for other in (open_trace(packed), open_trace(unpack(packed, tmp_path / "u.kvtrace"))):
        same_rows(other, open_trace(sources[name]))
        assert other.warnings == folder.warnings
        assert said(other) == ["events-00001.index is lost: 96 events were read without their checksum"]


@pytest.mark.parametrize("name", ["closed", "killed"])
@pytest.mark.parametrize("cut", [None, 0, 2 * ENTRY_BYTES, 2 * ENTRY_BYTES + 9])
def test_going_on_keeps_the_events_and_makes_the_index(
    sources: dict[str, Path], tmp_path: Path, name: str, cut: int | None
) -> None:
    original = open_trace(sources[name])
    target = copy(sources[name], tmp_path / "t.kvtrace")
    for index in target.glob("*.index"):
        whole = index.read_bytes()
        index.unlink() if cut is None else index.write_bytes(whole[:cut])
    with recorder(target, resume=True) as sink:
        follower = open_trace(target)
        assert follower.live
        np.testing.assert_array_equal(follower.events[: len(original.events)], original.events)
        fill(sink, ROWS, 40)
    trace = open_trace(target)
    assert trace.warnings == []
    assert trace.seqs.tolist() == list(range(len(original.seqs) + 41))
    np.testing.assert_array_equal(trace.events[: len(original.events)], original.events)
    for index in sources["closed"].glob("*.index") if name == "closed" else ():
        assert (target / index.name).read_bytes() == index.read_bytes()


def test_a_reader_that_has_looked_before_sees_rows_in_their_places(sources: dict[str, Path], tmp_path: Path) -> None:
    """The index was lost while the writer was alive, when nothing is made again; then it died."""
    target = tmp_path / "t.kvtrace"
    with recorder(target) as sink:
        fill(sink, 0, 300)
        kept = (target / "events-00001.index").read_bytes()
        (target / "events-00001.index").unlink()
        trace = open_trace(target)
        seen = trace.events
        before = seen.copy()
        assert trace.gaps == [(96, 192)]
        assert said(trace) == []
    trace.refresh()
    assert trace.gaps == []
    assert trace.events["aux"].tolist() == [i * 7 for i in range(300)]
    np.testing.assert_array_equal(seen, before)
    assert len(said(trace)) == 1
    (target / "events-00001.index").write_bytes(kept)
    assert said(open_trace(target)) == []


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_commands_say_it(
    sources: dict[str, Path], tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    target = copy(sources["closed"], tmp_path / "t.kvtrace")
    (target / "events-00001.index").unlink()
    monkeypatch.setattr(sys, "argv", ["kvscope", command, str(target)])
    with contextlib.suppress(SystemExit):
        main()
    told = " ".join(" ".join(capsys.readouterr()).split())
    assert "events-00001.index is lost: 96 events were read without their checksum" in told


def lost(*rows: int) -> list[Lost]:
    return [Lost(None, 0, 0, n) for n in rows]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("groups", "at", "ends", "numbers", "left_out"),
    [
        ([[4, 4]], 0, [8], [0, 4], 0),
        ([[4, 4, 2], []], 0, [8], [0, 4], 0),  # the last has been written again by the next writer
        ([[4, 2], []], 8, [8], [], 0),
        ([[4, 4]], 0, [12], [], 2),  # a hole, and nobody knows where
        ([[4, 4], []], 0, [12], [0, 4], 0),  # torn behind
        ([[4, 4], [2]], 0, [20], [0, 4, 18], 0),
        ([[4], [4], [4]], 0, [20], [0, 16], 1),
        ([[], [4]], 0, [20], [16], 0),
        ([[], [4, 4], []], 8, [16], [8, 12], 0),
        ([[4, 4]], 3, [], [3, 7], 0),
        ([[], [8]], 3, [9], [], 1),  # more than there is room for
        ([[4, 4], []], 0, [9, 4], [0], 0),  # the likeliest end does not fit, the next does
    ],
)  # fmt: skip
def test_where_a_run_belongs(
    groups: list[list[int]], at: int, ends: list[int], numbers: list[int], left_out: int
) -> None:
    placed, other = place_batches([lost(*group) for group in groups], at, ends, joined=True)
    assert [first for first, _ in placed] == numbers
    assert len(other) == left_out


def test_behind_a_tear_nothing_is_counted_back_from_where_the_trace_ends() -> None:
    for ends in ([], [20]):  # segments behind the last one may be gone
        placed, other = place_batches([lost(4), lost(2)], 0, ends, joined=False)
        assert [first for first, _ in placed] == [0]
        assert len(other) == 1
