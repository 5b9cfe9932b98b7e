"""`/debug/kv/...`: the pool now, one block's life, findings, the events as Arrow, and summary frames by SSE."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Header, HTTPException
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from fastapi.params import Query
from fastapi.responses import JSONResponse, Response, StreamingResponse

from kvscope.errors import Busy, UsageError
from kvscope.inspector.biography import biography
from kvscope.inspector.findings import check
from kvscope.inspector.telemetry.feed import ARROW, encode_events, encode_pool
from kvscope.inspector.telemetry.gauges import pool_now, state_now
from kvscope.traces.files import read_lines
from kvscope.traces.folder import ACTORS, BASE, FACTS, SITES
from kvscope.traces.place import place_of

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine
    from kvscope.inspector.telemetry.watch import Watch

MAX_EVENTS = 65_536  # rows of one answer of the event feed
MAX_FACT_BYTES = 8 << 20
MAX_LISTENERS = 32
_MOST = 1 << 62
_ALIVE_S = 15.0  # a listener hears something at least so often
_T = TypeVar("_T")


def debug_router(watch: Watch) -> APIRouter:
    """All of /debug/kv/...; what needs the trace answers 400 where nothing is recorded."""
    router = APIRouter(prefix="/debug/kv")
    _pool_routes(router, watch)
    _trace_routes(router, watch)
    _live_route(router, watch)
    return router


def _pool_routes(router: APIRouter, watch: Watch) -> None:
    def ask(work: Callable[[Engine], _T]) -> _T:
        try:
            return watch.loop.call(work)  # type: ignore[return-value]
        except TimeoutError:
            raise HTTPException(503, "the engine is in the middle of a long step: ask again") from None

    @router.get("/run")
    def run() -> JSONResponse:
        """What run this is: its name, model, pool, and the manifest of its trace."""
        follower = watch.follower
        return JSONResponse({
            "run": watch.run_id, "model": watch.model, "started": watch.loop.started, "recorded": follower is not None,
            "sanitized": watch.sanitizer is not None, "manifest": None if follower is None else follower.manifest,
            **ask(_geometry),
        })  # fmt: skip

    @router.get("/state")
    def state() -> JSONResponse:
        """Counts of the pool, its measures, tables, and the requests that are queued or running."""
        return JSONResponse({"run": watch.run_id, **ask(state_now)})

    @router.get("/frame")
    def frame() -> JSONResponse:
        """One summary frame, as `/live` sends them."""
        return JSONResponse(watch.frame())

    @router.get("/pool", response_class=Response)
    def pool() -> Response:
        """Every block of the pool as one Arrow batch; `x-kvscope-seq` is the last event before it."""
        now = ask(pool_now)
        return Response(encode_pool(now), media_type=ARROW, headers={"x-kvscope-seq": str(now.next_seq - 1)})


def _geometry(engine: Engine) -> dict[str, Any]:
    pool = engine.manager.pool
    return {"num_blocks": pool.num_blocks, "block_size": pool.block_size,
            "block_bytes": pool.block_size * engine.cache.bytes_per_token}  # fmt: skip


def _trace_routes(router: APIRouter, watch: Watch) -> None:
    one_at_a_time = threading.Lock()  # these read the whole trace
    checked: dict[int, dict[str, Any]] = {}

    def folder() -> Path:
        if watch.trace is None:
            raise UsageError("nothing is recorded: start the server with --trace")
        return watch.trace

    @router.get("/blocks/{block}")
    def one(block: Annotated[int, InPath(ge=0, le=_MOST)]) -> JSONResponse:
        """Every life of one block, in words."""
        from kvscope.traces import open_trace

        with one_at_a_time:
            return JSONResponse([asdict(life) for life in biography(open_trace(folder()), block)])

    @router.get("/findings")
    def findings() -> JSONResponse:
        """What the sanitizer has found, or, where none runs, what a check of the trace so far finds."""
        from kvscope.traces import open_trace

        found = watch.findings()
        if found is not None:
            return JSONResponse({"by": "sanitizer", "events": found[0], "findings": [f.to_json() for f in found[1]]})
        with one_at_a_time:
            trace = open_trace(folder())
            end = trace.rows
            if end not in checked:
                result = check(trace)
                checked.clear()
                checked[end] = {"by": "check", "events": result.events,
                                "findings": [f.to_json() for f in result.findings]}  # fmt: skip
            return JSONResponse(checked[end])

    @router.get("/events", response_class=Response)
    def events(
        from_seq: Annotated[int, Query(ge=0, le=_MOST)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = MAX_EVENTS,
    ) -> Response:
        """Rows from `from_seq` on as one Arrow stream; `x-kvscope-next` is where to go on, `x-kvscope-end` what is
        there so far, `x-kvscope-first` the lowest number that is left, `x-kvscope-run` whose they are.
        """
        from kvscope.traces.follow import Follower

        follower = Follower(folder()) if watch.follower is None else watch.follower
        with watch.reading():
            follower.refresh()
            data, rows, after = encode_events(follower.rows(from_seq, limit))
            first, end = follower.first, follower.end
        headers = {"x-kvscope-next": str(after if rows else min(from_seq, end)), "x-kvscope-end": str(end),
                   "x-kvscope-first": str(first),
                   "x-kvscope-dropped": str(follower.dropped), "x-kvscope-run": watch.run_id}  # fmt: skip
        return Response(data, media_type=ARROW, headers=headers)

    @router.get("/base", response_class=Response)
    def base() -> Response:
        """`base.bin`: what events that were let go had made of the pool; empty where the trace has its first one."""
        with place_of(folder()) as place, contextlib.suppress(FileNotFoundError):
            return Response(place.read(BASE), media_type="application/octet-stream")
        return Response(b"", media_type="application/octet-stream")

    @router.get("/facts")
    def facts(from_byte: Annotated[int, Query(ge=0, le=_MOST)] = 0) -> JSONResponse:
        """The facts of the run (its requests, their names) from a place in their file on; `next` is where to go on."""
        records, after = _lines(folder(), FACTS, from_byte)
        return JSONResponse({"facts": records, "next": after})

    @router.get("/names")
    def names() -> JSONResponse:
        """Call sites (frames, innermost first) and actors; the columns `site` and `actor` index them."""
        sites, actors = _lines(folder(), SITES)[0], _lines(folder(), ACTORS)[0]
        return JSONResponse({
            "sites": [{"i": record.get("i"), "frames": record.get("frames")} for record in sites],
            "actors": [{"i": record.get("i"), "name": record.get("name")} for record in actors],
        })  # fmt: skip


def _lines(folder: Path, name: str, start: int = 0) -> tuple[list[dict[str, Any]], int]:
    with place_of(folder) as place:
        try:
            records, _, used = read_lines(place.read(name, start, MAX_FACT_BYTES))
        except FileNotFoundError:
            return [], start
    return records, start + used


def _live_route(router: APIRouter, watch: Watch) -> None:
    listeners = threading.BoundedSemaphore(MAX_LISTENERS)

    @router.get("/live", response_class=StreamingResponse)
    async def live(
        interval: Annotated[float, Query(ge=0.1, le=60)] = 0.5, frames: Annotated[int, Query(ge=0, le=_MOST)] = 0,
        last_event_id: Annotated[str | None, Header(max_length=40)] = None,
    ) -> StreamingResponse:  # fmt: skip
        """Summary frames as server-sent events, every `interval` seconds while something changes.

        The id of a frame is the seq of the last event before it; with `Last-Event-ID` the first frame comes when
        there is something newer. `frames` ends the stream after so many; 0 goes on.
        """
        if not listeners.acquire(blocking=False):
            raise Busy(f"{MAX_LISTENERS} clients listen, the most at once: try again later")
        body = _frames(watch, interval, frames, last_event_id or "")
        weakref.finalize(body, listeners.release)  # also where its client is gone before it begins
        return StreamingResponse(body, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _frames(watch: Watch, interval: float, frames: int, known: str) -> AsyncIterator[bytes]:
    before, sent, quiet = "", 0, 0.0
    yield b"retry: 1000\n\n"
    while not watch.loop.stopping and (not frames or sent < frames):
        frame = await run_in_threadpool(watch.frame)
        pool = frame["pool"] or {}
        number = "" if pool.get("seq") is None else str(pool["seq"])
        state = json.dumps({**frame, "wall_ns": 0}, separators=(",", ":"))
        if state != before and not (number and number == known):
            before, known, quiet, sent = state, "", 0.0, sent + 1
            data = json.dumps(frame, separators=(",", ":"))
            yield (f"id: {number}\n" if number else "").encode() + f"event: frame\ndata: {data}\n\n".encode()
        elif quiet >= _ALIVE_S:
            quiet = 0.0
            yield b": still here\n\n"
        quiet += interval
        left = interval
        while left > 0 and not watch.loop.stopping:  # a shutdown need not wait for a slow rhythm
            await asyncio.sleep(min(left, 0.25))
            left -= 0.25
