"""The application: routes, errors in one shape, health, and whatever routers the rooms above add."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

import kvscope
from kvscope.engine.server.completions import routes
from kvscope.engine.server.config import ServerConfig
from kvscope.engine.server.head import Head
from kvscope.engine.server.limits import Gate
from kvscope.engine.server.loop import EngineLoop
from kvscope.engine.server.refusals import speak_plainly
from kvscope.engine.server.replies import UnknownModel


def create_app(loop: EngineLoop, *, model: str, config: ServerConfig | None = None, routers: Sequence[APIRouter] = (),
               run_id: str | None = None) -> FastAPI:  # fmt: skip
    """The application over a started engine loop; it stops the loop when it shuts down.

    Args:
        model: the name that clients ask for.
        config: limits.
        routers: further routes (metrics, debugging), from the rooms above.
        run_id: leads from a reply to its trace; random when None.
    """
    config = config or ServerConfig()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(loop.stop, config.grace_s)

    app = FastAPI(title="KVScope", version=kvscope.__version__, lifespan=lifespan)
    app.add_middleware(Head)
    app.add_middleware(Gate, max_body=config.max_body, body_timeout_s=config.body_timeout_s, token=config.token)
    app.include_router(routes(loop, model, run_id or secrets.token_hex(8), max_tokens=config.max_tokens))
    app.include_router(_information(loop, model))
    for router in routers:
        app.include_router(router)
    speak_plainly(app)
    return app


def _information(loop: EngineLoop, model: str) -> APIRouter:
    router = APIRouter()

    def card() -> dict[str, Any]:
        return {"id": model, "object": "model", "created": int(loop.started), "owned_by": "kvscope"}

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [card()]}

    @router.get("/v1/models/{name:path}")
    async def one(name: str) -> dict[str, Any]:
        """That model."""
        if name != model:
            raise UnknownModel(f"model {name!r:.80} is not served here: this server has {model!r}")
        return card()

    @router.get("/healthz")
    async def healthz() -> JSONResponse:
        """200 while the engine serves, 503 with the reason when it does not."""
        if loop.failed is not None:
            return JSONResponse({"status": "failed", "reason": loop.failed}, status_code=503)
        return JSONResponse({"status": "ok", "requests": loop.live})

    return router
