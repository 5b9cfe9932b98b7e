"""A small asynchronous HTTP client for load: one connection per request, streams read line by line."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """One streamed completion. Times are of `time.perf_counter`, 0 where it did not come so far."""

    due: float  # when it was to be asked, which may be before it could be
    status: int = 0
    text: str = ""
    finish: str | None = None
    done: bool = False  # the stream was ended as it should be
    error: str = ""
    arrivals: list[float] = field(default_factory=list)  # of its pieces

    @property
    def first_token_s(self) -> float | None:
        """From when it was due to its first piece: a queue in front of the server counts."""
        return self.arrivals[0] - self.due if self.arrivals else None

    @property
    def per_token_s(self) -> float | None:
        """Mean time between two pieces."""
        count = len(self.arrivals) - 1
        return (self.arrivals[-1] - self.arrivals[0]) / count if count > 0 else None


async def connect(base: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to `http://host:port`."""
    host, port = base.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 20)


def request(path: str, body: Any) -> bytes:
    """The bytes of a POST. HTTP/1.0, so that a stream ends with its connection and is not chunked."""
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    ).encode() + data


async def stream(base: str, body: dict[str, Any], *, due: float | None = None,
                 connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None) -> Answer:  # fmt: skip
    """Ask for a streamed completion and read it to its end; what goes wrong is in the answer."""
    answer = Answer(time.perf_counter() if due is None else due)
    try:
        reader, writer = connection or await connect(base)
    except OSError as error:
        answer.error = str(error)
        return answer
    try:
        writer.write(request("/v1/completions", {**body, "stream": True}))
        answer.status = int((await reader.readline()).split()[1])
        while (await reader.readline()).strip():
            pass
        if answer.status != 200:
            answer.error = (await reader.read(4096)).decode(errors="replace")
            return answer
        while line := await reader.readline():
            if line.startswith(b"data: "):
                _take(answer, line[6:].strip())
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
        answer.error = repr(error)
    finally:
        writer.close()
    return answer


def _take(answer: Answer, data: bytes) -> None:
    if data == b"[DONE]":
        answer.done = True
        return
    told = json.loads(data)
    if "error" in told:
        answer.error = told["error"]["message"]
    for choice in told.get("choices", ()):
        answer.arrivals.append(time.perf_counter())
        answer.text += choice["text"]
        answer.finish = choice["finish_reason"] or answer.finish


def percentiles(values: Sequence[float], points: Sequence[int] = (50, 90, 99)) -> dict[str, float | None]:
    """{"p50": ...}, None where there are none."""
    ordered = sorted(values)
    return {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] if ordered else None for p in points}
