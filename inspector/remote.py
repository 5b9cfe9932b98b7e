"""A running server's pool and events, over its debug routes, from another machine if need be.

`inspector.mirror` keeps a trace folder up with them. Only the standard library speaks to the server.
"""

from __future__ import annotations

import http.client
import io
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError, UsageError
from kvscope.inspector.state import PoolState
from kvscope.traces.schema import EVENT_DTYPE, EventArray

MAX_ANSWER_BYTES = 256 << 20
_BROKEN = (OSError, http.client.HTTPException)  # of a connection; the second is what a half answer gives


class Unreachable(TraceError):
    """The server does not answer, or its answer broke off: it may answer again."""


def is_url(place: str) -> bool:
    """Whether it names a server instead of a file."""
    return place.startswith(("http://", "https://"))


def read_token(file: Path | None) -> str | None:
    """The bearer token in a file; None without a file.

    Raises:
        UsageError: it cannot be read, or is empty.
    """
    if file is None:
        return None
    try:
        text = file.read_text(encoding="utf-8", errors="replace")[:4096].strip()
    except OSError as error:
        raise UsageError(f"cannot read the token file {file}: {error.strerror or error}") from error
    if not text:
        raise UsageError(f"{file} holds no token: write one line of printable characters")
    return text


class Server:
    """A server's debug routes.

    Args:
        url: `http://127.0.0.1:8000`, with or without `/v1` behind it.
        token: the bearer token, where it asks for one.
        timeout_s: of one request.

    Raises:
        UsageError: the URL is none.
    """

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 10.0) -> None:
        if not is_url(url):
            raise UsageError(f"{url!r:.80} is no URL: wanted http://HOST:PORT")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.timeout_s = timeout_s

    def get(self, path: str) -> tuple[bytes, dict[str, str]]:
        """(body, headers) of a debug route.

        Raises:
            Unreachable: it does not answer.
            TraceError: it refuses.
        """
        with self._open(path) as answer:
            try:
                body = answer.read(MAX_ANSWER_BYTES)
            except _BROKEN as error:
                raise Unreachable(f"{self.url} broke off: {' '.join(str(error).split())}") from error
            return body, {name.lower(): value for name, value in answer.headers.items()}

    def json(self, path: str) -> Any:
        """The JSON of a debug route; raises as `get` does."""
        try:
            return json.loads(self.get(path)[0])
        except ValueError as error:
            raise TraceError(f"{self.url}/debug/kv{path} answered with something that is not JSON") from error

    def frames(self, interval_s: float = 0.5) -> Iterator[dict[str, Any]]:
        """Summary frames as they come, until the server ends; raises as `get` does."""
        with self._open(f"/live?interval={interval_s:g}") as answer:
            try:
                for line in answer:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])
            except (*_BROKEN, ValueError) as error:
                raise Unreachable(f"{self.url} broke off: {' '.join(str(error).split())}") from error

    def pool(self) -> PoolState:
        """Every block of the pool, now; raises as `get` does."""
        body, headers = self.get("/pool")
        columns = _columns(body)
        seq = int(headers.get("x-kvscope-seq", -1))
        nothing = np.full(len(columns["state"]), -1, np.int64)
        lost = columns.get("lost", np.zeros(len(nothing), np.int32))  # a server of an older version does not say
        return PoolState(
            seq=seq, block_size=int(self.json("/run")["block_size"]), state=columns["state"], gen=columns["gen"],
            entries=columns["entries"], lost=lost, leases=columns["leases"], fill=columns["fill"],
            published=columns["published"].astype(bool), writing=columns["writing"].astype(bool), last_seq=nothing,
        )  # fmt: skip

    def _open(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/debug/kv{path}", headers=self._headers)
        try:
            return urllib.request.urlopen(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            raise TraceError(f"{self.url}: {_why(error)}") from error
        except (*_BROKEN, ValueError) as error:
            reason = getattr(error, "reason", error)
            reason = " ".join(str(getattr(reason, "strerror", None) or reason).split())
            raise Unreachable(f"cannot reach {self.url}: {reason}; is the server running?") from error


def decode_events(body: bytes) -> tuple[npt.NDArray[np.int64], EventArray, Any]:
    """(seqs, rows, details by seq) of an answer of the event feed."""
    import pyarrow as pa

    with pa.ipc.open_stream(io.BytesIO(body)) as reader:
        table = reader.read_all().combine_chunks()
    events = np.zeros(table.num_rows, EVENT_DTYPE)
    for name in EVENT_DTYPE.names or ():
        events[name] = np.asarray(table[name])
    seqs = np.asarray(table["seq"]).astype(np.int64)
    found = [(i, values) for i, values in enumerate(table["detail"].to_pylist()) if values is not None]
    at = seqs[[i for i, _ in found]] if found else np.empty(0, np.int64)
    offsets = np.cumsum([0, *(len(values) for _, values in found)], dtype=np.int64)
    return seqs, events, (at, offsets, np.asarray([v for _, values in found for v in values], np.int64))


def _columns(body: bytes) -> dict[str, npt.NDArray[Any]]:
    import pyarrow as pa

    with pa.ipc.open_stream(io.BytesIO(body)) as reader:
        table = reader.read_all()
    return {name: np.asarray(table[name]) for name in table.column_names}


def _why(error: urllib.error.HTTPError) -> str:
    """A refusal in words."""
    if error.code == 404:
        return "it has no debug routes: start it with --debug-routes"
    if error.code == 401:
        return "it asks for a bearer token: give --token-file"
    try:
        return str(json.loads(error.read(1 << 16))["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return f"it answered {error.code}"
