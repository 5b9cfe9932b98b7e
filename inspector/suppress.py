"""Suppressions: findings that are known and accepted, by code and place, each with its reason.

    KV006                      every finding of the code
    KV006:b9                   on block 9
    KV006:engine/pool.py       at a call site in this file
    KV006:Scheduler._start     at a call site in this function

In a file: one rule a line, its reason behind a `#`. What is suppressed is still counted and listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.findings import CODES, CheckResult, Finding, one_line
from kvscope.inspector.source import Names, TraceLike, rows_until, site_of

_RULE = re.compile(r"(KV\d{3})(?::(\S+))?$")


@dataclass(frozen=True, slots=True)
class Rule:
    """One suppression: the findings of a code, at one place or anywhere."""

    code: str
    place: str  # b9, a file, a function; empty: anywhere
    reason: str = ""
    where: str = ""  # the line of a file that it stands in, FILE:3

    def __str__(self) -> str:
        return f"{self.code}:{self.place}" if self.place else self.code

    def covers(self, finding: Finding, trace: TraceLike) -> bool:
        """Whether it speaks of this finding."""
        if finding.code != self.code:
            return False
        if not self.place or self.place == f"b{finding.block}":
            return True
        site = site_of(trace, max(0, rows_until(trace, finding.seq) - 1))
        if site is None:
            return False
        return self.place == site.function or site.file.replace("\\", "/").endswith(self.place)


@dataclass(frozen=True, slots=True)
class Suppressed:
    """What a rule took away."""

    rule: Rule
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        count = len(self.findings)
        about = "; ".join(part for part in (self.rule.reason, self.rule.where) if part)
        why = f" ({about})" if about else ""
        if not count:
            return f"suppression {self.rule} matches no finding{why}"
        return f"suppressed by {self.rule}{why}: {count:,} finding{'s' if count > 1 else ''}"

    def lines(self, trace: TraceLike, most: int | None = None) -> list[str]:
        """A line for each finding: its code, kind and place; of more than `most` the first ones, and how many more."""
        names, shown = Names(trace.facts), self.findings[:most]
        lines = [f"    {f.code} {f.name}, {one_line(f, names)}" for f in shown]
        more = len(self.findings) - len(shown)
        return [*lines, f"    ... and {more:,} more; --show-suppressed lists all"] if more else lines

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "rule": str(self.rule),
            "reason": self.rule.reason or None,
            "where": self.rule.where or None,
            "findings": [finding.to_json() for finding in self.findings],
        }


def parse(texts: Iterable[str]) -> list[Rule]:
    """The rules of a command line: a rule each, or the name of a file of rules.

    Raises:
        UsageError: neither a rule nor a file; an unknown code.
    """
    rules = []
    for text in texts:
        if _RULE.match(text):
            rules.append(_rule(text, "", text))
        elif Path(text).is_file():
            rules += _file(Path(text))
        else:
            raise UsageError(f"suppression {text!r} is neither a rule (KV006, KV006:b9, KV006:FILE) nor a file")
    return rules


def _file(path: Path) -> list[Rule]:
    rules = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = "is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
        raise UsageError(f"suppression file {path} {why}; write a rule such as KV006 on each line") from None
    for number, line in enumerate(lines, 1):
        text, _, reason = line.partition("#")
        if text.strip():
            rule = _rule(text.strip(), reason.strip(), f"{path}:{number}")
            rules.append(replace(rule, where=f"{path}:{number}"))
    return rules


def _rule(text: str, reason: str, where: str) -> Rule:
    found = _RULE.match(text)
    if found is None or found[1] not in CODES:
        raise UsageError(f"suppression {where}: {text!r} is no rule; write a code such as KV006, or KV006:b9")
    return Rule(found[1], found[2] or "", reason)


def suppress(result: CheckResult, trace: TraceLike, rules: Iterable[Rule]) -> tuple[CheckResult, list[Suppressed]]:
    """(the result without suppressed findings, what each rule took; rules that took nothing are named too)."""
    left, taken = list(result.findings), []
    for rule in rules:
        covered = [f for f in left if rule.covers(f, trace)]
        left = [f for f in left if f not in covered]
        taken.append(Suppressed(rule, tuple(covered)))
    return replace(result, findings=tuple(left)), taken
