"""The collector behind /metrics: DESIGN's measures under `kvscope_`, with units; no request ids, bounded labels.

Gauges are read from the engine between two steps, counters of events from the trace as it grows: nothing is counted on
the engine's path, and with recording off the event counters are absent rather than zero.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvscope.inspector.telemetry.counted import Counted
from kvscope.traces.schema import Kind, Reason

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine
    from kvscope.engine.server.loop import EngineLoop
    from kvscope.traces.reader import TraceReader

_STALE_S = 2.0  # how long a step may hold a scrape up


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the engine says of itself between two steps."""

    blocks: dict[str, int]
    num_blocks: int
    block_size: int
    block_bytes: int
    entries: int
    distinct: int
    filled: int
    held_slots: int
    running: int
    waiting: int
    preemptions: int


def gauges(engine: Engine) -> Gauges:
    """Read them; in the engine's thread."""
    manager, scheduler = engine.manager, engine.scheduler
    pool = manager.pool
    held = pool.entries > 0
    entries = int(pool.entries.sum())
    return Gauges(
        blocks=pool.counts(), num_blocks=pool.num_blocks, block_size=pool.block_size,
        block_bytes=pool.block_size * engine.cache.bytes_per_token, entries=entries, distinct=int(held.sum()),
        filled=int(pool.fill[held].sum()), held_slots=int(held.sum()) * pool.block_size,
        running=len(scheduler.running), waiting=len(scheduler.waiting), preemptions=scheduler.preemptions,
    )  # fmt: skip


class KVCollector:
    """A Prometheus collector over a served engine and, where it is recorded, its trace; safe from any thread."""

    def __init__(self, loop: EngineLoop, trace: TraceReader | None = None) -> None:
        self._loop = loop
        self._trace = trace
        self._counted = Counted(trace.num_blocks) if trace is not None else None
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        with self._lock:
            yield from self._served()
            now = self._loop.call(gauges, _STALE_S) if self._loop.failed is None else None
            if isinstance(now, Gauges):
                yield from _pool(now)
            if self._trace is not None and self._counted is not None:
                self._trace.refresh()
                self._counted.add(self._trace.events[self._counted.events :])
                yield from _events(self._counted)
                yield _gauge("trace_dropped_events", "Events that could not be recorded.", self._trace.dropped)

    def _served(self) -> Iterator[Metric]:
        loop = self._loop
        yield _gauge("up", "1 while the engine serves, 0 after a step has failed.", int(loop.failed is None))
        yield _gauge("requests_live", "Requests queued or running.", loop.live)
        yield _counter("requests", "Requests that have ended, however they did.", loop.served)


def _pool(now: Gauges) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("kvscope_blocks", "Blocks of the pool by state; they add up to its size.",
                               labels=["state"])  # fmt: skip
    for state, count in now.blocks.items():
        blocks.add_metric([state], count)
    yield blocks
    yield _gauge("pool_blocks", "Blocks of the pool.", now.num_blocks)
    yield _gauge("pool_bytes", "Bytes of the pool.", now.num_blocks * now.block_bytes)
    yield _gauge("table_entries", "Entries of all block tables.", now.entries)
    yield _gauge("saved_blocks", "Table entries beyond one per block: what sharing saves.", now.entries - now.distinct)
    yield _gauge("saved_bytes", "The same in bytes.", (now.entries - now.distinct) * now.block_bytes)
    if now.held_slots:  # a ratio with nothing under it is absent
        yield _gauge("tail_waste_ratio", "Unfilled slots in held blocks.", 1 - now.filled / now.held_slots)
        yield _gauge("sharing_factor", "Table entries per distinct block.", now.entries / now.distinct)
    if now.num_blocks:
        slots = now.num_blocks * now.block_size
        yield _gauge("pool_utilization_ratio", "Filled slots in held blocks over all slots.", now.filled / slots)
    yield _gauge("sequences_running", "Sequences that run.", now.running)
    yield _gauge("sequences_waiting", "Sequences in the queue.", now.waiting)


def _events(counted: Counted) -> Iterator[Metric]:
    events = CounterMetricFamily("kvscope_block_events", "Events of the trace by kind.", labels=["kind"])
    for kind in Kind:
        events.add_metric([kind.name.lower()], int(counted.kinds[kind]))
    yield events
    for kind, name, what in (
        (Kind.PREEMPT, "preemptions", "Sequences that gave their blocks up."),
        (Kind.FREE, "frees", "Blocks given back."),
        (Kind.EVICT, "evictions", "Cached blocks given up."),
        (Kind.REFUSED, "refusals", "Operations refused."),
    ):
        family = CounterMetricFamily(f"kvscope_{name}", what, labels=["reason"])
        for reason in Reason:
            if counted.reasons[kind, reason]:
                family.add_metric([reason.name.lower()], int(counted.reasons[kind, reason]))
        yield family
    yield _counter("cow_copies", "Copies on write.", int(counted.kinds[Kind.COW]))
    yield _counter("prefix_hit_blocks", "Blocks found in the prefix cache.", int(counted.kinds[Kind.HIT]))
    for name, histogram, what in (
        ("block_lifetime_seconds", counted.lifetime, "From hand-out to free."),
        ("block_idle_before_evict_seconds", counted.idle_before_evict, "From last use to eviction."),
        ("block_reuse_gap_seconds", counted.reuse_gap, "Between two uses of a block."),
    ):
        times = HistogramMetricFamily(f"kvscope_{name}", what)
        times.add_metric([], histogram.cumulative(), histogram.total_s)
        yield times


def _gauge(name: str, what: str, value: float) -> Any:
    return GaugeMetricFamily(f"kvscope_{name}", what, value=value)


def _counter(name: str, what: str, value: float) -> Any:
    return CounterMetricFamily(f"kvscope_{name}", what, value=value)
