"""The OpenAI-compatible HTTP server: one engine thread, and around it FastAPI.

    loop         the thread that steps the engine; requests and aborts come to it through a queue
    answers      tokens to text, piece by piece, cut at stop strings
    protocol     what clients send, checked; what it means for the engine
    replies      what clients get: objects, chunks, errors, in OpenAI's shapes
    completions  the two routes that generate
    asked        what a client asked for, for telemetry
    timing       how long clients wait, in buckets
    head         HEAD as GET without a body
    connections  time for a request's head, and how many connections at once
    limits       body size, time to send it, bearer token: before any route
    app          all of it together; `create_app(loop, routers=...)` takes further routes from above

Only this folder needs FastAPI and pydantic.
"""

from kvscope.engine.server.app import ServerConfig, create_app
from kvscope.engine.server.loop import EngineLoop, Stream

__all__ = ["EngineLoop", "ServerConfig", "Stream", "create_app"]
