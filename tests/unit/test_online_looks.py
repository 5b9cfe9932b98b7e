"""When the sanitizer beside an engine looks, and what it has at hand then: with a screen that only notes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.errors import Sanitized, UsageError
from kvscope.inspector import online as module
from kvscope.inspector.online import OnlineSanitizer
from kvscope.traces import PoolFacts, Recorder, open_trace
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind
from kvscope.traces.sheet import Sheet


class Noting:
    """A screen that passes everything and writes down what it was shown."""

    least = 4096

    def __init__(self, *_: int) -> None:
        self.looks: list[tuple[int, int]] = []  # (first event, how many)
        self.details: list[tuple[list[int], list[tuple[int, int]]]] = []  # told alone; (first, rows) told together
        self.learned: list[Any] = []
        self.block_bytes = -1
        self.ended: list[int] = []
        self.suspects: dict[str, int] = {}

    def learn(self, facts: list[Any], block_bytes: int) -> None:
        self.learned += facts
        self.block_bytes = block_bytes

    def look(self, parts: Any, first: int, singles: Any, bulk: Any, marks: Any = None) -> int:
        count = sum(len(part) for part in parts)
        self.looks.append((first, count))
        self.details.append((sorted(singles), [(seq, len(values)) for seq, values in bulk]))
        return count

    def finish(self, end: int) -> None:
        self.ended.append(end)


class Elsewhere:
    """A sink that cannot be asked for its last rows."""

    def __init__(self, sink: MemoryRecorder) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        if name.startswith("recent"):
            raise AttributeError(name)
        return getattr(self._sink, name)


def beside(every: int | None = 1, reaction: Any = "log", kept: int = 2**62) -> tuple[OnlineSanitizer, Noting]:
    """A sanitizer in front of a sink that has its last `kept` rows at hand."""
    recorder: type[MemoryRecorder] = type("Short", (MemoryRecorder,), {"recent_rows": kept})
    memory, noting = recorder(num_blocks=4, block_size=4), Noting()
    online = OnlineSanitizer(memory, num_blocks=4, block_size=4, every=every, reaction=reaction,
                             screen=lambda blocks, slots: noting)  # fmt: skip
    return online, noting


def step(online: OnlineSanitizer, rows: int, values: int = 8) -> None:
    """A step of so many rows, the last of which is a WITNESS."""
    for _ in range(rows - 1):
        online.emit(Kind.NOTE)
    online.detail(online.emit(Kind.WITNESS), (0,) * values)


@pytest.mark.parametrize(("values", "looks"), [(7, []), (8, [(0, 3)]), (9, [(0, 3)]), (10, [])])
def test_a_witness_ends_a_step(values: int, looks: list[tuple[int, int]]) -> None:
    online, noting = beside()
    step(online, 3, values)
    assert noting.looks == looks


def test_a_witness_whose_details_come_late_ends_a_step_all_the_same() -> None:
    online, noting = beside()
    seqs = [online.emit(kind) for kind in (Kind.NOTE, Kind.WITNESS, Kind.NOTE)]
    online.detail(seqs[2], (0,) * 8)
    assert noting.looks == []
    online.detail(seqs[1], (0,) * 8)
    assert noting.looks == [(0, 3)]


def test_other_rows_with_as_many_details_do_not() -> None:
    online, noting = beside()
    online.detail(online.emit(Kind.WAIT), (0,) * 8)
    assert noting.looks == []
    step(online, 2)
    assert noting.looks == [(0, 3)]
    online.detail(online.emit(Kind.WAIT), (0,) * 8)  # a look more, once there was a witness
    assert noting.looks == [(0, 3), (3, 1)]


@pytest.mark.parametrize(("every", "looks"), [(1, [(0, 4), (4, 4), (8, 4)]), (4, [(0, 4), (4, 4), (8, 4)]),
                                              (5, [(0, 8)]), (8, [(0, 8)]), (9, [(0, 12)]), (13, [])])  # fmt: skip
def test_so_many_events_are_waited_for(every: int, looks: list[tuple[int, int]]) -> None:
    online, noting = beside(every)
    for _ in range(3):
        step(online, 4)
    assert noting.looks == looks
    assert online.checked == sum(count for _, count in looks)


@pytest.mark.parametrize(("kept", "looks"), [(7, [(0, 4), (4, 4)]), (8, [(0, 8)]), (15, [(0, 8)]), (16, [])])
def test_it_looks_before_half_of_what_is_at_hand_is_overwritten(kept: int, looks: list[tuple[int, int]]) -> None:
    online, noting = beside(every=1000, kept=kept)
    for _ in range(2):
        step(online, 4)
    assert noting.looks == looks


@pytest.mark.parametrize(("reaction", "every", "expected"), [("raise", None, 1), ("log", None, 4096), ("raise", 7, 7)])
def test_how_often_it_looks_if_nobody_says(reaction: str, every: int | None, expected: int) -> None:
    online, _ = beside(every, reaction)
    assert online.every == expected
    assert online._adapts is (reaction == "log")


def test_without_witnesses_the_next_step_ends_the_one_before() -> None:
    online, noting = beside()
    online.emit(Kind.NOTE)
    online.step = -1  # before the first one
    assert noting.looks == []
    for value in (0, 0, 1):
        online.step = value
        assert online.step == value == online._sink.step
        online.emit(Kind.NOTE)
    assert noting.looks == [(0, 1), (1, 2)]
    online.step = 0  # an older one is spoken of again
    assert noting.looks == [(0, 1), (1, 2)]
    step(online, 1)
    online.step = 2  # now there are witnesses
    assert noting.looks == [(0, 1), (1, 2), (3, 2)]


def test_details_are_known_by_their_events_until_these_were_looked_at() -> None:
    online, noting = beside()
    online.detail(online.emit(Kind.LEASE), (0, 1))
    online.emit_many(Kind.SCHED, seq_id=np.arange(3), details=np.zeros((3, 2), np.int64))
    online.emit_sheet(Sheet.of(int(Kind.PUBLISH), 0, 5), np.zeros((2, 4), np.int64))  # of the last two
    step(online, 1)
    assert noting.details == [([0, 9], [(1, 3), (7, 2)])]
    step(online, 2)
    assert noting.details[1:] == [([11], [])]


def test_what_comes_while_it_looks_is_kept_for_the_next_look() -> None:
    online, noting = beside()

    def fewer(parts: Any, first: int, singles: Any, bulk: Any, marks: Any = None) -> int:
        Noting.look(noting, parts, first, singles, bulk)
        return 2  # the others were not complete yet

    noting.look = fewer  # type: ignore[method-assign]
    online.detail(online.emit(Kind.LEASE), (0, 1))
    online.emit_many(Kind.SCHED, seq_id=np.arange(2), details=np.zeros((2, 2), np.int64))
    online.emit_many(Kind.SCHED, seq_id=np.arange(2), details=np.zeros((2, 2), np.int64))
    online.check()
    online.check()
    assert noting.looks == [(0, 5), (2, 3)]
    assert noting.details == [([0], [(1, 2), (3, 2)]), ([], [(3, 2)])]
    assert online.checked == 4


@pytest.mark.parametrize("looked_at", range(8))
def test_details_of_what_was_not_looked_at_yet_are_kept(looked_at: int) -> None:
    """Three rows told alone, and two times two together; so many of them are complete at the first look."""
    online, noting = beside()
    for _ in range(3):
        online.detail(online.emit(Kind.LEASE), (0, 1))
    for _ in range(2):
        online.emit_many(Kind.SCHED, seq_id=np.arange(2), details=np.zeros((2, 2), np.int64))
    noting.look = lambda *_: looked_at  # type: ignore[method-assign]
    online.check()
    del noting.look
    online.check()
    assert noting.looks == [(looked_at, 7 - looked_at)]
    assert noting.details == [(list(range(looked_at, 3)), [(s, 2) for s in (3, 5) if s >= looked_at])]


@pytest.mark.parametrize("before", range(5))
@pytest.mark.parametrize(("length", "told"), [(1, 1), (2, 1), (5, 2), (6, 6), (7, 3)])
def test_the_details_of_a_sheet_are_those_of_its_last_rows(before: int, length: int, told: int) -> None:
    online, noting = beside()
    for _ in range(before):
        online.emit(Kind.NOTE)
    online.emit_sheet(Sheet.of(int(Kind.PUBLISH), 0, length), np.zeros((told, 4), np.int64))
    online.check()
    assert noting.details == [([], [(before + length - told, told)])]


@pytest.mark.parametrize("given", ["block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux"])
def test_rows_that_pass_through_it_are_those_that_the_sink_would_have_made(given: str) -> None:
    online, _ = beside()
    plain = MemoryRecorder(num_blocks=4, block_size=4)
    for sink in (online, plain):
        assert sink.emit_many(Kind.NOTE, 3, **{given: np.arange(1, 4)}) == 0
    shown = [name for name in plain.events.dtype.names or () if name != "t_ns"]
    assert online._sink.events[shown].tolist() == plain.events[shown].tolist()
    assert online._sink.events[given].tolist() == [1, 2, 3]


@pytest.mark.parametrize(("least", "adapts"), [(255, False), (256, False), (257, True), (4096, True)])
def test_where_a_look_costs_little_it_does_not_look_less_often(least: int, adapts: bool) -> None:
    noting = Noting()
    noting.least = least  # type: ignore[misc]
    online = OnlineSanitizer(MemoryRecorder(num_blocks=4, block_size=4), num_blocks=4, block_size=4,
                             screen=lambda blocks, slots: noting)  # fmt: skip
    assert (online._adapts, online.every) == (adapts, least)


@pytest.mark.parametrize("at_hand", [False, True])
def test_a_recorder_that_keeps_its_rows_says_which_of_them_are_complete(at_hand: bool) -> None:
    marks: list[Any] = []
    noting = Noting()
    noting.look = lambda parts, first, singles, bulk, given=None: marks.append(given) or 1  # type: ignore[method-assign]
    memory = MemoryRecorder(num_blocks=4, block_size=4)
    online = OnlineSanitizer(memory if at_hand else Elsewhere(memory), num_blocks=4, block_size=4, every=1,
                             trace=lambda: memory, screen=lambda blocks, slots: noting)  # fmt: skip
    online.emit(Kind.NOTE)
    online.check()
    assert marks == [memory if at_hand else None]


@pytest.mark.parametrize("reaction", ["log", "raise"])
@pytest.mark.parametrize("told", [False, True])
def test_a_finding_is_told_logged_or_raised(reaction: Any, told: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING", "kvscope.sanitizer")
    heard: list[str] = []
    online = OnlineSanitizer(MemoryRecorder(num_blocks=4, block_size=4), num_blocks=4, block_size=4, every=1,
                             reaction=reaction,
                             on_finding=(lambda finding, _: heard.append(finding.code)) if told else None)  # fmt: skip
    online.emit(Kind.FREE, block=0, gen=0, ref_before=0, ref_after=0)
    if reaction == "raise":
        with pytest.raises(Sanitized, match=r"^KV003 .* at seq 0, step -1: b0#0 is put on the free list, but it was"):
            online.check()
    else:
        online.check()
    assert online.stopped == (reaction == "raise")
    assert heard == ["KV003"] * told
    assert [record.message.split(" at seq")[0][-7:] for record in caplog.records] == ["[KV003]"] * (
        reaction == "log" and not told
    )


def test_facts_are_told_before_the_next_look_and_the_end_is_told() -> None:
    online, noting = beside()
    for fact in ({"type": "scheduler", "watermark": 0.5}, {"type": "request"}):
        online.fact(fact)
    assert noting.learned == []
    step(online, 1)
    step(online, 1)
    assert noting.learned == [{"type": "scheduler", "watermark": 0.5}]
    online.emit(Kind.NOTE)
    online.close()
    assert noting.looks[-1] == (2, 1)
    assert noting.ended == [3]


@pytest.mark.parametrize(("given", "told"), [({}, 0), ({"block_bytes": 512}, 512)])
def test_bytes_of_a_block_are_what_is_said_or_unknown(given: dict[str, int], told: int) -> None:
    noting = Noting()
    online = OnlineSanitizer(MemoryRecorder(num_blocks=4, block_size=4), num_blocks=4, block_size=4, every=1,
                             screen=lambda blocks, slots: noting, **given)  # fmt: skip
    online.fact({"type": "model", "bytes_per_token": 64})
    step(online, 1)
    assert noting.block_bytes == told


@pytest.mark.parametrize(("took", "before", "after"), [(0.1, 4096, 8192), (0.1, 32_768, 32_768), (0.5, 8192, 8192),
                                                       (2.0, 16_384, 8192), (2.0, 4096, 4096)])  # fmt: skip
def test_it_looks_less_often_while_events_come_fast(
    took: float, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    online, noting = beside(None)
    online.every = before
    now: Callable[[], float] = lambda: online._looked_at + took  # noqa: E731
    monkeypatch.setattr(module, "time", type("Clock", (), {"monotonic": staticmethod(now), "sleep": time.sleep}))
    step(online, before)
    assert noting.looks == [(0, before)]
    assert online.every == after


@pytest.mark.parametrize("every", [1, 2, 1 << 20])
@pytest.mark.parametrize("lost", [False, True])
def test_behind_lost_events_nothing_is_held_against_what_came_before(every: int, lost: bool) -> None:
    """A block is read whose writes are among them; the detectors follow from the first look on, or at the end."""
    said: list[str] = []
    online = OnlineSanitizer(MemoryRecorder(num_blocks=4, block_size=4), num_blocks=4, block_size=4, every=every,
                             on_finding=lambda finding, _: said.append(f"{finding.code}@{finding.seq}"))  # fmt: skip
    online.emit(Kind.ADMIT, seq_id=1)
    online.emit(Kind.ALLOC, block=0, gen=1, ref_before=0, ref_after=1, seq_id=1, lblock=0)
    online.step = 1
    online.emit(Kind.GAP if lost else Kind.NOTE, aux=3)
    online.emit(Kind.STEP_BEGIN, aux=1)
    online.emit(Kind.SCHED, seq_id=1, lblock=0, fill=1, aux=1 << 32)
    online.step = 2
    online.emit(Kind.STEP_END)
    online.close()
    assert said == ([] if lost else ["KV009@4"])


@pytest.mark.parametrize("recorded", [[1], [1, 1], [3, 1, 2]])
def test_rows_that_are_not_at_hand_are_read_back_and_each_looked_at_once(recorded: list[int]) -> None:
    gone: type[MemoryRecorder] = type(
        "Gone", (MemoryRecorder,), {"recent": lambda *_: None, "recent_parts": lambda *_: None}
    )
    noting = Noting()
    online = OnlineSanitizer(gone(num_blocks=4, block_size=4), num_blocks=4, block_size=4, every=1 << 20,
                             screen=lambda blocks, slots: noting)  # fmt: skip
    looks: list[tuple[int, int]] = []
    for count in recorded:
        looks.append((sum(count for _, count in looks), count))
        for _ in range(count):
            online.emit(Kind.NOTE)
        online.check()
    assert noting.looks == looks
    assert online.checked == sum(recorded)


def test_a_sink_that_gives_no_events_back_is_refused_before_the_first_one(tmp_path: Path) -> None:
    """It went on to the first finding, and lost that to an AttributeError."""
    with Recorder(tmp_path / "t.kvtrace", pool=PoolFacts(4, 4)) as recorder:
        with pytest.raises(UsageError, match=r"Recorder gives no events back: say where .*trace=lambda: open_trace"):
            OnlineSanitizer(recorder, num_blocks=4, block_size=4, reaction="raise")
        OnlineSanitizer(recorder, num_blocks=4, block_size=4, trace=lambda: open_trace(recorder.path)).close()
