"""What checking costs: `python -m kvscope.benchmarks.sanitizer [--json] [--events N]`.

Offline: events per second of a check of a clean trace, all detectors, by the screen, row by row in C and by passes over
columns (which run where no C compiler was); beside the replay of the same events, detector by detector, in the same
process. Online: what the sanitizer in front of a recorder adds per
event, beside what it costs to emit the same rows by the same calls (some one by one, others many at a time), neither
the engine nor the look-up of call sites counted. For steps of many sequences and for steps of one, with the looks that
the sanitizer takes unless it is told otherwise, with a look at the end of each step, and with the screen that runs
where no C compiler was. Beside it one row by `emit`, and one of a sheet.

Processor time of the calling thread, the best of several interleaved runs. The load is the engine's own block manager:
sequences that share a system prompt, decode, finish and are followed by others.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.inspector.findings import check
from kvscope.inspector.online import OnlineSanitizer
from kvscope.inspector.screen.live import ByColumns, live_screen
from kvscope.traces import EventSink, Kind, MemoryRecorder, PoolFacts, compiled
from kvscope.traces.sheet import Sheet

ROUNDS = 5
BLOCKS, SIZE = 8192, 16
OFFLINE_GATE = 5.0  # million events per second
ONLINE_GATE = 1.0  # of the cost of emitting


class Load:
    """`width` sequences that decode in steps; each is followed by another when it has its tokens."""

    def __init__(self, sink: EventSink | None, width: int, *, host_blocks: int = 0) -> None:
        self.manager = BlockManager(BLOCKS, SIZE, sink=sink, hash_key=b"bench", host_blocks=host_blocks)
        self.random = random.Random(0)
        self.width = width
        self.system = [self.random.randrange(32_000) for _ in range(48)]
        self.left: dict[int, int] = {}
        self.lengths: dict[int, int] = {}
        self.next_id = 0

    def step(self) -> None:
        """One engine step."""
        scheduled = []
        for seq_id in list(self.left):
            if self.left[seq_id] == 0:
                self.manager.free(seq_id)
                del self.left[seq_id]
                continue
            self.manager.append(seq_id, self.random.randrange(32_000))
            scheduled.append(Scheduled(seq_id, self.lengths[seq_id], self.lengths[seq_id] + 1))
            self.lengths[seq_id] += 1
            self.left[seq_id] -= 1
        while len(self.left) < self.width:
            prompt = self.system + [self.random.randrange(32_000) for _ in range(40)]
            cached = self.manager.admit(self.next_id, prompt)
            self.manager.write(self.next_id, cached, len(prompt))
            scheduled.append(Scheduled(self.next_id, cached, len(prompt)))
            self.left[self.next_id], self.lengths[self.next_id] = self.random.randint(40, 200), len(prompt)
            self.next_id += 1
        self.manager.begin_step(scheduled)
        self.manager.copies_done(self.manager.drain_copies())
        self.manager.end_step()

    def swap(self) -> None:
        """One sequence goes to the host tier and comes back."""
        seq_id = self.random.choice(list(self.left))
        for move in (self.manager.swap_out, self.manager.swap_in):
            move(seq_id)
            self.manager.swaps_done(self.manager.drain_swaps())


def spent(body: Callable[[], object]) -> float:
    """Seconds of processor time of this thread."""
    gc.collect()
    start = time.thread_time_ns()
    body()
    return (time.thread_time_ns() - start) * 1e-9


def row(name: str, value: float, unit: str, baseline: float | None = None, *, gate: float | None = None,
        ok: bool | None = None) -> dict[str, Any]:  # fmt: skip
    """One line of the result."""
    return {
        "name": name, "value": round(value, 3), "unit": unit,
        "baseline": None if baseline is None else round(baseline, 3),
        "ratio": None if baseline is None else round(value / baseline, 3), "gate": gate, "ok": ok,
    }  # fmt: skip


def offline(events: int) -> list[dict[str, Any]]:
    """Events per second of a check, beside the replay."""
    sink = MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    load = Load(sink, 64)
    while len(sink.events) < events:
        for _ in range(20):
            load.step()
    count = len(sink.events)
    trace = _Columns(sink)
    result = check(trace)
    if not result.clean:
        raise SystemExit(f"the load is not clean: {result.findings[0].why}")
    fast = min(spent(lambda: check(trace)) for _ in range(ROUNDS))
    slow = spent(lambda: check(trace, replay=True))
    with compiled.using(False):
        columns = min(spent(lambda: check(trace)) for _ in range(ROUNDS))
    rate, base = count / fast * 1e-6, count / slow * 1e-6
    name = f"check, {count:,} clean events, 64 sequences a step"
    return [
        row(name, rate, "M events/s", base, gate=OFFLINE_GATE, ok=rate >= OFFLINE_GATE),
        row(f"{name}, by columns", count / columns * 1e-6, "M events/s", base),
    ]


def offline_with(what: str, events: int) -> list[dict[str, Any]]:
    """The same for a trace with swaps, with a pool that grows, or with lost events."""
    sink = MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    load = Load(sink, 64, host_blocks=BLOCKS if what == "swaps" else 0)
    steps = 0
    while len(sink.events) < events:
        for _ in range(5):
            load.step()
        steps += 5
        if what == "swaps":
            load.swap()
        elif what == "resizes" and steps % 200 == 0:
            load.manager.grow(SIZE)
        elif what == "a gap" and steps == 5:
            sink.emit(Kind.GAP, aux=3)
    count, trace = len(sink.events), _Columns(sink)
    if check(trace).findings:
        raise SystemExit(f"the load with {what} is not clean")
    rate = count / min(spent(lambda: check(trace)) for _ in range(ROUNDS)) * 1e-6
    slow = spent(lambda: check(trace, replay=True))
    gate = OFFLINE_GATE if what == "a gap" else None
    return [
        row(f"check, {count:,} clean events with {what}", rate, "M events/s", count / slow * 1e-6, gate=gate,
            ok=None if gate is None else rate >= gate),
    ]  # fmt: skip


class _Columns:
    """A recorded trace with its details as arrays, as a trace folder is read."""

    def __init__(self, sink: MemoryRecorder) -> None:
        from kvscope.inspector.screen.details import DETAILED
        from kvscope.inspector.source import frozen

        found = frozen(sink)
        self._arrays = {int(kind): found.detail_arrays(int(kind)) for kind in DETAILED}
        self._sink, self.events, self.seqs = sink, sink.events, sink.seqs

    def detail_arrays(self, kind: int) -> Any:
        return self._arrays[kind]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


class Tape:
    """An `EventSink` that keeps the calls it gets, to be played to other sinks without the engine that made them."""

    def __init__(self) -> None:
        self._sink = MemoryRecorder(PoolFacts(BLOCKS, SIZE))
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    @property
    def step(self) -> int:
        return self._sink.step

    @step.setter
    def step(self, value: int) -> None:
        self._sink.step = value
        self.calls.append(("step", (value,), {}))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._sink, name)
        if not name.startswith(("emit", "detail")):  # `begin` looks for call sites: the benchmark's are no engine's
            return method

        def call(*args: Any, **named: Any) -> Any:
            self.calls.append((name, tuple(_kept(a) for a in args), {k: _kept(v) for k, v in named.items()}))
            return method(*args, **named)

        return call

    def play(self, sink: Any) -> float:
        """Play the calls; returns seconds of processor time."""

        def advance(value: int) -> None:
            sink.step = value

        bound = [(advance if name == "step" else getattr(sink, name), *rest) for name, *rest in self.calls]

        def body() -> None:
            for call, args, named in bound:
                call(*args, **named)

        return spent(body)


def _kept(value: Any) -> Any:
    """An argument as it is now: sheets and arrays are used again by who passed them."""
    if isinstance(value, Sheet):
        return Sheet(value.rows.copy())
    return value.copy() if isinstance(value, np.ndarray) else value


class _Nothing:
    """A sink that does nothing: what the calls themselves cost."""

    step = 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*args: Any, **named: Any) -> None:
    """Nothing."""


def online(width: int, steps: int, *, every: int | None, columns: bool = False) -> list[dict[str, Any]]:
    """What the sanitizer adds to recording, per event, beside what it costs to emit the same rows in the same calls.

    With `columns` the screen is the one that runs where no C compiler was.
    """
    tape = Tape()
    load = Load(tape, width)  # type: ignore[arg-type]
    for _ in range(steps):
        load.step()
    best = dict.fromkeys(("nothing", "emitted", "watched"), float("inf"))
    count = 1
    for _ in range(ROUNDS):
        best["nothing"] = min(best["nothing"], tape.play(_Nothing()))
        sink = MemoryRecorder(PoolFacts(BLOCKS, SIZE))
        best["emitted"] = min(best["emitted"], tape.play(sink))
        count = sink.next_seq
        sink = MemoryRecorder(PoolFacts(BLOCKS, SIZE))
        screen = ByColumns if columns else live_screen
        seen = OnlineSanitizer(sink, num_blocks=BLOCKS, block_size=SIZE, every=every, screen=screen)
        best["watched"] = min(best["watched"], tape.play(seen) + spent(seen.check))
        if seen.findings or seen.checked != count:
            raise SystemExit(f"the load is not clean: {seen.findings[:1]}, {seen.checked} of {count} events checked")
    added = (best["watched"] - best["emitted"]) / count * 1e9
    emit = (best["emitted"] - best["nothing"]) / count * 1e9
    ratio = added / emit
    if seen.every == 1:
        look = "a look each step"
    else:
        look = f"a look every {seen.every:,} events" if not columns else "by columns, as large as the stream is fast"
    gated = every is None and not columns
    return [
        row(f"online, {width} sequences, {count / steps:.0f} events a step, {look}", added, "ns/event", emit,
            gate=ONLINE_GATE if gated else None, ok=ratio <= ONLINE_GATE if gated else None),
    ]  # fmt: skip


def emits(rows: int = 20_000, width: int = 64) -> list[dict[str, Any]]:
    """Nanoseconds of one row, emitted alone and as one of a sheet, into memory."""
    sheet = Sheet.of(Kind.WRITE, 2, width)

    def alone() -> None:
        emit = MemoryRecorder(PoolFacts(BLOCKS, SIZE)).emit
        for i in range(rows):
            emit(4, 2, i, 4, 5, 6, 7, 8, 9)

    def together() -> None:
        emit = MemoryRecorder(PoolFacts(BLOCKS, SIZE)).emit_sheet
        for _ in range(rows // width):
            emit(sheet)

    scalar, batch = (min(spent(body) for _ in range(ROUNDS)) / rows * 1e9 for body in (alone, together))
    return [
        row("one row by emit", scalar, "ns/event"),
        row(f"one row of a sheet of {width}", batch, "ns/event", scalar),
    ]


def parts(events: int) -> list[tuple[str, Callable[[], list[dict[str, Any]]]]]:
    """What is measured: (what is told meanwhile, measure)."""
    return [
        ("a trace checked", lambda: offline(events)),
        *((f"a trace with {what}", partial(offline_with, what, events // 5)) for what in ("swaps", "resizes", "a gap")),
        ("rows emitted", emits),
        ("looks", lambda: [*online(64, 300, every=None), *online(1, 3000, every=None)]),
        ("a look each step", lambda: [*online(64, 300, every=1), *online(1, 1000, every=1)]),
        ("looks by columns", lambda: online(64, 600, every=None, columns=True)),
    ]


def run(events: int, *, progress: bool = False) -> list[dict[str, Any]]:
    """All rows."""
    rows: list[dict[str, Any]] = []
    measured = parts(events)
    for number, (what, measure) in enumerate(measured, 1):
        if progress:
            print(f"measuring {number} of {len(measured)}: {what}", file=sys.stderr, flush=True)
        rows += measure()
    return rows


def text_of(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    verdict = "" if row["gate"] is None else f"gate {row['gate']:g} {'ok' if row['ok'] else 'MISSED'}"
    beside = "" if row["baseline"] is None else f"baseline {row['baseline']:9.2f}  x {row['ratio']:8.2f}"
    return f"{row['name']:74} {row['value']:10.2f} {row['unit']:11} {beside}  {verdict}".rstrip()


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.sanitizer", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--events", type=int, default=500_000, help="events of the offline trace (default 500,000)")
    options = parser.parse_args(arguments)
    rows = run(options.events, progress=not options.json)
    print(json.dumps({"rows": rows}) if options.json else "\n".join(map(text_of, rows)))
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
