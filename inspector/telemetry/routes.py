"""/metrics over a served engine, and its trace where it is recorded."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, generate_latest

from kvscope.inspector.telemetry.prometheus import Alias, KVCollector
from kvscope.inspector.telemetry.watch import Watch

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_router(watch: Watch, alias: Alias | None = None) -> APIRouter:
    """/metrics, in Prometheus' text format; `alias` adds the same under other names."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(KVCollector(watch, alias))
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Prometheus text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return router
