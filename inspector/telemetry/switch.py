"""Whether OpenTelemetry is wanted, by its standard variables; nothing of it is imported here.

It is on when an exporter is named (OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER: otlp, console, none) or an endpoint is
(OTEL_EXPORTER_OTLP_ENDPOINT and its kin), and OTEL_SDK_DISABLED is not true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.errors import UsageError

_KNOWN = ("otlp", "console")
_STEPS = "KVSCOPE_OTEL_STEP_EVERY"


@dataclass(frozen=True)
class Wanted:
    """Which exporters are asked for, and one step of how many becomes a span."""

    traces: tuple[str, ...]
    metrics: tuple[str, ...]
    step_every: int = 100


def wanted(environ: Mapping[str, str]) -> Wanted | None:
    """What the variables ask for; None for nothing.

    Raises:
        UsageError: a variable asks for what is not done here.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    traces, metrics = (_exporters(environ, signal) for signal in ("TRACES", "METRICS"))
    if not traces and not metrics:
        return None
    every = environ.get(_STEPS, "100").strip()
    if not every.isdigit() or not 1 <= int(every) <= 1 << 30:
        raise UsageError(f"{_STEPS} is {every!r}: wanted a whole number of 1 or more")
    return Wanted(traces, metrics, int(every))


def _exporters(environ: Mapping[str, str], signal: str) -> tuple[str, ...]:
    name = f"OTEL_{signal}_EXPORTER"
    given = environ.get(name, "").strip()
    if not given:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
        given = "otlp" if any(environ.get(endpoint, "").strip() for endpoint in endpoints) else "none"
    chosen = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip() != "none"))
    for word in chosen:
        if word not in _KNOWN:
            more = "; /metrics is Prometheus' own" if word == "prometheus" else ""
            raise UsageError(f"{name} is {given!r}: must be otlp, console or none{more}")
    if "otlp" in chosen:
        for protocol in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
            if environ.get(protocol, "").strip():
                if environ[protocol].strip() != "http/protobuf":
                    raise UsageError(f"{protocol} is {environ[protocol]!r}: only http/protobuf is spoken here")
                break
    return chosen
