"""The application: routes, errors in one shape, health, and whatever routers the rooms above add."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

import kvscope
from kvscope.engine.server.completions import routes
from kvscope.engine.server.head import Head
from kvscope.engine.server.limits import Gate
from kvscope.engine.server.loop import EngineLoop
from kvscope.engine.server.replies import BadField, UnknownModel, error, status_of
from kvscope.errors import KVScopeError, UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits of the HTTP side.

    max_body: bytes of a request. body_timeout_s: in which it must have come, and head_timeout_s what stands before it,
    where the server is uvicorn with `connections.patient_for`. max_tokens: of one answer. token: the
    bearer token that clients must send; None asks for none. grace_s: what running requests get at shutdown.
    """

    max_body: int = 4 << 20
    body_timeout_s: float = 30.0
    head_timeout_s: float = 15.0
    max_tokens: int = 4096
    token: str | None = None
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 << 10 <= self.max_body <= 1 << 30:
            raise UsageError(f"max_body is {self.max_body}: must be 1,024..{1 << 30:,} bytes")
        for name, seconds in (("body_timeout_s", self.body_timeout_s), ("head_timeout_s", self.head_timeout_s)):
            if not 0 < seconds <= 3600:
                raise UsageError(f"{name} is {seconds}: must be above 0, at most 3,600")
        if not 0 <= self.grace_s <= 3600:
            raise UsageError(f"grace is {self.grace_s}: must be 0..3,600 seconds")
        if not 1 <= self.max_tokens <= 1 << 20:
            raise UsageError(f"max_tokens is {self.max_tokens}: must be 1..{1 << 20}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise UsageError("the bearer token is empty or holds odd characters: take printable ASCII")


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
    _errors(app)
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


_WANTED = {
    "prompt": "wanted a text, a list of at most 64 texts, token ids, or lists of them",
    "stop": "wanted a text, or at most 4 of them",
    "messages": "wanted a list of {role, content}; content is a text, or parts of type text",
}


def _complaint(errors: Sequence[Any]) -> tuple[str, str | None]:
    """(one line, the field it is about) of what is wrong with a body."""
    first = errors[0] if errors else {"loc": (), "msg": "the request is malformed", "type": ""}
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return "the body is not JSON", None
    if not path:
        return "the body is not a JSON object: send one, with content-type: application/json", None
    field = path[0]
    if field in _WANTED and first["type"] != "missing":
        return f"{field}: {_WANTED[field]}", field
    return f"{'.'.join(path)}: {first['msg']}", field


def _errors(app: FastAPI) -> None:
    """Every error in OpenAI's shape, one line, no traceback."""

    @app.exception_handler(KVScopeError)
    async def own(_: Request, problem: KVScopeError) -> JSONResponse:
        status = status_of(problem)
        headers = {"retry-after": "1"} if status == 429 else None
        param, code = (problem.param, problem.code) if isinstance(problem, BadField) else (None, None)
        body = error(" ".join(str(problem).split()), status, param=param, code=code)
        return JSONResponse(body, status_code=status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, problem: RequestValidationError) -> JSONResponse:
        message, where = _complaint(problem.errors())
        return JSONResponse(error(message, 400, param=where), status_code=400)

    @app.exception_handler(HTTPException)
    async def plain(_: Request, problem: HTTPException) -> JSONResponse:
        return JSONResponse(error(str(problem.detail), problem.status_code), status_code=problem.status_code)

    @app.exception_handler(Exception)
    async def unknown(_: Request, problem: Exception) -> JSONResponse:
        log.exception("a request failed", exc_info=problem)
        return JSONResponse(error("the server failed on this request; its log says why", 500), status_code=500)
