"""Known histories, whole and changed: the sanitizer says the same of a file that is decoded as it goes, of pieces of a
few rows, and beside the engine, as of an array in memory."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvscope.inspector.detectors import passing
from kvscope.inspector.findings import CheckResult, Finding, check
from kvscope.inspector.online import OnlineSanitizer
from kvscope.inspector.screen import plain
from kvscope.inspector.screen import screen as screens
from kvscope.inspector.screen.whole import screened
from kvscope.inspector.source import frozen
from kvscope.traces import MemoryRecorder, PoolFacts, Recorder, open_trace, reader
from kvscope.traces.schema import Kind

COLUMNS = ("block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")


@pytest.fixture(scope="module")
def histories() -> Iterator[ModuleType]:
    path = Path(__file__).parents[1] / "golden" / "histories.py"
    spec = importlib.util.spec_from_file_location("histories_of_golden", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[module.__name__]


def chosen(histories: ModuleType, first: int, every: int) -> Iterator[Any]:
    """Some of the changed histories, here and there."""
    known = histories.kept()
    for line in histories.expected()[first::every]:
        name, number = histories.key(line)
        yield histories.changed(known[name], name, number)


def play(history: Any, sink: Any, together: int = 0) -> None:
    """Record it again; `together`: so many rows of one kind and step at once, where they stand side by side."""
    for fact in history.facts:
        sink.fact(fact)
    rows, at = history.events, 0
    while at < len(rows):
        end = at + 1
        while end < len(rows) and end - at < together and all(rows[n][end] == rows[n][at] for n in ("kind", "step")):
            end += 1
        sink.step = int(rows["step"][at])
        kind, reason = int(rows["kind"][at]), int(rows["reason"][at])
        details = [history.detail(seq) for seq in range(at, end)]
        if end - at > 1 and (rows["reason"][at:end] == reason).all():
            lengths = {len(told) for told in details if told is not None}
            beside = np.asarray(details, np.int64) if len(lengths) == 1 and None not in details else None
            columns = {name: rows[name][at:end].astype(np.int64) for name in COLUMNS}
            seq = sink.emit_many(kind, reason, **columns, details=beside)
            details = details if beside is None else []
        else:
            end = at + 1
            seq = sink.emit(kind, reason, **{name: int(rows[name][at]) for name in COLUMNS})
        for number, told in enumerate(details[: end - at]):
            if told is not None:
                sink.detail(seq + number, told)
        at = end


def in_memory(history: Any) -> MemoryRecorder:
    """As an array."""
    sink = MemoryRecorder(num_blocks=history.num_blocks, block_size=history.block_size)
    play(history, sink)
    return sink


def sorted_(findings: Iterable[Finding]) -> list[Finding]:
    """By event: what is told at the end beside an engine is told in its place of a file."""
    return sorted(findings, key=lambda finding: (finding.seq, finding.code, finding.why))


def said(result: CheckResult) -> list[Any]:
    """What may not depend on the way."""
    return [result.findings, result.blocks, result.slots]


def test_a_file_that_is_decoded_as_it_goes(
    histories: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SETTLED_ROWS", 0)
    monkeypatch.setattr("kvscope.traces.ondemand.SHORT_ROWS", 20)
    for number, history in enumerate(chosen(histories, 0, 45)):
        memory = in_memory(history)
        usual, suspects = said(check(memory, replay=True)), screens.screen(frozen(memory)).suspects
        path = tmp_path / f"{number}.kvtrace"
        facts = PoolFacts(history.num_blocks, history.block_size, 0)
        with Recorder(path, pool=facts, sealing="inline", hot_rows=256, seal_rows=60) as sink:
            play(history, sink)
        with monkeypatch.context() as patch:
            patch.setattr(passing, "_PIECE", 16)
            patch.setattr(screens, "CHUNK", 48)
            trace = open_trace(path)
            assert not isinstance(trace.rows_on_demand, np.ndarray)
            assert said(check(trace, replay=True)) == usual
            assert bool(screens.screen(frozen(trace)).suspects) == bool(suspects)
            assert bool(screened(frozen(trace)).suspects) == bool(suspects)


def test_pieces_of_a_few_rows(histories: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for history in chosen(histories, 3, 20):
        looked = screens.screen(frozen(history))
        with monkeypatch.context() as patch:
            patch.setattr(screens, "CHUNK", 50)
            patch.setattr(plain, "FEW", 0)
            again = screens.screen(frozen(history))
        assert again == looked if looked.clean else not again.clean


class _Unclosed:
    """A trace as it is before its writer has closed it."""

    def __init__(self, trace: MemoryRecorder) -> None:
        self._trace, self.clean = trace, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._trace, name)


@pytest.mark.parametrize(("every", "together"), [(1, 0), (20, 5), (1 << 20, 40)])
def test_beside_the_engine(histories: ModuleType, every: int, together: int) -> None:
    for history in chosen(histories, 5 + together % 4, 29):
        memory = MemoryRecorder(num_blocks=history.num_blocks, block_size=history.block_size)
        online = OnlineSanitizer(
            memory,
            num_blocks=history.num_blocks,
            block_size=history.block_size,
            every=every,
            on_finding=lambda *_: None,
        )
        play(history, online, together)
        online.close()
        expected = check(_Unclosed(memory), replay=True).findings  # type: ignore[arg-type]
        assert online.checked == len(memory.events)
        assert sorted_(online.findings) == sorted_(expected)
        assert Kind.ALLOC in memory.events["kind"]
