"""The screen's short cuts against plain loops: which rows go on with the row before, and where a trace is cut."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.inspector.screen import plain as plains
from kvscope.inspector.screen import screen as screens
from kvscope.inspector.screen.plain import Kept, beyond_steps, beyond_writes
from kvscope.inspector.source import frozen
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind

WRITE, COMMIT, SCHED = int(Kind.WRITE), int(Kind.COMMIT), int(Kind.SCHED)
SIZE = 4


def kept(rows: list[Any], plain: list[bool], reach: list[int], other: int) -> list[tuple[int, ...]]:
    """(index, kind, reach, last, bound) of the rows that are not plain, with what follows each up to the next."""
    out = []
    starts = [i for i, passed in enumerate(plain) if not passed]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=False):
        tail = range(start + 1, end)
        writes = [i for i in tail if rows[i].kind == WRITE]
        lasts = [i for i in tail if rows[i].kind == SCHED] if other == SCHED else list(tail)
        bound = -1 if not tail else int(rows[tail[-1]].kind == WRITE)
        last = lasts[-1] if lasts else -1
        out.append((start, rows[start].kind, reach[writes[-1]] if writes else 0, last, bound))
    return out


def told(found: Kept) -> list[tuple[int, ...]]:
    return [tuple(int(value) for value in row) for row in zip(*found, strict=True)]


def a_row(chance: random.Random, before: list[Any], other: int, keys: range) -> Any:
    """Mostly what goes on with the rows before, in one way or another wrong every now and then."""
    two = before[-2] if len(before) > 1 else None
    kind = WRITE if before and before[-1].kind == other else other
    row = SimpleNamespace(kind=kind, key=1, holder=1, place=0, lblock=0, lo=0, hi=1, table=5)
    if two is not None:
        row.__dict__.update(two.__dict__, kind=kind)
        if kind == WRITE:
            row.lo, row.hi = two.hi, two.hi + 1
            if other == SCHED and row.lo == SIZE:
                row.lblock, row.lo, row.hi = two.lblock + 1, 0, 1
            elif other == COMMIT and row.lo >= SIZE:
                row.lo, row.hi = 0, 1
        else:
            one = before[-1]
            if other == COMMIT:
                row.__dict__.update(key=one.key, holder=one.holder, place=one.place)
            else:
                row.lo, row.hi = two.lo, one.lblock * SIZE + one.hi
    if chance.random() < 0.2:
        name = chance.choice(("kind", "holder", "place", "lblock", "lo", "hi", "table"))
        value = chance.choice((WRITE, other, int(Kind.ALLOC))) if name == "kind" else getattr(row, name)
        setattr(row, name, value if name == "kind" else value + chance.choice((-2, -1, 1, 2)))
    elif chance.random() < 0.1 and kind == WRITE:  # slots left out, or written again
        move = chance.choice((-1, 1))
        row.lo, row.hi = row.lo + move, row.hi + move
    row.key = keys[min(len(before) // 40, len(keys) - 1)]
    return row


def columns(rows: list[Any]) -> Any:
    def column(name: str) -> np.ndarray:
        return np.asarray([getattr(row, name) for row in rows], np.int64)

    return SimpleNamespace(
        kind=column("kind").astype(np.uint8), ranges=lambda at: (column("lo")[at], column("hi")[at]),
        holder=column("holder"), place=column("place"), lblock=column("lblock"), tables=column("table"),
    )  # fmt: skip


@pytest.fixture
def all_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain rows are looked for among few rows, too."""
    monkeypatch.setattr(plains, "FEW", 0)


@pytest.mark.usefixtures("all_judged")
@pytest.mark.parametrize("seed", range(12))
def test_writes_that_go_on_are_passed_over(seed: int) -> None:
    chance, rows = random.Random(seed), list[Any]()
    for _ in range(chance.choice((0, 1, 2, 120))):
        rows.append(a_row(chance, rows, COMMIT, range(3)))

    def same(i: int, j: int) -> bool:
        return all(getattr(rows[i], name) == getattr(rows[j], name) for name in ("key", "holder", "place"))

    commits = [i > 0 and row.kind == COMMIT and rows[i - 1].kind == WRITE and same(i, i - 1)
               for i, row in enumerate(rows)]  # fmt: skip
    plain = [
        commits[i] or (i > 1 and row.kind == WRITE and commits[i - 1] and same(i, i - 2)
                       and rows[i - 2].hi == row.lo < row.hi <= SIZE)
        for i, row in enumerate(rows)
    ]  # fmt: skip
    found = beyond_writes(columns(rows), np.asarray([row.key for row in rows], np.int64), np.arange(len(rows)), SIZE)
    assert told(found) == kept(rows, plain, [row.hi for row in rows], COMMIT)
    assert len(rows) < 100 or 5 < sum(plain) < len(rows) - 5


@pytest.mark.usefixtures("all_judged")
@pytest.mark.parametrize("seed", range(12))
def test_steps_that_go_on_are_passed_over(seed: int) -> None:
    chance, rows = random.Random(seed), list[Any]()
    for _ in range(chance.choice((0, 1, 2, 120))):
        rows.append(a_row(chance, rows, SCHED, range(3)))
    base = [row.lblock * SIZE for row in rows]
    plain = [False] * len(rows)
    for i in range(2, len(rows)):
        row, one, two = rows[i], rows[i - 1], rows[i - 2]
        if row.key == two.key and (row.kind, one.kind, two.kind) == (WRITE, SCHED, WRITE):
            plain[i] = base[i] + row.lo == base[i - 2] + two.hi and row.lblock >= 0 and 0 <= row.lo < row.hi
        elif row.key == two.key and (row.kind, one.kind, two.kind) == (SCHED, WRITE, SCHED):
            plain[i] = 0 <= row.lo <= row.hi <= base[i - 1] + one.hi and row.table == two.table
    found = beyond_steps(columns(rows), np.asarray([row.key for row in rows], np.int64), np.arange(len(rows)), SIZE)
    assert told(found) == kept(rows, plain, [start + row.hi for start, row in zip(base, rows, strict=True)], SCHED)
    assert len(rows) < 100 or 5 < sum(plain) < len(rows) - 5


@pytest.mark.parametrize("seed", range(20))
def test_pieces_end_in_front_of_a_step_where_one_begins_soon(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    chunk, bits = 10, chance.choice((5, 6))
    monkeypatch.setattr(screens, "CHUNK", chunk)
    monkeypatch.setattr(screens, "ROW_BITS", bits)
    most, often = (1 << bits) - 1, chance.choice((0.0, 0.02, 0.1, 0.5))
    kinds = np.asarray([int(Kind.STEP_BEGIN if chance.random() < often else Kind.WRITE)
                        for _ in range(chance.choice((0, 5, 25, 31, 62, 63, 64, 300)))], np.uint8)  # fmt: skip
    at, expected = 0, []
    while at < len(kinds):
        end = min(at + chunk, len(kinds))
        step = next((i for i in range(end, len(kinds)) if kinds[i] == Kind.STEP_BEGIN), None)
        if step is not None and step - at < most - chunk:
            end = step
        elif len(kinds) - at < most:
            end = len(kinds)
        expected.append((at, end))
        at = end
    assert list(screens.chunks(kinds)) == expected
    assert all(end - first < 1 << bits for first, end in expected)


@pytest.mark.parametrize(("begins", "end"), [(10, 10), (11, 11), (19, 19), (20, 20), (21, 10), (22, 10)])
def test_a_step_that_begins_just_soon_enough(begins: int, end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has less than 2**5 rows, ten of which are kept for what a chunk is."""
    monkeypatch.setattr(screens, "CHUNK", 10)
    monkeypatch.setattr(screens, "ROW_BITS", 5)
    kinds = np.full(60, int(Kind.WRITE), np.uint8)
    kinds[begins] = int(Kind.STEP_BEGIN)
    assert next(iter(screens.chunks(kinds))) == (0, end)
    assert next(iter(screens.chunks(kinds[:30]))) == (0, end if end > 10 or begins == 10 else 30)


def test_large_clean_runs_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of sequences, and tables of hundreds of blocks: nothing of it is suspicious, in pieces of any size."""
    sink = MemoryRecorder(num_blocks=1200, block_size=2)
    manager = BlockManager(1200, 2, sink=sink, hash_key=b"large")
    lengths = {seq_id: 300 if seq_id == 7 else 2 + seq_id % 5 for seq_id in range(130)}
    rows = []
    for seq_id, length in lengths.items():
        done = manager.admit(seq_id, [seq_id * 1000 + i for i in range(length)])
        manager.write(seq_id, done, length)
        rows.append(Scheduled(seq_id, done, length))
    manager.begin_step(rows)
    manager.end_step()
    for step in range(6):
        for seq_id in lengths:
            manager.append(seq_id, step)
        manager.begin_step([Scheduled(seq_id, length + step, length + step + 1) for seq_id, length in lengths.items()])
        manager.end_step()
    for seq_id in lengths:
        manager.free(seq_id)
    looked = screens.screen(frozen(sink))
    assert looked.suspects == {}
    monkeypatch.setattr(screens, "CHUNK", 500)
    assert screens.screen(frozen(sink)) == looked
