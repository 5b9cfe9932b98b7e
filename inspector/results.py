"""Files that runs leave behind, read back for people: property runs (fuzz, races, JUnit), and measured overhead.

Nothing in a file is believed: what has another form than expected is left out, and what is no result at all is passed
over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

MAX_BYTES = 16 << 20
MAX_FILES = 200
SUFFIXES = (".json", ".xml")


@dataclass(frozen=True)
class Case:
    """One test of a run: its name, `passed`, `failed`, `error` or `skipped`, and what it said."""

    name: str
    verdict: str
    said: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Stretch:
    """What one thread did until another one went on: (where, source line or call)."""

    thread: int
    steps: tuple[tuple[str, str], ...]
    preempted: bool


@dataclass(frozen=True)
class PropertyRun:
    """A run of the fuzzer, of the race explorer, or of a test suite."""

    file: str
    tool: str  # "fuzz", "races" or "tests"
    target: str
    verdict: str  # "clean", "finding" or "unusable"
    headline: str
    numbers: tuple[tuple[str, float, str], ...] = ()  # label, value, unit
    program: str = ""
    replay: str = ""
    lanes: tuple[Stretch, ...] = ()
    lanes_text: str = ""
    notes: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()


@dataclass(frozen=True)
class Overhead:
    """What recording costs one load: times without and with it, their ratio and its spread."""

    name: str
    unit: str
    with_it: float
    without: float
    ratio: float
    low: float | None = None
    high: float | None = None
    gate: float | None = None


@dataclass
class Results:
    """Everything that was found in some files."""

    runs: list[PropertyRun] = field(default_factory=list)
    overhead: list[Overhead] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # one line for each file that could not be read


def read_results(paths: Iterable[Path]) -> Results:
    """The results in files, and in folders (those directly in them)."""
    found = Results()
    for path in _files(paths):
        try:
            if path.stat().st_size > MAX_BYTES:
                found.unread.append(f"{path.name}: larger than {MAX_BYTES >> 20} MiB")
                continue
            _read(path, path.read_text(encoding="utf-8", errors="replace"), found)
        except OSError as error:
            found.unread.append(f"{path.name}: {error.strerror or error}")
        except (ValueError, RecursionError, ElementTree.ParseError):
            found.unread.append(f"{path.name}: neither JSON nor XML, or torn")
    return found


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        found += sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)[:MAX_FILES] if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def _read(path: Path, text: str, into: Results) -> None:
    if path.suffix == ".xml":
        if "<!" in text.replace("<![CDATA[", ""):
            raise ValueError("a document type: not from a test runner")
        into.runs += [_suite(path.name, suite) for suite in ElementTree.fromstring(text).iter("testsuite")]
        return
    data = json.loads(text)
    if not isinstance(data, dict):
        return
    if data.get("schema") == "kvscope-fuzz/1":
        into.runs.append(_fuzz(path.name, data))
    elif data.get("schema") == "kvscope-races/1":
        into.runs.append(_races(path.name, data))
    elif isinstance(data.get("rows"), list):
        into.overhead += [found for found in map(_overhead, data["rows"]) if found is not None]


def _fuzz(file: str, data: dict[str, Any]) -> PropertyRun:
    finding = _dict(data.get("finding"))
    said = f"{_text(finding.get('code'))} {_text(finding.get('name'))}: {_text(finding.get('why'))}" if finding else ""
    verdict = data.get("verdict")
    return PropertyRun(
        file, "fuzz", _text(data.get("target")), verdict if verdict in ("finding", "unusable") else "clean",
        said or _text(data.get("error")) or "no rule was broken",
        _numbers(data, ("examples", "programs tried", ""), ("rules", "rule steps", ""), ("calls", "calls", ""),
                 ("elapsed_s", "time", "s"), ("threads", "threads", "")),
        _text(finding.get("program")), _text(finding.get("replay")), (), _text(finding.get("lanes")),
        tuple(_texts(data.get("notes"))),
    )  # fmt: skip


def _races(file: str, data: dict[str, Any]) -> PropertyRun:
    inner = data if "lanes" in data or "failure" in data else _dict(data.get("outcome")) or data
    failure = _dict(inner.get("failure"))
    said = " ".join(filter(None, [_text(failure.get(name)) for name in ("kind", "code", "message")]))
    found = bool(inner.get("found")) or bool(failure)
    return PropertyRun(
        file, "races", _text(inner.get("name") or data.get("target")), "finding" if found else "clean",
        said or "no schedule failed",
        _numbers(inner, ("schedules", "schedules", ""), ("histories", "histories", ""), ("points", "switch points", ""),
                 ("preemptions", "preemptions", ""), ("to_failure_s", "to the failure", "s"), ("seconds", "time", "s")),
        _text(inner.get("program")), _text(inner.get("replay")), tuple(_stretches(inner.get("lanes"))),
        inner["lanes"] if isinstance(inner.get("lanes"), str) else "",
        tuple(filter(None, [_text(inner.get("statement")), *_texts(inner.get("notes"))])),
    )  # fmt: skip


def _stretches(value: Any) -> list[Stretch]:
    found = []
    for item in value if isinstance(value, list) else ():
        record = _dict(item)
        steps: list[tuple[str, str]] = []
        told = record.get("steps")
        for step in map(_dict, told if isinstance(told, list) else ()):
            where = f"{_text(step.get('file')).rpartition('/')[2]}:{_text(step.get('line'))}"
            said = (where, _text(step.get("what")) or _text(step.get("source")))
            if not steps or steps[-1] != said:
                steps.append(said)
        if isinstance(record.get("thread"), int) and 0 <= record["thread"] < 64:
            found.append(Stretch(record["thread"], tuple(steps), bool(record.get("preempted"))))
    return found


def _suite(file: str, suite: ElementTree.Element) -> PropertyRun:
    cases = []
    for case in suite.iter("testcase"):
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        verdict = "passed" if bad is None else {"failure": "failed"}.get(bad.tag, bad.tag)
        said = "" if bad is None else "\n".join(filter(None, [bad.get("message"), (bad.text or "").strip()]))
        name = ".".join(filter(None, [case.get("classname"), case.get("name")]))
        cases.append(Case(name, verdict, said, _float(case.get("time"))))
    bad_cases = [case for case in cases if case.verdict in ("failed", "error")]
    counts: tuple[tuple[str, float, str], ...] = (("tests", len(cases), ""), ("failed", len(bad_cases), ""))
    seconds = _float(suite.get("time"))
    headline = f"{len(bad_cases)} of {len(cases)} tests failed" if bad_cases else f"all of {len(cases)} tests passed"
    return PropertyRun(
        file, "tests", suite.get("name") or file, "finding" if bad_cases else "clean", headline,
        counts + (() if seconds is None else (("time", seconds, "s"),)), cases=tuple(cases),
    )  # fmt: skip


def _overhead(value: Any) -> Overhead | None:
    record = _dict(value)
    with_it, without, ratio = (_float(record.get(name)) for name in ("value", "baseline", "ratio"))
    if with_it is None or without is None or ratio is None or not _text(record.get("name")).endswith("recording"):
        return None
    low, high, gate = (_float(record.get(name)) for name in ("low", "high", "gate"))
    return Overhead(_text(record["name"]), _text(record.get("unit")), with_it, without, ratio, low, high, gate)


def _numbers(data: dict[str, Any], *wanted: tuple[str, str, str]) -> tuple[tuple[str, float, str], ...]:
    values = [(label, _float(data.get(name)), unit) for name, label, unit in wanted]
    return tuple((label, value, unit) for label, value, unit in values if value is not None)


def _float(value: Any) -> float | None:
    try:
        number = None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
