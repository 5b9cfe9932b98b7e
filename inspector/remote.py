"""A running server's trace and pool, over its debug routes: reads like a trace folder, from another machine if need be.

`RemoteTrace` mirrors the events that the server has recorded, and offers them as every offline function of the
inspector reads a trace. Only the standard library speaks to the server.
"""

from __future__ import annotations

import http.client
import io
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError, UsageError
from kvscope.inspector.state import PoolState
from kvscope.traces.details import DetailStore
from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.sink import UNKNOWN_SITE, Details, Site
from kvscope.traces.tables import put_actors, put_sites

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


class RemoteTrace:
    """The trace of a running server, mirrored up to the last `refresh`; offers what a `TraceReader` does of it.

    All of it is held in memory: for a look. `inspector.mirror` keeps up with a server for as long as it runs.

    Args:
        url, token, timeout_s: see `Server`.

    Raises:
        TraceError: the server cannot be reached, has no debug routes, or records nothing.
    """

    clean = False

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 10.0) -> None:
        self.server = Server(url, token, timeout_s)
        self.run: dict[str, Any] = self.server.json("/run")
        if not self.run.get("recorded"):
            raise TraceError(f"{self.server.url} records nothing: start it with --trace")
        self.manifest: dict[str, Any] = self.run["manifest"]
        self.num_blocks = int(self.manifest["pool"]["num_blocks"])
        self.block_size = int(self.manifest["pool"]["block_size"])
        self.block_bytes = int(self.manifest["pool"].get("block_bytes") or 0)
        self.live, self.dropped = True, 0
        self.facts: list[dict[str, Any]] = []
        self.sites: list[Site] = [UNKNOWN_SITE]
        self.actors: list[str] = ["unknown"]
        self._details = DetailStore()
        self._parts: list[tuple[npt.NDArray[np.int64], EventArray]] = []
        self._all: tuple[npt.NDArray[np.int64], EventArray] = np.empty(0, np.int64), np.empty(0, EVENT_DTYPE)
        self._next, self._fact_byte = 0, 0
        self.refresh()

    @property
    def path(self) -> str:
        """Where it is."""
        return self.server.url

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        """The seq of each row."""
        return self._joined()[0]

    @property
    def events(self) -> EventArray:
        """All rows so far, in seq order."""
        return self._joined()[1]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.events)

    @property
    def warnings(self) -> Sequence[str]:
        """One line for each thing that makes the trace less than complete."""
        return [f"{self.dropped} events were dropped by the writer"] if self.dropped else []

    def detail(self, seq: int) -> tuple[int, ...] | None:
        """The details of the row `seq`, None where it has none."""
        return self._details.get(seq)

    def details_of(self, kind: int) -> Details:
        """(seqs, values) of every row of a kind that has details, in seq order."""
        seqs, offsets, values = self.detail_arrays(kind)
        ends, flat = offsets.tolist(), values.tolist()
        return seqs, [tuple(flat[lo:hi]) for lo, hi in itertools.pairwise(ends)]

    def detail_arrays(self, kind: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """`details_of` without a Python object per row: (seqs, offsets, values)."""
        return self._details.of_kind(kind, self.seqs, self.events["kind"])

    def refresh(self) -> bool:
        """Fetch what was recorded since; True when there are new events.

        Raises:
            TraceError: the server is gone (`live` is False from then on), or another run has taken its place.
        """
        before = self._next
        try:
            self._same_run()
            while self._fetch():
                pass
            fresh = self.server.json(f"/facts?from_byte={self._fact_byte}")
            names = self.server.json("/names") if self._next > before else {"sites": [], "actors": []}
        except TraceError:
            self.live = False
            raise
        self.facts += fresh["facts"]
        self._fact_byte = int(fresh["next"])
        put_sites(names["sites"], self.sites, 1)
        put_actors(names["actors"], self.actors, 1)
        return self._next > before

    def _same_run(self) -> None:
        run = self.server.json("/run").get("run")
        if run != self.run["run"]:
            raise TraceError(f"{self.server.url} has been started anew (run {run}): open it again")

    def _fetch(self) -> bool:
        """One answer of the event feed; True when there is more."""
        body, headers = self.server.get(f"/events?from_seq={self._next}")
        self.dropped = int(headers.get("x-kvscope-dropped", 0))
        seqs, events, details = decode_events(body)
        if len(seqs):
            self._parts.append((seqs, events))
            self._details.add(0, details)
        self._next = int(headers["x-kvscope-next"])
        return bool(len(seqs)) and self._next < int(headers["x-kvscope-end"])

    def _joined(self) -> tuple[npt.NDArray[np.int64], EventArray]:
        if self._parts:
            parts, self._parts = [self._all, *self._parts], []
            seqs, events = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
            put_sites([], self.sites, int(events["site"].max(initial=0)) + 1)
            put_actors([], self.actors, int(events["actor"].max(initial=0)) + 1)
            self._all = seqs, events
        return self._all


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
