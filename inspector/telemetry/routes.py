"""Routes for those who watch: /metrics, and /debug/kv/... where the server was started with them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, generate_latest

from kvscope.errors import UsageError
from kvscope.inspector.biography import biography
from kvscope.inspector.findings import check
from kvscope.inspector.telemetry.prometheus import KVCollector, gauges

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine
    from kvscope.engine.server.loop import EngineLoop

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_EVENTS = 65_536  # rows of one answer of the event feed


def metrics_router(loop: EngineLoop, trace: Path | None) -> APIRouter:
    """/metrics over a served engine, and its trace where it is recorded."""
    from kvscope.traces import open_trace

    registry = CollectorRegistry(auto_describe=False)
    registry.register(KVCollector(loop, open_trace(trace) if trace is not None else None))
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    def metrics() -> Response:
        """Prometheus text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return router


def debug_router(loop: EngineLoop, trace: Path | None) -> APIRouter:
    """/debug/kv/...: the pool now, a block's life, findings, and the events as Arrow, by number."""
    router = APIRouter(prefix="/debug/kv")

    @router.get("/state")
    def state() -> JSONResponse:
        """Counts of the pool, and who holds how much."""
        return JSONResponse(loop.call(_state))

    @router.get("/blocks/{block}")
    def one(block: int) -> JSONResponse:
        """Every life of one block, in words."""
        opened = _opened(trace)
        if not 0 <= block < opened.num_blocks:
            raise UsageError(f"block {block} is not in the pool: its blocks are 0..{opened.num_blocks - 1}")
        return JSONResponse([asdict(life) for life in biography(opened, block)])

    @router.get("/findings")
    def findings() -> JSONResponse:
        """What a check of the trace so far finds."""
        found = check(_opened(trace))
        return JSONResponse({"events": found.events, "findings": [item.to_json() for item in found.findings]})

    @router.get("/events", response_class=Response)
    def events(from_seq: int = 0, limit: int = MAX_EVENTS) -> Response:
        """Rows from `from_seq` on as one Arrow stream; `x-kvscope-next` is where to go on."""
        import io

        import pyarrow as pa

        if not 1 <= limit <= MAX_EVENTS or from_seq < 0:
            raise UsageError(f"from_seq is 0 or more, and limit 1..{MAX_EVENTS}")
        opened = _opened(trace)
        rows, seqs = opened.events, opened.seqs
        first = int(seqs.searchsorted(from_seq))
        rows, seqs = rows[first : first + limit], seqs[first : first + limit]
        columns = {"seq": seqs, **{name: rows[name] for name in rows.dtype.names or ()}}
        table = pa.table({name: pa.array(column.copy()) for name, column in columns.items()})
        out = io.BytesIO()
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
        end = int(opened.seqs[-1]) + 1 if len(opened.seqs) else 0
        after = int(seqs[-1]) + 1 if len(seqs) else min(from_seq, end)
        return Response(out.getvalue(), media_type="application/vnd.apache.arrow.stream",
                        headers={"x-kvscope-next": str(after)})  # fmt: skip

    return router


def _state(engine: Engine) -> dict[str, Any]:
    now = gauges(engine)
    return {
        "blocks": now.blocks, "num_blocks": now.num_blocks, "block_size": now.block_size,
        "table_entries": now.entries, "running": now.running, "waiting": now.waiting,
        "preemptions": now.preemptions,
        "sequences": {str(seq_id): engine.manager.table(seq_id) for seq_id in engine.manager.sequences()},
    }  # fmt: skip


def _opened(trace: Path | None) -> Any:
    from kvscope.traces import open_trace

    if trace is None:
        raise UsageError("nothing is recorded: start the server with --trace")
    return open_trace(trace)
