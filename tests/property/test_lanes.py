"""A batch that decodes as a lane leaves the same state, the same rows and the same details as one that never does."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.batch import Decodes
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.lane import Lane
from kvscope.engine.steps import Scheduled
from kvscope.errors import KVScopeError
from kvscope.inspector.findings import check
from kvscope.traces import (
    DETAIL_FIELDS,
    EventSink,
    Kind,
    MemoryRecorder,
    PoolFacts,
    Reason,
    Recorder,
    TraceReader,
    compiled,
)


class Lanes(BlockManager):
    """Every batch is a lane, however small."""

    _least_lane = 1


class NoLanes(BlockManager):
    """No batch is one."""

    _least_lane = 1 << 30


class Driver:
    """One manager under a program of operations; `ahead` steps may be open at once, `c`: the part in C runs.

    It records in memory; with `ring` into that, and with None nowhere: only then the part in C has a lane to itself.
    """

    def __init__(
        self, kind: type[BlockManager], blocks: int, size: int, share: bool, *, c: bool = True,
        ring: Recorder | bool | None = False,
    ) -> None:  # fmt: skip
        self.c = c and compiled.used()
        self.sink = MemoryRecorder(num_blocks=blocks, block_size=size, clock=lambda: 0)
        sink: EventSink | None = self.sink if ring is False else ring  # type: ignore[assignment]
        self.manager = kind(blocks, size, sink=sink, hash_key=b"test", share_prefixes=share, host_blocks=4)
        self.open = 0
        self.lanes = 0
        self.swaps: list[Any] = []

    def do(self, name: str, *args: Any) -> str:
        """The outcome, in words that are equal for equal outcomes."""
        try:
            with compiled.using(self.c):
                getattr(self, name)(*args)
        except KVScopeError as error:
            return f"{type(error).__name__}: {error}"
        self.manager.check_integrity()
        return "done"

    def admit(self, seq: int, tokens: list[int]) -> None:
        cached = self.manager.admit(seq, tokens)
        self.manager.write(seq, cached, len(tokens))
        self.step([Scheduled(seq, cached, len(tokens))])
        if self.open == 1:
            self.end()

    def decode(self, seqs: list[int], token: int, how: str, others: list[int]) -> None:
        """One token for each, then the step that computes them, its rows as they came or written out."""
        assert self.manager.can_append_many(seqs) or how
        rows = self.manager.append_many(seqs, [token + seq for seq in seqs])
        self.lanes += isinstance(rows, Decodes)
        for seq in others:
            self.manager.append(seq, token)
            lo = self.manager.length(seq) - 1
            rows = [*rows, Scheduled(seq, lo, lo + 1)]
        if how != "wait":
            self.step(list(rows) if how == "list" else rows)

    def step(self, rows: Any) -> None:
        self.manager.begin_step(rows)
        self.open += 1
        self.manager.copies_done(self.manager.drain_copies())

    def end(self) -> None:
        self.manager.end_step()
        self.open -= 1

    def fork(self, parent: int, child: int) -> None:
        self.manager.fork(parent, child)

    def free(self, seq: int, kind: Kind) -> None:
        self.manager.free(seq, kind)

    def truncate(self, seq: int, back: int) -> None:
        self.manager.truncate(seq, max(1, self.manager.length(seq) - back))

    def slide(self, seq: int, position: int) -> None:
        self.manager.slide(seq, position)

    def lease(self, block: int) -> None:
        self.manager.lease([block], ttl=2)

    def expire(self) -> None:
        self.manager.expire()

    def shrink(self, blocks: int) -> None:
        self.manager.shrink(blocks)
        self.manager.grow(blocks)

    def swap(self, seq: int) -> None:
        self.manager.swap_out(seq)
        self.swaps = self.manager.drain_swaps()
        self.manager.swaps_done(self.swaps)
        self.manager.swap_in(seq)
        self.manager.swaps_done(self.manager.drain_swaps())

    def view(self) -> tuple[object, ...]:
        """What can be seen from outside, without disturbing a lane."""
        manager = self.manager
        tables = {seq: manager.table(seq) for seq in manager.sequences()}
        return tables, manager.supply(), manager.pool.counts(), manager.held()

    def state(self) -> tuple[object, ...]:
        """Everything, each row by itself."""
        manager, pool = self.manager, self.manager.pool
        for row in manager._tables.values():
            row.step_out()
            row.digest = row.table_digest()  # it is kept modulo 2**64 in any way
            row.identity = None  # kept once it was asked for
        manager._steps.spell_out()
        manager._steps.open = [step.spelled_out() for step in manager._steps.open]
        arrays = (pool.words, pool.gen, pool.leases, pool.leased_slots, pool.last_use_step)
        return (
            tuple(array.tobytes() for array in arrays), pool.free_list(), list(pool._quarantined.items()), pool.users,
            [astuple(row) for row in manager._tables.values()], [astuple(step) for step in manager._steps.open],
            sorted(write for writes in manager._steps.writes.values() for write in writes),
            dict(manager.prefixes._computing), manager._leases.state(),
        )  # fmt: skip

    def rows(self) -> tuple[Counter[Any], Counter[Any]]:
        """The trace, apart from the order within an operation and the call sites, and its details."""
        events = self.sink.events.copy()
        events["site"] = 0
        details: Counter[Any] = Counter()
        for kind in DETAIL_FIELDS:
            details.update((kind, values) for values in self.sink.details_of(kind)[1])
        return Counter(events.tolist()), details


def program(seed: int, pair: list[Driver], blocks: int, size: int, ahead: int) -> None:
    """The same operations on both; most of them decode the same batch again."""
    chance, batch, new = random.Random(seed), list[int](), 0
    for _ in range(40):
        live = pair[0].manager.sequences()
        action = chance.choice(["admit", *["decode"] * 8, "end", "end", "fork", "free", "truncate", "slide", "lease",
                                "expire", "shrink", "swap", "alone"])  # fmt: skip
        seq = chance.choice(live) if live else -1
        call: tuple[Any, ...]
        if action == "admit" or not live:
            new += 1
            call = ("admit", new, [chance.randint(0, 1) for _ in range(chance.randint(1, 3 * size))])
        elif action == "decode":
            if chance.random() < 0.3 or not set(batch) <= set(live):
                batch = chance.sample(live, chance.randint(1, len(live)))
            how = chance.choice(["rows", "rows", "list", "wait"])
            others = [s for s in live if s not in batch][: chance.randint(0, 1)]
            if not pair[0].manager.can_append_many([*batch, *others]):
                call = ("free", seq, Kind.PREEMPT)
            else:
                call = ("decode", list(batch), chance.randint(0, 1), how, others)
        elif action == "fork":
            new += 1
            call = ("fork", seq, new)
        elif action == "free":
            call = ("free", seq, Kind.FINISH)
        elif action == "truncate":
            call = ("truncate", seq, chance.randint(0, size))
        elif action == "slide":
            call = ("slide", seq, chance.randint(0, 2 * size))
        elif action == "lease":
            call = ("lease", chance.randrange(blocks))
        elif action in ("shrink", "swap"):
            call = (action, chance.randint(1, 2) if action == "shrink" else seq)
        elif action == "alone":
            call = ("decode", [seq], 1, "rows", [])
        else:
            call = (action,)
        if call[0] in ("decode", "admit") and pair[0].open >= ahead:
            for driver in pair:
                driver.end()
        outcomes = [driver.do(*call) for driver in pair]
        assert outcomes[0] == outcomes[1], call
        assert pair[0].view() == pair[1].view(), call


@pytest.mark.parametrize("seed", range(40))
def test_lane_is_the_single_sequences(seed: int) -> None:
    chance = random.Random(seed)
    blocks, size, share, ahead = chance.randint(6, 30), chance.choice([1, 2, 4]), chance.random() < 0.7, seed % 3 + 1
    pair = [Driver(kind, blocks, size, share) for kind in (Lanes, NoLanes)]
    program(seed, pair, blocks, size, ahead)
    assert pair[0].state() == pair[1].state()
    assert pair[0].rows() == pair[1].rows()
    found = [sorted((f.code, f.why) for f in check(driver.sink).findings) for driver in pair]
    assert found[0] == found[1]


def rings(folder: Path, count: int, rows: int, **how: Any) -> list[Recorder]:
    """Recorders alike, of so many rows, whose clock stands still."""
    facts = PoolFacts(1 << 16, 16)
    names = [folder / str(i) for i in range(count)]
    how = {"seal_rows": rows // 2, **how}
    return [Recorder(name, pool=facts, hot_rows=rows, clock=lambda: 0, **how) for name in names]


def recorded(ring: Recorder) -> tuple[object, ...]:
    """All that a recorder has written: rows in their order, details, sites."""
    ring.close()
    trace = TraceReader(ring.path)
    return trace.events.tolist(), [trace.detail(seq) for seq in trace.seqs.tolist()], trace.sites, trace.dropped


def index_of(driver: Driver) -> tuple[object, ...]:
    """The prefix index, to the byte."""
    index = driver.manager.pool.index
    arrays = tuple(bytes(part) for part in (index._place, index._digests, index._parents, index._tokens))
    return arrays, index._block_of, index._behind


@pytest.mark.parametrize("seed", range(100, 121))
def test_lane_in_c_is_the_lane_in_python(seed: int, tmp_path: Path) -> None:
    """Byte for byte: the rows of the trace in their order, the pool, the prefix index and the tables.

    Through a ring that ends within a step, through one that another thread seals, and without a trace.
    """
    chance = random.Random(seed)
    blocks, size, share, ahead = chance.randint(6, 40), chance.choice([1, 2, 4]), chance.random() < 0.8, seed % 3 + 1
    pair: list[Driver] = []
    inline = seed % 4 < 2
    sinks: list[Recorder] = []
    if seed % 4 < 3:
        how = {"sealing": "inline"} if inline else {"seal_after_s": 3600.0}
        sinks = rings(tmp_path, 2, 64 if inline else 256, seal_rows=32 if inline else 64, **how)
    for c in (True, False):
        pair.append(Driver(Lanes, blocks, size, share, c=c, ring=sinks[len(pair)] if sinks else None))
    program(seed, pair, blocks, size, ahead)
    assert index_of(pair[0]) == index_of(pair[1])
    assert pair[0].state() == pair[1].state()
    if sinks:
        assert recorded(sinks[0]) == recorded(sinks[1])


def test_block_that_a_prompt_waits_for_in_c_and_in_python(tmp_path: Path) -> None:
    """A batch fills a block that someone else's prompt has, and is about to compute."""
    sinks = rings(tmp_path, 2, 1024)
    pair = [Driver(Lanes, 30, 2, True, c=c, ring=ring) for c, ring in zip((True, False), sinks, strict=True)]
    for driver in pair:
        for seq in (0, 1):
            driver.do("admit", seq, [1, 2 + seq])
        assert driver.manager.admit(2, [1, 2, 7, 7, 9]) == 2
        assert len(driver.manager.prefixes._computing) == 1
        for _ in range(3):  # the tokens of sequence 0 are 7, 7, 7
            driver.do("decode", [0, 1], 7, "rows", [])
            driver.do("end")
        assert driver.lanes == 3
    assert pair[0].state() == pair[1].state()
    assert recorded(sinks[0]) == recorded(sinks[1])


@pytest.mark.parametrize("seed", range(4))
def test_changing_batch_in_c_and_in_python(seed: int, tmp_path: Path) -> None:
    """Some leave and join while the others decode on, a step ahead or not, with tables for a device and without."""
    pair = [
        Driver(Lanes, 150, 4, True, c=c, ring=ring)
        for c, ring in zip((True, False), rings(tmp_path, 2, 1 << 13), strict=True)
    ]
    for driver in pair:
        chance, ids, new = random.Random(seed), list(range(8)), 8
        for seq in [*ids, 1000]:
            driver.do("admit", seq, [seq, 9, 1, 1, *[1] * (seq % 5)])
        for turn in range(50):
            if chance.random() < 0.3:
                driver.do("free", ids.pop(chance.randrange(len(ids))), Kind.FINISH)
                driver.do("admit", new, [new] * chance.randint(1, 9))
                ids.insert(len(ids) if chance.random() < 0.7 else chance.randrange(len(ids)), new)
                new += 1
            driver.decode(ids.copy(), turn, "rows", [1000] if chance.random() < 0.3 else [])
            if turn > 20 and seed < 2:
                lane = driver.manager._tables[ids[0]].lane
                assert lane is not None
                with compiled.using(driver.c):
                    tokens, tables = lane.inputs()
                assert tokens.tolist() == [turn + seq for seq in ids]
                held = [driver.manager.table(seq) for seq in ids]
                assert [row[: len(blocks)] for row, blocks in zip(tables.tolist(), held, strict=True)] == held
            while driver.open > seed % 3:
                driver.do("end")
    assert index_of(pair[0]) == index_of(pair[1])
    assert pair[0].state() == pair[1].state()
    sinks = [driver.manager._sink for driver in pair]
    assert recorded(sinks[0]) == recorded(sinks[1])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 16, 25, 26, 57])
@pytest.mark.parametrize("key", [b"", bytes(range(64))])
def test_hashes_in_c_are_those_of_hashlib(size: int, key: bytes, tmp_path: Path) -> None:
    """Of messages that end within a chunk of the hash, where it ends, and behind."""
    found = []
    for c, sink in zip((True, False), rings(tmp_path, 2, 2048), strict=True):
        manager = Lanes(40, size, sink=sink, hash_key=key)
        for seq in range(3):
            manager.admit(seq, list(range(seq * 1000, seq * 1000 + size)))
            manager.write(seq, 0, size)
        manager.begin_step([Scheduled(seq, 0, size) for seq in range(3)])
        manager.end_step()
        with compiled.using(c and compiled.built()):
            for token in range(3 * size):
                manager.begin_step(manager.append_many([0, 1, 2], [token, -token, 2**31 - 1 - token]))
                manager.end_step()
        hashes = [row.hashes for row in manager._tables.values()]
        assert len(manager.pool.index) == 12
        sink.close()
        found.append((manager.pool.index._block_of, hashes, TraceReader(sink.path).details_of(Kind.PUBLISH)[1]))
    assert found[0] == found[1]


def test_what_is_common_runs_in_c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The property above is not vacuous: of a batch that decodes, nothing is left to the Python code."""
    sinks = rings(tmp_path, 2, 64, seal_rows=32)  # the ring ends in most steps, and another thread seals
    sinks += [None]  # type: ignore[list-item]
    drivers = [Driver(Lanes, 400, 4, share, ring=ring) for share, ring in zip((True, False, True), sinks, strict=True)]
    for driver in drivers:
        for seq in range(6):
            driver.do("admit", seq, [seq, 9, 1, 1, *[1] * (seq % 5)])
        driver.decode(list(range(6)), 0, "rows", [])
        driver.end()
    for name in [name for name in vars(Lane) if name.endswith("_python")]:
        monkeypatch.setattr(Lane, name, None)
    with compiled.using(True):
        for turn in range(140):  # a lane keeps the tokens of 64 steps
            for driver in drivers:
                driver.decode(list(range(6)), turn, "rows", [])
                driver.end()
                if driver.manager._sink is not None:
                    driver.manager._sink.seal()  # type: ignore[attr-defined]
    assert [driver.lanes for driver in drivers] == [141, 141, 141]


def test_lanes_are_taken_above() -> None:
    """The property is not vacuous."""
    taken = 0
    for seed in range(5):
        driver = Driver(Lanes, 30, 2, True)
        for seq in range(3):
            driver.do("admit", seq, [seed, seq, 1])
        for turn in range(6):
            driver.do("decode", [0, 1, 2], turn, "rows", [])
            driver.do("end")
        taken += driver.lanes
    assert taken == 30


def test_batch_that_changes_by_one_goes_on_in_its_lane() -> None:
    """Sequences leave from the front, join at the end and change places: same rows as without lanes, one lane."""
    pair = [Driver(kind, 60, 2, True) for kind in (Lanes, NoLanes)]
    ids = [0, 1, 2, 3]
    for driver in pair:
        for seq in ids:
            driver.do("admit", seq, [seq, 9, 1])
        driver.do("decode", ids, 0, "rows", [])
        driver.do("end")
    lane = pair[0].manager._tables[0].lane
    assert lane is not None
    for turn in range(6):
        gone, new = ids[turn % 3], 10 + turn
        ids = [*[seq for seq in ids if seq != gone], new]
        if turn == 4:
            ids.insert(0, ids.pop())
        for driver in pair:
            driver.do("free", gone, Kind.FINISH)
            driver.do("admit", new, [new, 8, 1, 2])
            driver.do("decode", list(ids), turn, "rows", [])
            driver.do("end")
        assert all(pair[0].manager._tables[seq].lane is lane for seq in ids)
    assert pair[0].state() == pair[1].state()
    assert pair[0].rows() == pair[1].rows()


@pytest.mark.parametrize("wide", [0, 2**40])
def test_long_decode_is_the_single_sequences(wide: int) -> None:
    """Longer than a lane keeps tokens; one sequence joins in between; tokens of up to 64 bits."""
    pair = [Driver(kind, 300, 4, True) for kind in (Lanes, NoLanes)]
    for driver in pair:
        ids = [0, 1, 2]
        for seq in ids:
            driver.do("admit", seq, [seq, 9, 1])
        for turn in range(150):
            if turn == 30:
                driver.do("admit", 3, [5, 5])
                ids = [0, 3, 1, 2]
            driver.decode(ids, turn + (wide if turn > 70 else 0), "rows", [])
            driver.end()
            if turn == 50:
                driver.manager._tables[1].catch_up()
        driver.manager.check_integrity()
    assert pair[0].lanes == 150
    assert pair[0].state() == pair[1].state()
    assert pair[0].rows() == pair[1].rows()


def test_refused_batch_leaves_the_lane_as_it_was() -> None:
    driver = Driver(Lanes, 4, 2, True)
    driver.do("admit", 0, [1, 2, 3])
    driver.do("admit", 1, [4, 5, 6])
    driver.do("decode", [0, 1], 7, "rows", [])
    driver.do("end")
    rows = len(driver.sink.events)
    assert not driver.manager.can_append_many([0, 1])
    assert driver.do("decode", [0, 1], 7, "must", []).startswith("OutOfBlocks")
    assert driver.sink.events["kind"][rows:].tolist() == [Kind.REFUSED]
    assert driver.sink.events["reason"][-1] == Reason.NO_BLOCKS
    assert [driver.manager.length(seq) for seq in (0, 1)] == [4, 4]
    driver.manager.free(1)
    assert driver.do("decode", [0], 7, "rows", []) == "done"
