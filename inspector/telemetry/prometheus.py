"""The collector behind /metrics: DESIGN's measures under `kvscope_`, with units; no request ids, bounded labels.

Gauges are read from the engine between two steps, counters of events from the trace as it grows: nothing is counted on
the engine's path, and with recording off the event counters are absent rather than zero.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvscope.inspector.telemetry.counted import Counted
from kvscope.inspector.telemetry.gauges import Gauges
from kvscope.inspector.telemetry.watch import Watch
from kvscope.traces.schema import Kind, Reason


class KVCollector:
    """A Prometheus collector over a served engine and, where it is recorded, its trace; safe from any thread."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        with self._lock:
            seen = self._watch.look()
            yield from self._served()
            if seen.gauges is not None:
                yield from _pool(seen.gauges)
            if seen.counted is not None:
                yield from _events(seen.counted)
                yield _gauge("trace_dropped_events", "Events that could not be recorded.", seen.dropped)

    def _served(self) -> Iterator[Metric]:
        loop = self._watch.loop
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
    yield _gauge("saved_blocks", "Table entries beyond one per block: what sharing saves.", now.saved_blocks)
    yield _gauge("saved_bytes", "The same in bytes.", now.saved_blocks * now.block_bytes)
    for name, what, value in (  # a ratio with nothing under it is absent
        ("tail_waste_ratio", "Unfilled slots in held blocks.", now.tail_waste),
        ("sharing_factor", "Table entries per distinct block.", now.sharing_factor),
        ("pool_utilization_ratio", "Filled slots in held blocks over all slots.", now.pool_utilization),
    ):
        if value is not None:
            yield _gauge(name, what, value)
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
    yield _counter("cow_copies", "Copies on write.", counted.cow_copies)
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
