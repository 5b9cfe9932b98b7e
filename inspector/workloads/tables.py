"""CSV workloads: Azure's LLM inference traces and BurstGPT; the columns say which."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from datetime import UTC, datetime

from kvscope.errors import UsageError
from kvscope.inspector.workloads.request import Rows, Workload

AZURE = ("timestamp", "contexttokens", "generatedtokens")
BURSTGPT = ("timestamp", "request tokens", "response tokens")


def read_csv(name: str, lines: Iterable[str], limit: int | None) -> Workload:
    """The requests of a CSV file.

    Raises:
        UsageError: columns are missing, or a row makes no sense; says which line.
    """
    reader = csv.reader(lines)
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        twice = next((column for column in (*AZURE, *BURSTGPT) if header.count(column) > 1), None)
        if twice is not None:
            raise UsageError(f"{name}:1: there are {header.count(twice)} columns {twice!r}: which one counts?")
        if set(AZURE) <= set(header):
            return _azure(Rows(name, "azure", limit), reader, header)
        if set(BURSTGPT) <= set(header):
            return _burstgpt(Rows(name, "burstgpt", limit), reader, header)
    except csv.Error as error:
        raise UsageError(f"{name}:{reader.line_num}: not CSV: {error}") from None
    raise UsageError(
        f"{name}:1: columns {', '.join(header)[:120] or '(none)'}: wanted TIMESTAMP,ContextTokens,GeneratedTokens "
        "(Azure) or Timestamp,Request tokens,Response tokens (BurstGPT)"
    )


def _azure(rows: Rows, reader: Iterable[list[str]], header: list[str]) -> Workload:
    time, prompt, output = (header.index(column) for column in AZURE)
    for line, cells in enumerate(reader, 2):
        if rows.full:
            break
        if not cells:
            continue
        if len(cells) < len(header):
            raise rows.error(line, f"{len(cells)} columns of {len(header)}: the line is cut short")
        when = _time_ns(cells[time])
        if when is None:
            raise rows.error(
                line, f"TIMESTAMP is {cells[time][:40]!r}: wanted a date and time such as 2023-11-16 18:17:03.97"
            )
        tokens = rows.integer(line, "ContextTokens", cells[prompt])
        rows.add(line, when, tokens, rows.integer(line, "GeneratedTokens", cells[output]))
    return rows.done()


def _time_ns(text: str) -> int | None:
    """Nanoseconds of `2023-11-16 18:17:03.9799600` (any number of fraction digits, an offset or none)."""
    whole, point, rest = text.strip().partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if point else ""
    try:
        date = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return int(date.timestamp()) * 10**9 + int((digits + "0" * 9)[:9])


def _burstgpt(rows: Rows, reader: Iterable[list[str]], header: list[str]) -> Workload:
    time, prompt, output = (header.index(column) for column in BURSTGPT)
    failed = 0
    for line, cells in enumerate(reader, 2):
        if rows.full:
            break
        if not cells:
            continue
        if len(cells) < len(header):
            raise rows.error(line, f"{len(cells)} columns of {len(header)}: the line is cut short")
        try:
            when = int(float(cells[time]) * 10**9)
        except (ValueError, OverflowError):
            raise rows.error(line, f"Timestamp is {cells[time][:40]!r}: wanted seconds") from None
        tokens = rows.integer(line, "Response tokens", cells[output])
        if tokens == 0:
            failed += 1  # the data set's mark of a request that failed
            continue
        rows.add(line, when, rows.integer(line, "Request tokens", cells[prompt]), tokens)
    if failed:
        rows.workload.notes.append(f"{failed:,} requests without a response (failed) are left out")
    return rows.done()
