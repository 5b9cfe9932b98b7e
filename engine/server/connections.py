"""What a connection may cost before it has asked anything: time for its head, and one place of so many.

uvicorn waits for the head of a request for ever, and takes connections until file descriptors run out: then the trace
could not open its next segment either. Here a head that does not come in time is answered 408, a connection beyond the
last place 503, and both are closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import threading
import time
from collections.abc import Callable

from uvicorn.protocols.http.h11_impl import H11Protocol

from kvscope.engine.server.replies import error

WARN_EVERY_S = 60.0
SPARED = 128  # descriptors for the trace, the model and whatever else the process opens


class OncePerMinute(logging.Filter):
    """Of warnings that say the same, lets through one a minute with how many there were since; errors always.

    Whoever sends garbage would fill the log otherwise.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._told: dict[str, tuple[float, int]] = {}  # by template: when, and how many were held back since

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is written; its text then has the number of those that were not."""
        if record.levelno > logging.WARNING:
            return True
        with self._lock:
            now, name = self._clock(), str(record.msg)
            at, held = self._told.get(name, (-WARN_EVERY_S, 0))
            if now - at < WARN_EVERY_S:
                self._told[name] = at, held + 1
                return False
            self._told[name] = now, 0
        if held:
            record.msg, record.args = f"{record.getMessage()} ({held:,} more since the last such line)", ()
        return True


def connection_places() -> int:
    """How many connections the process's limit on descriptors leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else max(soft - SPARED, 16)


def patient_for(head_timeout_s: float, most: int) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with these limits, for `Config(http=...)`.

    Args:
        head_timeout_s: from the connection, or a further request's first byte on it, until its head is complete.
        most: connections at once.
    """

    class Patient(H11Protocol):
        _until_head: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                self._turn_away(503, f"{most} connections are open, the most at once: try again later", "overloaded")
            else:
                self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._wait()
            else:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            """Once: bytes that trickle in do not put it off."""
            if self._until_head is None:
                self._until_head = self.loop.call_later(head_timeout_s, self._too_slow)

        def _stop_waiting(self) -> None:
            if self._until_head is not None:
                self._until_head.cancel()
                self._until_head = None

        def _too_slow(self) -> None:
            self._until_head = None
            self._turn_away(408, f"the request's head did not come within {head_timeout_s:g} s", "timeout")

        def _turn_away(self, status: int, message: str, code: str) -> None:
            if self.transport.is_closing():
                return
            body = json.dumps(error(message, status, code=code)).encode()
            self.transport.write(
                f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n".encode()
                + body
            )
            self.transport.close()

    return Patient
