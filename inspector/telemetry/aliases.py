"""The same figures under vLLM's names, for dashboards that exist: only where they mean the same.

vLLM's names hold a colon, which Prometheus keeps for recording rules; that is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvscope.inspector.telemetry.watch import Look, Watch
from kvscope.traces.schema import Kind, Reason

_LABELS = ["model_name", "engine"]
_FINISHED = {Reason.STOP: "stop", Reason.LENGTH: "length", Reason.ABORTED: "abort"}


def vllm(watch: Watch, seen: Look) -> Iterator[Metric]:
    """vLLM's metrics that have an equal here."""
    labels = [watch.model, "0"]

    def one(family: Callable[..., Any], name: str, value: float) -> Metric:
        made = family(f"vllm:{name}", f"As vLLM's metric of this name: {name}.", labels=_LABELS)
        made.add_metric(labels, value)
        return made  # type: ignore[no-any-return]

    def spread(name: str, buckets: Sequence[tuple[str, int]], total: float) -> Metric:
        made = HistogramMetricFamily(f"vllm:{name}", f"As vLLM's metric of this name: {name}.", labels=_LABELS)
        made.add_metric(labels, buckets, total)
        return made

    now, counted, timing = seen.gauges, seen.counted, watch.loop.timing
    if now is not None:
        used = now.num_blocks - now.blocks["free"] - now.blocks["cached"]
        yield one(GaugeMetricFamily, "num_requests_running", now.running)
        yield one(GaugeMetricFamily, "num_requests_waiting", now.waiting)
        yield one(GaugeMetricFamily, "kv_cache_usage_perc", used / now.num_blocks)
        yield one(CounterMetricFamily, "num_preemptions", now.preemptions)
    yield one(CounterMetricFamily, "generation_tokens", watch.loop.tokens)
    yield spread("time_to_first_token_seconds", timing.first_token.cumulative(), timing.first_token.total_s)
    yield spread("inter_token_latency_seconds", timing.between_tokens.cumulative(), timing.between_tokens.total_s)
    yield spread("e2e_request_latency_seconds", timing.whole.cumulative(), timing.whole.total_s)
    if counted is None:
        return
    yield one(CounterMetricFamily, "prompt_tokens", counted.query_tokens)
    yield one(CounterMetricFamily, "prefix_cache_queries", counted.query_tokens)
    yield one(CounterMetricFamily, "prefix_cache_hits", counted.hit_tokens)
    for name, times in (
        ("kv_block_lifetime_seconds", counted.lifetime), ("kv_block_reuse_gap_seconds", counted.reuse_gap),
        ("kv_block_idle_before_evict_seconds", counted.idle_before_evict),
        ("request_queue_time_seconds", counted.queued),
    ):  # fmt: skip
        yield spread(name, times.cumulative(), times.total_s)
    ended = CounterMetricFamily("vllm:request_success", "Sequences that ended.", labels=[*_LABELS, "finished_reason"])
    for reason, word in _FINISHED.items():
        ended.add_metric(
            [*labels, word], int(counted.reasons[Kind.FINISH, reason] + counted.reasons[Kind.ABORT, reason])
        )
    yield ended


ALIASES = {"none": None, "vllm": vllm}
