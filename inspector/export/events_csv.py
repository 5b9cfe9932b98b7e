"""One CSV of the events, with names in place of numbers: for spreadsheets and quick looks.

Names come from the recorded program and from whoever sent the requests; a spreadsheet takes text that begins with
`= + - @` for a formula, so such text gets an apostrophe before it (OWASP, "CSV Injection").
"""

from __future__ import annotations

import csv
import io
from typing import BinaryIO

from kvscope.inspector.export.parts import Progress, kind_names, no_progress, parts, reason_names
from kvscope.inspector.source import Names, TraceLike, short_path
from kvscope.traces.schema import DETAIL_FIELDS, EVENT_DTYPE, Kind

NUMBERS = ("t_ns", "step", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux", "tier")
COLUMNS = ("seq", "kind", "reason", *NUMBERS, "sequence", "actor", "site", "details")
assert set(NUMBERS) < set(EVENT_DTYPE.names or ())
_DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n")


def write_csv(trace: TraceLike, rows: range, file: BinaryIO, progress: Progress = no_progress) -> int:
    """Write the rows below a line of column names; returns the number of rows."""
    kinds, reasons, names = kind_names(), reason_names(), Names(trace.facts)
    actors = [safe(name) for name in trace.actors]
    sites = [safe(f"{short_path(s.file)}:{s.line} in {s.function}") if s.file else "" for s in trace.sites]
    known: dict[int, str] = {-1: ""}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for part in parts(trace, rows, progress, size=16_384):
        details, events = part.details(), part.events
        numbers = [events[name].tolist() for name in NUMBERS]
        for seq, kind, reason, seq_id, actor, site, *values in zip(
            part.seqs.tolist(), *(events[n].tolist() for n in ("kind", "reason", "seq_id", "actor", "site")), *numbers,
            strict=True,
        ):  # fmt: skip
            if seq_id not in known:
                known[seq_id] = safe(names(seq_id))
            writer.writerow([
                seq, kinds[kind], reasons[reason], *values, known[seq_id],
                actors[actor] if actor < len(actors) else "", sites[site] if site < len(sites) else "",
                _detail_text(kind, details[seq]) if seq in details else "",
            ])  # fmt: skip
        file.write(text.getvalue().encode("utf-8", "backslashreplace"))
        text.seek(0)
        text.truncate()
    file.write(text.getvalue().encode())
    return len(rows)


def safe(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_DANGEROUS) else text


def detail_names(kind: int, count: int) -> list[str]:
    """The names of a row's details; `value_3` where there is none."""
    known = DETAIL_FIELDS.get(Kind(kind), ()) if kind in set(Kind) else ()
    return [known[i] if i < len(known) else f"value_{i}" for i in range(count)]


def _detail_text(kind: int, values: list[int]) -> str:
    return " ".join(f"{name}={value}" for name, value in zip(detail_names(kind, len(values)), values, strict=True))
