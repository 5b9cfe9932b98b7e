"""The OpenAI-compatible HTTP server: one engine thread, and around it FastAPI.

    loop         the thread that steps the engine; requests and aborts come to it through a queue
    answers      tokens to text, piece by piece, cut at stop strings
    protocol     what clients send, checked; what it means for the engine
    replies      what clients get: objects, chunks, errors, in OpenAI's shapes
    refusals     what is wrong with a request, in one line; and that the schema says so
    completions  the two routes that generate
    asked        what a client asked for, for telemetry
    timing       how long clients wait, in buckets
    head         HEAD as GET without a body
    connections  time for a request's head, and how many connections at once
    limits       body size, time to send it, bearer token: before any route
    config       the limits of all this
    app          all of it together; `create_app(loop, routers=...)` takes further routes from above

Only this folder needs FastAPI and pydantic, and it is imported only where one of these names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvscope.engine.server.app import create_app
    from kvscope.engine.server.config import ServerConfig
    from kvscope.engine.server.loop import EngineLoop, Stream

__all__ = ["EngineLoop", "ServerConfig", "Stream", "create_app"]

_HOMES = {"EngineLoop": "loop", "ServerConfig": "config", "Stream": "loop", "create_app": "app"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
