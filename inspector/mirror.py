"""A running server's trace, kept up with in a folder of this machine, so that all that reads traces can read it.

A thread asks the event feed for what is new and writes the same batches down; whoever reads the folder reads what a
replay reads, in memory that does not grow with the run. When the server comes back as another run, the folder holds
that one from then on, as it does when an engine records into the same folder again. Where the server's recorder keeps
the newest events only, the folder begins with what the others had made of the pool; so it does anew where they went
before they had been fetched.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kvscope.errors import KVScopeError, TraceError
from kvscope.inspector.remote import Server, decode_events
from kvscope.traces.bulk import BulkWriter
from kvscope.traces.fold import BlockFold
from kvscope.traces.retention import parse_base
from kvscope.traces.sink import Frame, PoolFacts

log = logging.getLogger(__name__)

EVERY_S = 0.15  # between two questions while somebody looks
QUIET_S = 2.0  # and while nobody does, or the server does not answer
LOOKED_S = 10.0  # how long a look keeps the pace up


@dataclass(frozen=True)
class Contact:
    """How things stand with the server."""

    connected: bool = False
    said: str = ""  # why not, in one line
    run: str = ""  # which run the folder holds; empty before the first one
    events: int = 0  # the seq after the last event that is here
    end: int = 0  # the seq after the last event that the server has
    dropped: int = 0  # events that the server's recorder had to drop
    since: float = 0.0  # the wall clock when this began to be so

    @property
    def behind(self) -> int:
        """Events that are still to be fetched."""
        return max(self.end - self.events, 0)


class Mirror:
    """Keeps `folder` up with a server; a context manager. `contact` says how it goes; nothing is raised in the thread.

    The folder is a link to that of the run which the server is in: who has opened one run reads it to its end, whatever
    comes after it. Of the runs before, the newest is kept.

    Args:
        server: with its token.
        folder: made when the server first answers; what the runs are in lies beside it.
    """

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self._contact = Contact(said="not asked yet", since=time.time())
        self._writer: BulkWriter | None = None
        self._sites = self._actors = 1  # how many are known; number 0 is the unknown one
        self._fact_byte = self._runs = 0
        self._looked = time.monotonic()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def contact(self) -> Contact:
        """How things stand now; asking keeps the pace up."""
        now = time.monotonic()
        if now - self._looked > LOOKED_S:
            self._wake.set()
        self._looked = now
        return self._contact

    def start(self) -> Mirror:
        """Begin to follow, in a thread of its own."""
        self._thread = threading.Thread(target=self._follow, name="kvscope-mirror", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop; what is in the folder stays."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(self.server.timeout_s + 5)
        self._end_writer()

    def pull(self) -> bool:
        """Fetch one answer of the feed; True where there is more to fetch at once.

        Raises:
            TraceError: the server cannot be reached, or records nothing.
        """
        contact = self._contact
        first = contact.events if contact.run else 0
        body, headers = self.server.get(f"/events?from_seq={first}")
        run = headers.get("x-kvscope-run", "")
        if run != contact.run or self._writer is None:
            self._begin(run)
            return True
        if self._overtaken(run, first, int(headers.get("x-kvscope-first", 0))):
            return True
        seqs, events, details = decode_events(body)
        self._names(int(events["site"].max(initial=0)) + 1, int(events["actor"].max(initial=0)) + 1)
        self._facts()
        if len(seqs):
            at, offsets, values = details
            self._writer.rows(seqs, events, (np.searchsorted(seqs, at), offsets, values))
        after, end = int(headers["x-kvscope-next"]), int(headers["x-kvscope-end"])
        dropped = int(headers.get("x-kvscope-dropped", 0))
        if dropped != contact.dropped:
            self._writer.note(dropped=dropped)
        self._tell(connected=True, said="", events=after, end=end, dropped=dropped)
        return bool(len(seqs)) and after < end

    def __enter__(self) -> Mirror:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def _overtaken(self, run: str, wanted: int, left: int) -> bool:
        """Whether the recorder has let go of events that are not here yet: then the folder begins anew behind them."""
        if left <= wanted:
            return False
        base = parse_base(self.server.get("/base")[0])
        if base is None or base[0] < left:  # it does not say what they made of the pool: they are missing, and told so
            return False
        self._begin(run, base)
        return True

    def _begin(self, run: str, base: tuple[int, BlockFold] | None = None) -> None:
        """Another run, or what is left of one behind `base` (traces/retention.py): the folder is made anew."""
        said = self.server.json("/run")
        if not said.get("recorded"):
            raise TraceError(f"{self.server.url} records nothing: start it with --trace")
        if run != said["run"]:
            raise TraceError(f"{self.server.url} is being started anew")
        self._end_writer()
        manifest = said["manifest"]
        kept = {name: manifest[name] for name in ("engine", "record", "clock", "meta") if name in manifest}
        names = ("num_blocks", "block_size", "block_bytes", "name")
        pool = PoolFacts(**{name: manifest["pool"][name] for name in names if name in manifest["pool"]})
        self._runs += 1
        self._writer = BulkWriter(self._home(self._runs), pool=pool, manifest=kept)
        if base is not None:
            self._writer.base(*base)
        link = self.folder.with_name(self.folder.name + ".new")
        link.symlink_to(self._home(self._runs).name)
        link.replace(self.folder)
        shutil.rmtree(self._home(self._runs - 2), ignore_errors=True)
        self._sites = self._actors = 1
        self._fact_byte = 0
        self._tell(run=run, connected=True, said="", events=0 if base is None else base[0], end=0, dropped=0)

    def _home(self, run: int) -> Path:
        return self.folder.with_name(f"{self.folder.stem}-{run}{self.folder.suffix}")

    def _names(self, sites: int, actors: int) -> None:
        """Call sites and actors up to these numbers: they are there before the rows that name them."""
        assert self._writer is not None
        if sites <= self._sites and actors <= self._actors:
            return
        names = self.server.json("/names")
        for record in names["sites"]:
            if self._sites <= int(record["i"]) < sites:
                self._writer.site(int(record["i"]), [Frame(*frame[:3]) for frame in record["frames"]])
        for record in names["actors"]:
            if self._actors <= int(record["i"]) < actors:
                self._writer.actor(int(record["i"]), str(record["name"]))
        self._sites, self._actors = max(sites, self._sites), max(actors, self._actors)

    def _facts(self) -> None:
        assert self._writer is not None
        fresh = self.server.json(f"/facts?from_byte={self._fact_byte}")
        for record in fresh["facts"]:
            self._writer.fact(record)
        self._fact_byte = int(fresh["next"])

    def _follow(self) -> None:
        while not self._stop.is_set():
            again = False
            try:
                again = self.pull()
                pause = EVERY_S if time.monotonic() - self._looked < LOOKED_S else QUIET_S
            except (KVScopeError, OSError, ValueError, KeyError, TypeError) as error:
                self._lost(error)
                pause = QUIET_S / 2
            if not again:
                self._wake.wait(pause)
                self._wake.clear()

    def _lost(self, error: Exception) -> None:
        said = str(error) if isinstance(error, KVScopeError) else f"{self.server.url} answers strangely: {error}"
        if self._contact.connected:
            log.warning("%s", said)
        self._tell(connected=False, said=said)

    def _tell(self, **changes: Any) -> None:
        turned = changes.get("connected", self._contact.connected) != self._contact.connected
        if turned:
            changes["since"] = time.time()
        self._contact = replace(self._contact, **changes)

    def _end_writer(self) -> None:
        if self._writer is not None:
            self._writer.leave()
            self._writer = None


__all__ = ["Contact", "Mirror"]
