"""OpenTelemetry: what is told of a served engine, in memory and over a real OTLP/HTTP connection on loopback."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from kvscope.engine.model import LoadedModel, load_model
from kvscope.errors import UsageError
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.telemetry.otel import Telemetry, from_environment
from kvscope.inspector.telemetry.switch import wanted
from kvscope.traces import open_trace


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


@contextmanager
def telling(watch: Any, **more: Any) -> Iterator[tuple[Telemetry, InMemorySpanExporter, InMemoryMetricReader]]:
    """Telemetry into memory; polled by hand."""
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    yield Telemetry(watch, traces=traces, metrics=MeterProvider([reader]), step_every=1, **more), spans, reader


def points(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_a_request_is_a_span_with_its_phases(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    folder = tmp_path / "run.kvtrace"
    with (
        served_engine.serving(loaded, folder) as (base, _, watch),
        telling(watch, address=("127.0.0.1", 80)) as (telemetry, exporter, reader),
    ):
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        reply = httpx.post(
            f"{base}/v1/completions", timeout=60, headers={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"},
            json={"model": "m", "prompt": "the cat sat on the mat", "n": 2, "max_tokens": 9, "temperature": 0.5,
                  "ignore_eos": True},
        )  # fmt: skip
        served_engine.until(lambda: not watch.loop.call(lambda engine: engine.has_work))
        telemetry.poll(last=True)
        spans = exporter.get_finished_spans()
        metrics = points(reader)
    (root,) = (span for span in spans if span.kind is SpanKind.SERVER)
    known = dict(root.attributes or {})
    assert root.name == "text_completion m"
    assert f"{root.context.trace_id:032x}" == trace_id
    assert known["gen_ai.response.id"] == reply.json()["id"]
    assert known["kvscope.trace.seq"] == int(reply.headers["x-kvscope-seq"])
    assert str(known["kvscope.request.id"]) == reply.headers["x-kvscope-request"]
    assert known["kvscope.run.id"] == reply.headers["x-kvscope-run"] == "abc"
    usage = reply.json()["usage"]
    assert known["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert known["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 18
    assert (known["gen_ai.request.temperature"], known["gen_ai.request.max_tokens"]) == (0.5, 9)
    assert (known["server.address"], known["server.port"]) == ("127.0.0.1", 80)
    inside = [span for span in spans if span.parent and span.parent.span_id == root.context.span_id]
    assert sorted(span.name for span in inside) == ["decode", "decode", "prefill", "queued"]
    assert all(root.start_time <= span.start_time <= span.end_time <= root.end_time for span in inside)
    trace = open_trace(folder)
    for span in spans:  # every seq that is told leads to an event
        assert int((span.attributes or {})["kvscope.trace.seq"]) < len(trace.events)
    assert [event.name for event in root.events] == ["cow"]
    assert sum(span.name == "engine step" for span in spans) == int((trace.events["kind"] == 31).sum())
    assert sum(p.value for p in metrics["kvscope.blocks"]) == served_engine.BLOCKS
    assert metrics["gen_ai.server.time_to_first_token"][0].count == 1
    assert metrics["gen_ai.server.request.duration"][0].attributes["gen_ai.provider.name"] == "kvscope"
    assert metrics["kvscope.cow_copies"][0].value == 1


def test_aborted_requests_are_errors(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    with (
        served_engine.serving(loaded, tmp_path / "run.kvtrace") as (base, _, watch),
        telling(watch) as (telemetry, exporter, _),
    ):
        body = {"model": "m", "prompt": "the cat", "max_tokens": 480, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{base}/v1/completions", json=body, timeout=60) as reply:
            next(reply.iter_lines())
        served_engine.until(lambda: not watch.loop.call(lambda engine: engine.has_work))
        telemetry.poll(last=True)
        (root,) = (span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER)
    if (root.attributes or {})["gen_ai.usage.output_tokens"] != 480:  # it had ended before the client was missed
        assert (root.attributes or {})["error.type"] == "aborted"
        assert not root.status.is_ok


def test_a_finding_is_one_event(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    fault = FAULTS["missing-copy"].manager()
    with (
        served_engine.serving(loaded, tmp_path / "bad.kvtrace", sanitize=True, manager=fault) as (base, loop, watch),
        telling(watch) as (telemetry, exporter, _),
    ):
        served_engine.ask(base, prompt="the cat sat on", n=3, max_tokens=20)
        served_engine.until(lambda: not loop.call(lambda engine: engine.has_work))
        loop.call(lambda _: watch.sanitizer.check())
        for _ in range(3):
            telemetry.poll(last=True)
        told = [e for span in exporter.get_finished_spans() for e in span.events if e.name == "finding"]
        found = watch.sanitizer.findings
    assert found
    assert [e.attributes["kvscope.finding.code"] for e in told] == [f.code for f in found]
    assert [e.attributes["kvscope.trace.seq"] for e in told] == [f.seq for f in found]


class Sink(BaseHTTPRequestHandler):
    """Takes what an OTLP/HTTP exporter sends."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        self.got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_otlp_over_http(
    served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Sink.got = []
    with HTTPServer(("127.0.0.1", 0), Sink) as sink:
        threading.Thread(target=sink.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{sink.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "my-engine")
        asked = wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1"})
        assert asked is not None
        with served_engine.serving(loaded, tmp_path / "run.kvtrace") as (base, _, watch):
            telemetry = from_environment(watch, asked.traces, asked.metrics, 1, None).start()
            served_engine.ask(base, prompt="the cat", max_tokens=5)
            served_engine.until(lambda: not watch.loop.call(lambda engine: engine.has_work))
            telemetry.close()
        sink.shutdown()
    spans, metrics, services = [], [], set()
    for path, body in Sink.got:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
                spans += [span.name for scope in resource.scope_spans for span in scope.spans]
        else:
            assert path == "/v1/metrics"
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                metrics += [metric.name for scope in resource.scope_metrics for metric in scope.metrics]
    assert {"text_completion m", "queued", "prefill", "decode", "engine step"} == set(spans)
    assert {"kvscope.blocks", "gen_ai.server.request.duration", "kvscope.events"} <= set(metrics)
    assert services == {"my-engine"}


@pytest.mark.parametrize(
    ("environ", "traces", "metrics"),
    [
        ({}, None, None),
        ({"OTEL_TRACES_EXPORTER": "none"}, None, None),
        ({"OTEL_TRACES_EXPORTER": "console"}, ("console",), ()),
        ({"OTEL_TRACES_EXPORTER": "console,otlp", "OTEL_METRICS_EXPORTER": "otlp"}, ("console", "otlp"), ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, ("otlp",), ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318/v1/traces"}, ("otlp",), ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318", "OTEL_SDK_DISABLED": "true"}, None, None),
    ],
)
def test_the_switch(environ: dict[str, str], traces: Any, metrics: Any) -> None:
    found = wanted(environ)
    assert (None, None) if found is None else (found.traces, found.metrics) == (traces, metrics)
    assert (found is None) == (traces is None)


@pytest.mark.parametrize(
    ("environ", "says"),
    [({"OTEL_TRACES_EXPORTER": "jaeger"}, "otlp, console or none"),
     ({"OTEL_METRICS_EXPORTER": "prometheus"}, "/metrics"),
     ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
     ({"OTEL_TRACES_EXPORTER": "console", "KVSCOPE_OTEL_STEP_EVERY": "0"}, "KVSCOPE_OTEL_STEP_EVERY")],
)  # fmt: skip
def test_what_is_not_spoken_is_refused(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        wanted(environ)


def test_off_means_not_imported() -> None:
    program = (
        "import sys\n"
        "import kvscope.inspector.cli.serve, kvscope.inspector.cli._serving, kvscope.engine.server\n"
        "import kvscope.inspector.telemetry.routes, kvscope.inspector.telemetry.debug\n"
        "import kvscope.inspector.telemetry.switch\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))"
        " or m == 'kvscope.inspector.telemetry.otel'])"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
