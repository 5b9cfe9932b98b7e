"""OpenTelemetry: spans of requests and of some steps, and the measures as callback instruments.

Spans are made from the trace by a thread of their own, when a request has ended, with the times of its events: the
engine does nothing for them. `kvscope.trace.seq` leads from a span, and from each of its events, to the event of the
trace. Names follow the GenAI conventions (open-telemetry/semantic-conventions-genai 0.1.0); what they do not know is
under `kvscope.`. Only this module imports the SDK, and only where it is asked for (`switch`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from opentelemetry import trace as api
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import kvscope
from kvscope.engine.server.asked import Asked
from kvscope.engine.server.timing import FIRST_TOKEN, PER_TOKEN, WHOLE
from kvscope.inspector.findings import Finding
from kvscope.inspector.telemetry.counted import totals
from kvscope.inspector.telemetry.spans import RequestSpan, SpanEvent, SpanFold, StepSpan
from kvscope.inspector.telemetry.watch import Watch

log = logging.getLogger(__name__)

PROVIDER = "kvscope"
EVERY_S = 5.0  # as often as the SDK sends spans by itself
_MOST_ASKED = 1 << 16
_REASONS = {"stop": "stop", "length": "length", "aborted": "aborted", "drained": "aborted"}


def resource(run_id: str, model: str) -> Resource:
    """Who tells; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    given = os.environ.get("OTEL_SERVICE_NAME") or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    own = {"service.version": kvscope.__version__, "kvscope.run.id": run_id, "gen_ai.request.model": model}
    return Resource.create(own if given else {"service.name": "kvscope", **own})


class Telemetry:
    """Tells tracer and meter providers about a served engine, every few seconds and at the end.

    Args:
        watch: the engine and its trace.
        traces, metrics: where to; None for none. They are shut down by `close`.
        step_every: one step of so many becomes a span.
        address: host and port that the server listens on.
    """

    def __init__(
        self, watch: Watch, *, traces: TracerProvider | None = None, metrics: MeterProvider | None = None,
        step_every: int = 100, address: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._watch, self._traces, self._metrics = watch, traces, metrics
        self._tracer = None if traces is None else traces.get_tracer("kvscope", kvscope.__version__)
        self._address = {} if address is None else {"server.address": address[0], "server.port": address[1]}
        self._fold = SpanFold(step_every)
        self._next = 0
        self._findings = 0
        self._asked: dict[int, Asked] = {}
        self._late: set[int] = set()  # ended, and nobody has said yet what was asked
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._anchor = 0
        if watch.follower is not None:
            self._anchor = int(watch.follower.manifest["clock"]["wall_ns"])
        self._histograms = None if metrics is None else _histograms(metrics.get_meter("kvscope", kvscope.__version__))
        if metrics is not None:
            _instruments(metrics.get_meter("kvscope", kvscope.__version__), watch)
        watch.loop.observer = self.asked
        self._thread = threading.Thread(target=self._run, name="kvscope-otel", daemon=True)

    def start(self) -> Telemetry:
        """Begin to follow the trace."""
        self._thread.start()
        return self

    def asked(self, request_ids: Sequence[int], asked: Asked) -> None:
        """A client's request has become these of the engine; called by the server, from any thread."""
        with self._lock:
            self._asked.update(dict.fromkeys(request_ids, asked))
            while len(self._asked) > _MOST_ASKED:
                del self._asked[next(iter(self._asked))]

    def poll(self, *, last: bool = False) -> None:
        """Take in what the trace holds by now, and tell it."""
        follower = self._watch.follower
        if follower is None:
            return
        with self._watch.reading():
            follower.refresh()
            for part in follower.rows(self._next):
                self._fold.add(part)
                self._next = int(part.seqs[-1]) + 1
        self._tell_findings()
        waiting = []
        for span in self._fold.ended:
            with self._lock:
                asked = self._asked.pop(span.request, None)
            if asked is None and not last and span.request not in self._late:
                self._late.add(span.request)  # its server is just about to say
                waiting.append(span)
                continue
            self._late.discard(span.request)
            self._tell(span, asked or Asked())
        self._fold.ended = waiting
        for step in self._fold.steps:
            self._tell_step(step)
        self._fold.steps.clear()

    def close(self) -> None:
        """Tell the rest, and shut the providers down."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(30)
        self._poll_quietly(last=True)
        for provider in (self._traces, self._metrics):
            if provider is not None:
                provider.shutdown()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._poll_quietly()

    def _poll_quietly(self, *, last: bool = False) -> None:
        try:
            self.poll(last=last)
        except Exception:
            log.exception("telemetry: a look at the trace failed")

    # -- spans --------------------------------------------------------------------------------------------------

    def _tell(self, span: RequestSpan, asked: Asked) -> None:
        attributes = self._attributes(span, asked)
        if self._histograms is not None:
            self._measure(span, {key: attributes[key] for key in _METRIC_LABELS})
        if self._tracer is None:
            return
        parent = TraceContextTextMapPropagator().extract(dict(asked.trace_headers))
        root = self._tracer.start_span(
            f"{asked.operation} {self._watch.model}", context=parent, kind=SpanKind.SERVER,
            start_time=self._anchor + span.start, attributes=attributes,
        )  # fmt: skip
        for event in span.events:
            root.add_event(event.name, event.attributes, self._anchor + event.t_ns)
        if span.aborted:
            root.set_attribute("error.type", "aborted")
            root.set_status(StatusCode.ERROR, "aborted")
        inside = api.set_span_in_context(root)
        for phase in span.phases:
            child = self._tracer.start_span(
                phase.name, context=inside, start_time=self._anchor + phase.start,
                attributes={"kvscope.trace.seq": phase.seq, "kvscope.sequence.id": phase.seq_id},
            )  # fmt: skip
            child.end(self._anchor + phase.end)
        root.end(self._anchor + span.end)

    def _attributes(self, span: RequestSpan, asked: Asked) -> dict[str, Any]:
        known = {
            "gen_ai.operation.name": asked.operation, "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._watch.model, "gen_ai.response.model": self._watch.model,
            "gen_ai.request.max_tokens": span.max_tokens, "gen_ai.request.temperature": asked.temperature,
            "gen_ai.request.top_p": asked.top_p, "gen_ai.request.choice.count": span.samples,
            "gen_ai.response.id": asked.id, "gen_ai.response.finish_reasons":
                tuple(_REASONS.get(reason, reason) for reason in span.finish),
            "gen_ai.usage.input_tokens": span.prompt_tokens, "gen_ai.usage.output_tokens": span.output_tokens,
            "gen_ai.usage.cache_read.input_tokens": span.cached_tokens,
            "kvscope.run.id": self._watch.run_id, "kvscope.trace.seq": span.seq, "kvscope.request.id": span.request,
            "kvscope.request.preemptions": span.preemptions, **self._address,
        }  # fmt: skip
        if span.dropped_events:
            known["kvscope.request.dropped_events"] = span.dropped_events
        return {name: value for name, value in known.items() if value is not None}

    def _tell_step(self, step: StepSpan) -> None:
        if self._tracer is None:
            return
        told = self._tracer.start_span("engine step", start_time=self._anchor + step.start, attributes={
            "kvscope.step": step.step, "kvscope.step.sequences": step.sequences, "kvscope.step.tokens": step.tokens,
            "kvscope.trace.seq": step.seq, "kvscope.run.id": self._watch.run_id,
        })  # fmt: skip
        told.end(self._anchor + step.end)

    def _tell_findings(self) -> None:
        """Each finding is one event: of its request's span, or of a span of its own where that has ended."""
        known = self._watch.findings()
        fresh = [] if known is None else known[1][self._findings :]
        self._findings += len(fresh)
        t_ns = self._now()
        for finding in fresh:
            span = self._fold.span_of(finding.seq_id)
            if span is not None and len(span.events) < 100:
                span.add(SpanEvent("finding", t_ns, _finding(finding)))
            elif self._tracer is not None:
                alone = self._tracer.start_span(f"finding {finding.code}", start_time=self._anchor + t_ns,
                                                attributes={"kvscope.run.id": self._watch.run_id})  # fmt: skip
                alone.add_event("finding", _finding(finding), self._anchor + t_ns)
                alone.set_status(StatusCode.ERROR, finding.why)
                alone.end(self._anchor + t_ns)

    def _now(self) -> int:
        return time.time_ns() - self._anchor

    def _measure(self, span: RequestSpan, labels: dict[str, Any]) -> None:
        assert self._histograms is not None
        whole, first, per_token = self._histograms
        whole.record((span.end - span.start) / 1e9, labels | ({"error.type": "aborted"} if span.aborted else {}))
        if span.first_token >= 0:
            first.record((span.first_token - span.start) / 1e9, labels)
            later = span.output_tokens - span.samples
            if later > 0:
                decoding = sum(p.end - p.start for p in span.phases if p.name == "decode")
                per_token.record(decoding / later / 1e9, labels)


_METRIC_LABELS = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")


def _finding(finding: Finding) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kvscope.finding.code": finding.code, "kvscope.finding.name": finding.name, "kvscope.finding.why": finding.why,
        "kvscope.trace.seq": finding.seq, "kvscope.step": finding.step,
    }  # fmt: skip
    if finding.block >= 0:
        found |= {"kvscope.block.id": finding.block, "kvscope.block.generation": finding.gen}
    return found


# -- metrics ----------------------------------------------------------------------------------------------------


def _histograms(meter: Meter) -> tuple[Any, Any, Any]:
    return tuple(
        meter.create_histogram(f"gen_ai.server.{name}", "s", what, explicit_bucket_boundaries_advisory=bounds)
        for name, what, bounds in (
            ("request.duration", "From a request's arrival to its last token.", WHOLE),
            ("time_to_first_token", "From a request's arrival to its first token.", FIRST_TOKEN),
            ("time_per_output_token", "Time per token after the first.", PER_TOKEN),
        )
    )  # type: ignore[return-value]


def _instruments(meter: Meter, watch: Watch) -> None:
    """The measures as callbacks: they are read when they are exported, and cost nothing in between."""

    def blocks(_: CallbackOptions) -> Iterable[Observation]:
        now = watch.look().gauges
        return [] if now is None else [Observation(n, {"kvscope.block.state": s}) for s, n in now.blocks.items()]

    def measure(name: str) -> Any:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            now = watch.look().gauges
            value = None if now is None else now.to_json()[name]
            return [] if value is None else [Observation(value)]

        return read

    def total(name: str) -> Any:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            seen = watch.look()
            return [] if seen.counted is None else [Observation(totals(seen.counted, seen.dropped)[name])]

        return read

    meter.create_observable_gauge("kvscope.blocks", [blocks], "{block}", "Blocks of the pool by state.")
    for name, unit in (("saved_blocks", "{block}"), ("saved_bytes", "By"), ("lost_blocks", "{block}"),
                       ("tail_waste", "1"), ("sharing_factor", "1"), ("utilization", "1"), ("pool_utilization", "1"),
                       ("running", "{sequence}"), ("waiting", "{sequence}")):  # fmt: skip
        meter.create_observable_gauge(f"kvscope.{name}", [measure(name)], unit)
    for name in ("events", "dropped_events", "cow_copies", "preemptions", "refusals", "oom_events", "evictions",
                 "prefix_hit_tokens", "prefix_query_tokens"):  # fmt: skip
        meter.create_observable_counter(f"kvscope.{name}", [total(name)])

    def findings(_: CallbackOptions) -> Iterable[Observation]:
        found = watch.findings()
        return [] if found is None else [Observation(len(found[1]))]

    meter.create_observable_counter("kvscope.findings", [findings])


def from_environment(watch: Watch, traces: Sequence[str], metrics: Sequence[str], step_every: int,
                     address: tuple[str, int] | None) -> Telemetry:  # fmt: skip
    """Telemetry with these exporters; endpoints, headers, sampling and intervals are the SDK's own variables.

    Raises:
        ImportError: an exporter is not installed.
    """
    from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, MetricExporter, PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

    about = resource(watch.run_id, watch.model)
    tracing, measuring = None, None
    if traces:
        tracing = TracerProvider(resource=about)
        for name in traces:
            exporter: SpanExporter = ConsoleSpanExporter() if name == "console" else _otlp("trace")
            tracing.add_span_processor(BatchSpanProcessor(exporter))
    if metrics:
        sinks: list[MetricExporter] = [ConsoleMetricExporter() if n == "console" else _otlp("metric") for n in metrics]
        measuring = MeterProvider([PeriodicExportingMetricReader(sink) for sink in sinks], resource=about)
    return Telemetry(watch, traces=tracing, metrics=measuring, step_every=step_every, address=address)


def _otlp(signal: str) -> Any:
    if signal == "trace":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()
