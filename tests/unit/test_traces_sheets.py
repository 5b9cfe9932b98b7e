"""Sheets of rows lie in a trace as single rows do: across the end of the ring, with details, and when rows are lost."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Reason, Recorder, TraceReader
from kvscope.traces.sheet import Sheet

FACTS = PoolFacts(64, 16)


def sheet_of(count: int) -> Sheet:
    """`count` rows of two kinds."""
    sheet = Sheet.of(Kind.WRITE, Reason.DECODE, count)
    sheet.rows["kind"][count // 2 :] = Kind.COMMIT
    for i, name in enumerate(("block", "gen", "seq_id", "lblock", "fill", "aux")):
        sheet.rows[name] = np.arange(count) + i
    return sheet


def put(recorder: Any, sheet: Sheet, details: np.ndarray | None) -> None:
    """The same rows one by one."""
    recorder.begin_at(7, 0, 0)
    for i, row in enumerate(sheet.rows):
        names = ("kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")
        seq = recorder.emit(*(int(row[name]) for name in names))
        at = i - len(sheet) + (0 if details is None else len(details))
        if details is not None and at >= 0:
            recorder.detail(seq, details[at].tolist())


def seen(trace: Any) -> tuple[object, ...]:
    """All rows and details."""
    return trace.events.tolist(), [trace.details_of(kind)[1] for kind in (Kind.WRITE, Kind.COMMIT)]


@pytest.mark.parametrize("values", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 5, 32])
def test_sheets_are_the_single_rows(tmp_path: Path, rows: int, values: int) -> None:
    sheet = sheet_of(40)
    details = np.arange(rows * values, dtype=np.int64).reshape(rows, values)
    one, many = tmp_path / "one", tmp_path / "many"
    rings = [Recorder(path, pool=FACTS, hot_rows=64, seal_rows=32, sealing="inline") for path in (one, many)]
    memory = MemoryRecorder(FACTS)
    for turn in range(7):  # the ring of 64 rows ends within a sheet, at other places each time
        for part in (None, details[: turn + 1], details):
            put(rings[0], sheet, part)
            for sink in (rings[1], memory):
                sink.begin_at(7, 0, 0)
                sink.emit_sheet(sheet, part)
    for ring in rings:
        ring.close()
    traces = [TraceReader(path) for path in (one, many)]
    assert seen(traces[0]) == seen(traces[1]) == seen(memory)
    assert len(traces[0].events) == 7 * 3 * 40


def test_a_part_of_a_sheet_is_the_same_memory() -> None:
    sheet = sheet_of(10)
    part = sheet.part(3, 7)
    sheet.rows["block"][4] = 63
    (blocks,) = part.columns("block")
    assert blocks.tolist() == [3, 63, 5, 6]
    memory = MemoryRecorder(FACTS)
    memory.emit_sheet(part)
    assert memory.events["block"].tolist() == [3, 63, 5, 6]


def test_rows_of_a_sheet_that_cannot_be_kept_are_counted(tmp_path: Path) -> None:
    def full_disk(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with Recorder(
        tmp_path / "t", pool=FACTS, hot_rows=64, seal_rows=32, sealing="inline", pwrite=full_disk, overwrite=True
    ) as ring:
        sheet = sheet_of(40)
        first = [ring.emit_sheet(sheet, np.zeros((3, 2), dtype=np.int64)) for _ in range(3)]
        assert first[0] == 0
        assert first[-1] == -1
        assert ring.dropped + ring.next_seq == 3 * 40
