"""The collector behind /metrics: DESIGN's measures under `kvscope_`, with units; no request ids, bounded labels.

Gauges are read from the engine between two steps, counters of events from the trace as it grows: nothing of them is
counted on the engine's path, and with recording off the event counters are absent rather than zero.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

import kvscope
from kvscope.inspector.findings import CODES
from kvscope.inspector.telemetry.counted import Counted
from kvscope.inspector.telemetry.gauges import Gauges
from kvscope.inspector.telemetry.watch import Look, Watch
from kvscope.traces.schema import Kind, Reason

Alias = Callable[[Watch, Look], Iterable[Metric]]


class KVCollector:
    """A Prometheus collector over a served engine and, where it is recorded, its trace; safe from any thread.

    Args:
        alias: the same under another engine's names, beside ours.
    """

    def __init__(self, watch: Watch, alias: Alias | None = None) -> None:
        self._watch, self._alias = watch, alias
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
                yield from _memory(seen.counted, self._watch)
                yield from self._recording(seen)
            yield from self._findings()
            if self._alias is not None:
                yield from self._alias(self._watch, seen)

    def _served(self) -> Iterator[Metric]:
        watch, loop = self._watch, self._watch.loop
        about = GaugeMetricFamily("kvscope_info", "What is served; the value is 1.", labels=["run", "model", "version"])
        about.add_metric([watch.run_id, watch.model, kvscope.__version__], 1)
        yield about
        yield gauge("up", "1 while the engine serves, 0 after a step has failed.", int(loop.failed is None))
        yield gauge("requests_live", "Requests queued or running.", loop.live)
        yield gauge("requests_limit", "Requests queued or running, at most; more are refused.", loop.max_requests)
        yield counter("requests", "Requests that have ended, however they did.", loop.served)
        yield counter("generated_tokens", "Tokens generated.", loop.tokens)
        timing = loop.timing
        for name, spread, what in (
            ("time_to_first_token_seconds", timing.first_token, "From a request's arrival to its first token."),
            ("inter_token_latency_seconds", timing.between_tokens, "From one token of an answer to the next."),
            ("request_duration_seconds", timing.whole, "From a request's arrival to its last token."),
        ):
            yield histogram(name, what, spread.cumulative(), spread.total_s)

    def _recording(self, seen: Look) -> Iterator[Metric]:
        yield counter("trace_dropped_events", "Events that could not be recorded.", seen.dropped)
        cost = self._watch.cost
        if cost is not None and cost.ratio is not None:
            yield gauge("trace_overhead_ratio", "Share of a step that recording takes, in one step of 64.", cost.ratio)

    def _findings(self) -> Iterator[Metric]:
        found = self._watch.findings()
        if found is None:  # nobody looks: absent, for 0 would say that all is well
            return
        yield counter("checked_events", "Events that the sanitizer has looked at.", found[0])
        counts = Counter(finding.code for finding in found[1])
        family = CounterMetricFamily("kvscope_findings", "Findings of the sanitizer by code.", labels=["code"])
        for code in sorted({*CODES, *counts}):
            family.add_metric([code], counts[code])
        yield family


def _pool(now: Gauges) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("kvscope_blocks", "Blocks of the pool by state; they add up to its size.",
                               labels=["state"])  # fmt: skip
    for state, count in now.blocks.items():
        blocks.add_metric([state], count)
    yield blocks
    yield gauge("pool_blocks", "Blocks of the pool.", now.num_blocks)
    yield gauge("pool_bytes", "Bytes of the pool.", now.num_blocks * now.block_bytes)
    yield gauge("table_entries", "Entries of all block tables.", now.entries)
    yield gauge("saved_blocks", "Table entries beyond one per block: what sharing saves.", now.saved_blocks)
    yield gauge("saved_bytes", "The same in bytes.", now.saved_blocks * now.block_bytes)
    yield gauge(
        "lost_blocks", "Blocks that are counted as held, and are in no table: nobody gives them back.", now.lost
    )
    for name, what, value in (  # a ratio with nothing under it is absent
        ("tail_waste_ratio", "Unfilled slots in held blocks.", now.tail_waste),
        ("sharing_factor", "Table entries per distinct block.", now.sharing_factor),
        ("utilization_ratio", "Filled slots over slots of held blocks.", now.utilization),
        ("pool_utilization_ratio", "Filled slots in held blocks over all slots.", now.pool_utilization),
        ("external_fragmentation_ratio", "Free memory that is in pieces too small; a paged pool has none.", 0),
    ):
        if value is not None:
            yield gauge(name, what, value)
    yield gauge("sequences_running", "Sequences that run.", now.running)
    yield gauge("sequences_waiting", "Sequences in the queue.", now.waiting)


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
        (Kind.WAIT, "waits", "Times that the head of the queue was not admitted."),
    ):
        by_reason = {reason: int(counted.reasons[kind, reason]) for reason in Reason if counted.reasons[kind, reason]}
        # A rate of what has not happened yet is 0, not absent, and the first time that it happens is an increase.
        yield _by_reason(f"kvscope_{name}", what, {_USUAL[kind]: 0} | by_reason)
    ended = {Reason(reason): count for reason, count in counted.finished.items() if reason in _REASONS}
    yield _by_reason("kvscope_sequences_ended", "Sequences that ended.", dict.fromkeys(_ENDS, 0) | ended)


_ENDS = (Reason.STOP, Reason.LENGTH, Reason.ABORTED)
_REASONS = frozenset(int(reason) for reason in Reason)
_USUAL = {Kind.PREEMPT: Reason.CAPACITY, Kind.FREE: Reason.STOP, Kind.EVICT: Reason.CAPACITY,
          Kind.REFUSED: Reason.NO_BLOCKS, Kind.WAIT: Reason.NO_BLOCKS}  # fmt: skip


def _by_reason(name: str, what: str, counts: dict[Reason, int]) -> Metric:
    family = CounterMetricFamily(name, what, labels=["reason"])
    for reason, count in sorted(counts.items()):
        family.add_metric([reason.name.lower()], count)
    return family


def _memory(counted: Counted, watch: Watch) -> Iterator[Metric]:
    yield counter("cow_copies", "Copies on write.", counted.cow_copies)
    yield counter("cow_bytes", "Bytes of the blocks that copies on write have taken.",
                  counted.cow_copies * watch.block_bytes)  # fmt: skip
    yield counter("oom_events", "Operations refused because there were no blocks.", counted.oom_events)
    yield counter("prefix_hit_blocks", "Blocks found in the prefix cache.", int(counted.kinds[Kind.HIT]))
    yield counter("prefix_hit_tokens", "Prompt tokens found in the prefix cache.", counted.hit_tokens)
    yield counter("prefix_query_tokens", "Prompt tokens of admitted requests.", counted.query_tokens)
    if counted.query_tokens:
        rate = counted.hit_tokens / counted.query_tokens
        yield gauge("prefix_hit_ratio", "Prompt tokens found in the prefix cache, since the start.", rate)
    if counted.median_length:
        ratio = watch.max_model_len / counted.median_length
        yield gauge("benefit_ratio", "Longest possible over median length of a sequence: does paging pay.", ratio)
    for name, times, what in (
        ("block_lifetime_seconds", counted.lifetime, "From hand-out to free."),
        ("block_idle_before_evict_seconds", counted.idle_before_evict, "From last use to eviction."),
        ("block_reuse_gap_seconds", counted.reuse_gap, "Between two uses of a block."),
        ("queue_time_seconds", counted.queued, "From a request's submission to its admission."),
    ):
        yield histogram(name, what, times.cumulative(), times.total_s)


def gauge(name: str, what: str, value: float, prefix: str = "kvscope_") -> Any:
    """A gauge without labels."""
    return GaugeMetricFamily(prefix + name, what, value=value)


def counter(name: str, what: str, value: float, prefix: str = "kvscope_") -> Any:
    """A counter without labels; `_total` is added to its name."""
    return CounterMetricFamily(prefix + name, what, value=value)


def histogram(name: str, what: str, buckets: list[tuple[str, int]], total: float, prefix: str = "kvscope_") -> Any:
    """A histogram without labels."""
    family = HistogramMetricFamily(prefix + name, what)
    family.add_metric([], buckets, total)
    return family
