"""An engine served over HTTP: its loop, what watches it, and the server around them, from start to end."""

from __future__ import annotations

import logging
import secrets
import signal
import socket
import threading
import time
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING, Any

from kvscope.errors import MissingDependency, Sanitized
from kvscope.inspector.cli._lines import say

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kvscope.engine.engine import Engine
    from kvscope.engine.server import ServerConfig
    from kvscope.inspector.telemetry.switch import Wanted


class Serving:
    """All that belongs to one served engine.

    Args:
        engine: its sink, if any, is a recorder, or a sanitizer in front of one.
        trace: the folder it records into.
        model: the name that clients ask for.
        otel: what OpenTelemetry's variables ask for.
    """

    def __init__(
        self, engine: Engine, trace: Path | None, model: str, *, max_requests: int, debug_routes: bool, aliases: str,
        otel: Wanted | None,
    ) -> None:  # fmt: skip
        from kvscope.engine.server.loop import EngineLoop
        from kvscope.inspector.online import OnlineSanitizer
        from kvscope.inspector.telemetry.cost import RecordingCost
        from kvscope.inspector.telemetry.watch import Watch

        self.trace, self.model, self.run_id = trace, model, secrets.token_hex(8)
        self.failed: Sanitized | None = None  # the finding that ended it
        self._server: Any = None
        self._debug_routes, self._aliases, self._otel = debug_routes, aliases, otel
        sink = engine.sink
        cost = None if sink is None else RecordingCost(sink)
        self.loop = EngineLoop(
            engine, max_requests=max_requests, before_step=None if cost is None else cost.before_step,
            on_step=None if cost is None else cost.after_step,
            on_failed=self._on_failed,
        )  # fmt: skip
        sanitizer = sink if isinstance(sink, OnlineSanitizer) else None
        self.watch = Watch(self.loop, trace, run_id=self.run_id, model=model, sanitizer=sanitizer, cost=cost)
        if sink is not None:
            sink.fact({"type": "server", "run": self.run_id, "model": model, "wall_ns": time.time_ns()})

    def run(self, listener: socket.socket, settings: ServerConfig) -> None:
        """Serve until Ctrl-C, SIGTERM, or a finding that is to stop it."""
        address = listener.getsockname()
        telemetry = self._telemetry(address[0], address[1])
        self.loop.start()
        say(f"serving {self.model} on http://{address[0]}:{address[1]}/v1   (Ctrl-C ends it)")
        if self.trace is not None:
            say(f"  kvscope dashboard {quote(str(self.trace))}")
        try:
            self._serve(self._app(settings), listener, settings)
        finally:
            self.loop.stop(0)
            if telemetry is not None:
                telemetry.close()
        if self.failed is not None:
            self._report(self.failed)

    def _app(self, settings: ServerConfig) -> FastAPI:
        from kvscope.engine.server import create_app
        from kvscope.inspector.telemetry.aliases import ALIASES
        from kvscope.inspector.telemetry.debug import debug_router
        from kvscope.inspector.telemetry.routes import metrics_router

        routers = [metrics_router(self.watch, ALIASES[self._aliases])]
        if self._debug_routes:
            routers.append(debug_router(self.watch))
        return create_app(self.loop, model=self.model, config=settings, routers=routers, run_id=self.run_id)

    def _telemetry(self, host: str, port: int) -> Any:
        if self._otel is None:
            return None
        try:
            from kvscope.inspector.telemetry.otel import from_environment

            told = from_environment(
                self.watch, self._otel.traces, self._otel.metrics, self._otel.step_every, (host, port)
            ).start()
        except ImportError as error:
            raise MissingDependency(f"OpenTelemetry needs {error.name}: pip install 'kvscope[otel]'") from None
        if self.trace is None:
            say("  OpenTelemetry: no spans, for they are made from the trace; give --trace")
        return told

    def _on_failed(self, error: Exception) -> None:
        """Told in the engine's thread, once. A failed step leaves the server up to say so; a finding ends it."""
        if isinstance(error, Sanitized):
            self.failed = error
            if self._server is not None:
                self._server.should_exit = True

    def _report(self, stopped: Sanitized) -> None:
        """The finding with its story, as `kvscope check` tells it."""
        from kvscope.inspector.findings import check
        from kvscope.inspector.report import report
        from kvscope.inspector.source import frozen
        from kvscope.traces import open_trace

        if self.trace is None:
            return
        opened = frozen(open_trace(self.trace))
        result = check(opened)
        if result.findings:
            say(report(result, opened, name=str(self.trace), most=1))

    def _serve(self, app: FastAPI, listener: socket.socket, settings: ServerConfig) -> None:
        """Serve; on a signal running requests get `grace` seconds, and are told when they must end."""
        from uvicorn import Config, Server

        from kvscope.engine.server.connections import OncePerMinute, connection_places, patient_for

        loop, grace = self.loop, settings.grace_s

        class Draining(Server):
            """Ends the engine's requests first: their connections then close by themselves."""

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                threading.Thread(target=loop.stop, args=(grace,), daemon=True).start()
                super().handle_exit(sig, frame)

        # Having shut down, uvicorn raises the signal once more, for whoever handled it before: us, or the trace stays
        # open.
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
        protocol = patient_for(settings.head_timeout_s, connection_places())
        config = Config(
            app, http=protocol, log_level="warning", timeout_keep_alive=15, timeout_graceful_shutdown=int(grace) + 60,
            h11_max_incomplete_event_size=1 << 16, server_header=False, backlog=4096,
        )  # fmt: skip
        limit, log = OncePerMinute(), logging.getLogger("uvicorn.error")
        log.addFilter(limit)
        self._server = Draining(config)
        if self.failed is not None:
            self._server.should_exit = True
        try:
            self._server.run(sockets=[listener])
        finally:
            log.removeFilter(limit)
            for number, handler in before.items():
                signal.signal(number, handler)
