"""Several traces looked at together: the ranks of one engine, or its pools, one folder each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError
from kvscope.traces.folder import MANIFEST, traces_in
from kvscope.traces.manifest import no_trace
from kvscope.traces.reader import TraceReader, open_trace

MAX_TRACES = 1024


def find_traces(paths: Sequence[str | Path]) -> list[Path]:
    """Each path that is a trace, and of each folder that is none the traces directly in it, by name.

    Raises:
        TraceError: a path is missing, or a folder holds no trace.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir() or path.suffix == ".kvtrace" or (path / MANIFEST).exists():
            found.append(path)
            continue
        try:
            inside = traces_in(path)
        except OSError as error:
            raise TraceError(f"cannot read {path}: {error.strerror or error}") from error
        if not inside:
            raise TraceError(no_trace(path))
        found += inside
    if len(found) > MAX_TRACES:
        raise TraceError(f"{len(found)} traces are too many to look at together: at most {MAX_TRACES}")
    return list(dict.fromkeys(found))


def open_traces(paths: str | Path | Sequence[str | Path]) -> SeveralTraces:
    """Open several traces, or those in a folder.

    Raises:
        TraceError: one of them cannot be opened.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    return SeveralTraces([open_trace(path) for path in find_traces(given)])


class SeveralTraces:
    """Readers side by side, one clock for all: the wall clock that each manifest anchors its own times to."""

    def __init__(self, readers: Sequence[TraceReader]) -> None:
        self.readers = list(readers)

    def __len__(self) -> int:
        return len(self.readers)

    def __iter__(self) -> Iterator[TraceReader]:
        return iter(self.readers)

    def __getitem__(self, index: int) -> TraceReader:
        return self.readers[index]

    @property
    def names(self) -> list[str]:
        """A short name for each that no other has."""
        own = [reader.path.stem for reader in self.readers]
        return [
            name if own.count(name) == 1 else f"{reader.path.parent.name}/{name}"
            for name, reader in zip(own, self.readers, strict=True)
        ]

    def start_ns(self, index: int) -> int:
        """The wall clock, in ns, when a trace began; 0 where its manifest does not say."""
        clock: Any = self.readers[index].manifest.get("clock")
        value = clock.get("wall_ns") if isinstance(clock, dict) else None
        return value if type(value) is int and 0 <= value < 2**63 else 0

    def refresh(self) -> bool:
        """Read what was written since, of all; True when any has new events."""
        grown = [reader.refresh() for reader in self.readers]  # every one of them looks
        return any(grown)

    def merged(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(trace, row, wall_ns) of all rows by time; rows of one trace keep their order, whatever their clock did."""
        traces, rows, times = [], [], []
        for index, reader in enumerate(self.readers):
            t = reader.columns(("t_ns",))["t_ns"]
            times.append(np.maximum.accumulate(t) + self.start_ns(index) if len(t) else t)
            traces.append(np.full(len(t), index, np.int32))
            rows.append(np.arange(len(t)))
        if not times:
            return np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)
        every = np.concatenate(times)
        order = np.argsort(every, kind="stable")
        return np.concatenate(traces)[order], np.concatenate(rows)[order], every[order]

    def rows_at(self, wall_ns: int) -> list[int]:
        """Of each trace, how many rows had been written at a moment."""
        return [reader.row_at_time(wall_ns - self.start_ns(i)) for i, reader in enumerate(self.readers)]
