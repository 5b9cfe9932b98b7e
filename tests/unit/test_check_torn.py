"""A check of a trace whose end is torn off, and of one whose manifest tells of another pool."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace
from kvscope.traces.manifest import manifest_crc
from kvscope.traces.segment import INDEX_DTYPE

BATCH = 64  # rows sealed at once


def finished(path: Path) -> Path:
    """A sequence whose FINISH is the last row of a sealed batch; its releases are in the next."""
    with Recorder(path, pool=PoolFacts(8, 4), sealing="inline", seal_rows=BATCH) as sink:
        sink.emit(Kind.ADMIT, seq_id=1)
        sink.emit(Kind.ALLOC, block=2, gen=1, ref_before=0, ref_after=1, seq_id=1, lblock=0)
        for _ in range(BATCH - 3):
            sink.emit(Kind.SUBMIT, seq_id=9)
        sink.emit(Kind.FINISH, seq_id=1)
        sink.emit(Kind.RELEASE, block=2, gen=1, ref_before=1, ref_after=0, seq_id=1, lblock=0)
        sink.emit(Kind.FREE, block=2, gen=1, ref_before=0, ref_after=0)
        for _ in range(BATCH):
            sink.emit(Kind.SUBMIT, seq_id=9)
    return path


def test_what_a_torn_end_would_have_released_is_no_leak(tmp_path: Path) -> None:
    path = finished(tmp_path / "t.kvtrace")
    assert check(open_trace(path)).findings == ()
    segment = next(path.glob("events-*.arrows"))
    entries = np.frombuffer(segment.with_suffix(".index").read_bytes(), INDEX_DTYPE)
    with open(segment, "r+b") as file:
        file.truncate(int(entries["offset"][-2]))  # the batches behind the first
    torn = open_trace(path)
    assert len(torn.events) == BATCH
    assert torn.clean
    result = check(torn)
    assert result.findings == ()
    assert any("events behind the last one are missing" in note for note in result.notes)


def pool_of(blocks: int, *, witness: bool) -> HandTrace:
    trace = HandTrace(num_blocks=16, block_size=4).event(Kind.ADMIT, seq_id=1)
    for block in range(12):
        trace.alloc(block, seq_id=1, lblock=block)
    trace.begin().end()
    if witness:
        trace.witness(4, 12, 0, 0, 0, 0)
    trace.num_blocks = blocks
    return trace


def test_a_manifest_of_a_smaller_pool_is_said_once() -> None:
    (finding,) = check(pool_of(8, witness=True)).findings
    assert (finding.code, finding.block) == ("KV012", -1)
    assert finding.why.startswith("the events speak of block 11, and its own counters add up to 16, the manifest says")
    assert {f.code for f in check(pool_of(16, witness=True)).findings} == {"KV012"}  # no table in the witness
    assert {f.code for f in check(pool_of(8, witness=False)).findings} == {"KV019"}  # an engine that hands out ids


@pytest.mark.parametrize("edited", [True, False])
def test_an_edited_manifest_is_said_once_without_a_witness_too(tmp_path: Path, edited: bool) -> None:
    path = finished(tmp_path / "t.kvtrace")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["pool"]["num_blocks"] = 2
    if not edited:
        manifest["crc"] = manifest_crc(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))
    codes = {finding.code for finding in check(open_trace(path)).findings}
    assert codes == ({"KV012"} if edited else {"KV019"})
