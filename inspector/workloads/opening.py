"""Finds out what a workload is, and reads it with the right reader."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.errors import UsageError
from kvscope.inspector.facts import usable
from kvscope.inspector.workloads.generate import generate
from kvscope.inspector.workloads.objects import CountTokens, read_json
from kvscope.inspector.workloads.request import MAX_OUTPUT, Rows, Workload
from kvscope.inspector.workloads.tables import read_csv
from kvscope.traces.folder import open_regular
from kvscope.traces.schema import Kind

if TYPE_CHECKING:
    from kvscope.traces.sink import Trace

_MAX_PRIORITY = 1 << 31  # beyond it a trace says nonsense
MAX_LINE = 1 << 30  # characters: a list of conversations may be one line
_PIECE = 1 << 20


def open_workload(source: str, *, limit: int | None = None, count_tokens: CountTokens | None = None) -> Workload:
    """The requests of a file, a trace folder or a `gen:` spec, at most `limit` of them.

    Args:
        source: a path (also of a trace, packed or not), or `gen:...`.
        limit: read the first so many requests only.
        count_tokens: the tokenizer's length of a text, for files that hold text; estimated without it.

    Raises:
        UsageError: it is no workload, or a line of it makes no sense. OSError: it cannot be read.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}: must be at least 1 request")
    if source.startswith("gen:"):
        return generate(source, limit)
    path = Path(source)
    if is_trace(path):
        from kvscope.traces import open_trace

        return from_trace(source, open_trace(path), limit)
    lines = _lines(path)
    try:
        first = next((line for line in lines if line.strip()), "")
        if not first:
            raise UsageError(f"{source} is empty: no requests")
        both = _put_back(first, lines)
        if first.lstrip()[0] in "[{":
            return read_json(source, both, limit, count_tokens)
        return read_csv(source, both, limit)
    except UnicodeDecodeError:
        raise UsageError(f"{source} is not UTF-8 text: no workload file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{source} is damaged: {error}") from None


def is_trace(path: Path) -> bool:
    """Whether this is a trace rather than a file of requests: a folder, or a packed one (a zip archive)."""
    if not path.is_file():
        return path.is_dir()
    with open(open_regular(Path(os.path.realpath(path))), "rb") as file:
        return file.read(2) == b"PK"


def _lines(path: Path) -> Iterator[str]:
    with open(open_regular(Path(os.path.realpath(path))), "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with io.TextIOWrapper(gzip.open(file) if zipped else file, encoding="utf-8-sig", newline=None) as text:
            pieces: list[str] = []
            while piece := text.readline(_PIECE):
                if "\0" in piece or len(pieces) > MAX_LINE // _PIECE:
                    what = f"has a line of more than {MAX_LINE:,} characters" if "\0" not in piece else "is not text"
                    raise UsageError(f"{path} {what}: no workload file")
                pieces.append(piece)
                if piece.endswith("\n"):
                    yield "".join(pieces)
                    pieces.clear()
            if pieces:
                yield "".join(pieces)


def _put_back(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def from_trace(name: str, trace: Trace, limit: int | None) -> Workload:
    """The requests that a recorded run served, with the lengths they had in the end.

    Raises:
        UsageError: the trace speaks of no request.
    """
    outputs: dict[int, int] = {}
    facts = usable(trace.facts)
    for fact in facts:
        if fact.get("type") == "output" and "request" in fact:
            request = int(fact["request"])
            outputs[request] = max(outputs.get(request, 0), int(fact["tokens"]))
    events = trace.events
    rows_of = events["kind"] == Kind.SUBMIT
    arrivals = dict(zip(events["seq_id"][rows_of].tolist(), events["t_ns"][rows_of].tolist(), strict=True))
    rows = Rows(name, "trace", limit)
    for number, fact in enumerate((f for f in facts if f.get("type") == "request" and "prompt_tokens" in f), 1):
        if rows.full:
            break
        request, seq_ids = int(fact["request"]), fact.get("seq_ids") or [-1]
        when = int(fact.get("arrival_ns", 0)) or arrivals.get(int(seq_ids[0]), 0)
        output = outputs.get(request, int(fact.get("max_tokens", 1)))
        rows.add(number, when, int(fact["prompt_tokens"]), min(output, MAX_OUTPUT),
                 samples=int(fact.get("samples", 1)), sort=True, priority=_priority(fact))  # fmt: skip
    rows.workload.notes.append("a trace holds no text: which prompts begin alike is not known")
    return rows.done()


def _priority(fact: dict[str, Any]) -> int:
    """A recorded request's priority; 0 where the trace does not say."""
    value = fact.get("priority", 0)
    return value if isinstance(value, int) and abs(value) < _MAX_PRIORITY else 0
