"""The part of PromQL that docs/monitoring uses, evaluated over a few scrapes; loaded by conftest as a fixture.

Written after Prometheus' documentation: an instant selector takes the newest scrape, a range all of them; `rate` and
`increase` add up what counters gained, resets included, and do not extrapolate; arithmetic and `and` match equal
labels; a comparison filters. A name or a word that is not known is an error, as it is in Prometheus.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
_TOKEN = re.compile(r'\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<word>[a-zA-Z_:][\w:]*)|(?P<text>"[^"]*")'
                    r"|(?P<range>\[\d+[smhd]\])|(?P<sign>==|!=|>=|<=|=~|!~|[-+*/(){},><=]))")  # fmt: skip
_ORDER = ({"and"}, {"==", "!=", ">", "<", ">=", "<="}, {"+", "-"}, {"*", "/"})  # the loosest first
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq, "!=": operator.ne, ">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_OVER: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "avg": lambda values: sum(values) / len(values), "max": max, "min": min, "count": len,
}  # fmt: skip


class Scrape(NamedTuple):
    """What a server said at one moment."""

    at_s: float
    families: tuple[Metric, ...]

    @staticmethod
    def of(text: str, at_s: float) -> Scrape:
        """Read a body of /metrics; raises ValueError where it is none."""
        return Scrape(at_s, tuple(text_string_to_metric_families(text)))

    def series(self, instance: str = "here") -> Iterable[tuple[str, Labels, float]]:
        """(name, labels, value) of every sample."""
        for family in self.families:
            for sample in family.samples:
                yield sample.name, frozenset({**sample.labels, "instance": instance}.items()), sample.value


def evaluate(query: str, scrapes: list[Scrape]) -> Vector | float:
    """The value of a query at the newest of these scrapes.

    Raises:
        SyntaxError: it is no query, or uses something that is not known here.
    """
    reading = _Reading(query, scrapes)
    result = reading.binary(0)
    if reading.here is not None:
        raise SyntaxError(f"{query!r}: {reading.here!r} is one too many")
    if isinstance(result, _Range):
        raise SyntaxError(f"{query!r} is a range")
    return result


class _Range(dict[Labels, list[tuple[float, float]]]):
    """Points (time, value) by series."""


class _Reading:
    def __init__(self, query: str, scrapes: list[Scrape]) -> None:
        self.query, self.scrapes = query, scrapes
        self.tokens: list[str] = []
        place = 0
        while query[place:].strip():
            found = _TOKEN.match(query, place)
            if found is None:
                raise SyntaxError(f"{query!r}: cannot read {query[place:]!r}")
            self.tokens.append(found.group().strip())
            place = found.end()
        self.at = 0

    @property
    def here(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, wanted: str | None = None) -> str:
        token = self.here
        if token is None or (wanted is not None and token != wanted):
            raise SyntaxError(f"{self.query!r}: {wanted or 'more'} expected, not {token}")
        self.at += 1
        return token

    def binary(self, level: int) -> Any:
        if level == len(_ORDER):
            return self.unit()
        left = self.binary(level + 1)
        while self.here in _ORDER[level]:
            sign = self.take()
            left = _combine(sign, left, self.binary(level + 1))
        return left

    def unit(self) -> Any:
        token = self.take()
        if token == "(":
            inner = self.binary(0)
            self.take(")")
            return inner
        if token[0].isdigit():
            return float(token)
        if token in _OVER:
            return self.aggregate(token)
        if token in _FUNCTIONS and self.here == "(":
            self.take("(")
            given = [self.binary(0)]
            while self.here == ",":
                self.take()
                given.append(self.binary(0))
            self.take(")")
            return _FUNCTIONS[token](*given)
        if self.here == "(":
            raise SyntaxError(f"{self.query!r}: no function {token}")
        return self.selector(token)

    def aggregate(self, name: str) -> Vector:
        by = self.by()
        self.take("(")
        inner = self.binary(0)
        self.take(")")
        by = by or self.by() or []
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            groups.setdefault(frozenset(pair for pair in labels if pair[0] in by), []).append(value)
        return {labels: float(_OVER[name](values)) for labels, values in groups.items()}

    def by(self) -> list[str] | None:
        if self.here != "by":
            return None
        self.take()
        self.take("(")
        names = [self.take()]
        while self.here == ",":
            self.take()
            names.append(self.take())
        self.take(")")
        return names

    def selector(self, name: str) -> Any:
        wanted: list[tuple[str, str, str]] = []
        if self.here == "{":
            self.take()
            while self.here != "}":
                wanted.append((self.take(), self.take(), self.take()[1:-1]))
                if self.here == ",":
                    self.take()
            self.take("}")
        ranged = self.here is not None and self.here.startswith("[")
        if ranged:
            self.take()
        found = _Range()
        for scrape in self.scrapes if ranged else self.scrapes[-1:]:
            for other, labels, value in scrape.series():
                if other == name and _fits(dict(labels), wanted):
                    found.setdefault(labels, []).append((scrape.at_s, value))
        return found if ranged else {labels: points[0][1] for labels, points in found.items()}


def _fits(labels: dict[str, str], wanted: list[tuple[str, str, str]]) -> bool:
    checks: dict[str, Callable[[str, str], bool]] = {
        "=": operator.eq, "!=": operator.ne, "=~": lambda a, b: re.fullmatch(b, a) is not None,
        "!~": lambda a, b: re.fullmatch(b, a) is None,
    }  # fmt: skip
    return all(checks[sign](labels.get(name, ""), pattern) for name, sign, pattern in wanted)


def _combine(sign: str, left: Any, right: Any) -> Any:
    if sign == "and":
        return {labels: value for labels, value in left.items() if labels in right}
    if sign in _COMPARE:
        return {labels: value for labels, value, other in _pairs(left, right) if _COMPARE[sign](value, other)}
    work: dict[str, Callable[[float, float], float]] = {
        "+": operator.add, "-": operator.sub, "*": operator.mul,
        "/": lambda a, b: a / b if b else (math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)),
    }  # fmt: skip
    if isinstance(left, float) and isinstance(right, float):
        return work[sign](left, right)
    return {labels: work[sign](value, other) for labels, value, other in _pairs(left, right)}


def _pairs(left: Any, right: Any) -> list[tuple[Labels, float, float]]:
    if isinstance(right, float):
        return [(labels, value, right) for labels, value in left.items()]
    if isinstance(left, float):
        return [(labels, left, value) for labels, value in right.items()]
    return [(labels, value, right[labels]) for labels, value in left.items() if labels in right]


def _increase(points: _Range) -> Vector:
    return {
        labels: sum(b - a if b >= a else b for (_, a), (_, b) in itertools.pairwise(row))
        for labels, row in points.items() if len(row) > 1
    }  # fmt: skip


def _rate(points: _Range) -> Vector:
    return {labels: gained / (points[labels][-1][0] - points[labels][0][0])
            for labels, gained in _increase(points).items()}  # fmt: skip


def _avg_over_time(points: _Range) -> Vector:
    return {labels: sum(value for _, value in row) / len(row) for labels, row in points.items()}


def _histogram_quantile(share: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"].replace("+Inf", "inf"))
        groups.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append((bound, count))
    return {labels: _quantile(share, sorted(row)) for labels, row in groups.items()}


def _quantile(share: float, row: list[tuple[float, float]]) -> float:
    if row[-1][0] != math.inf or row[-1][1] == 0:
        return math.nan
    rank = share * row[-1][1]
    place = next(i for i, (_, count) in enumerate(row) if count >= rank)
    if place == len(row) - 1:
        return row[-2][0]
    low, below = row[place - 1] if place else (0.0, 0.0)
    high, upto = row[place]
    return low + (high - low) * (rank - below) / (upto - below) if upto > below else high


_FUNCTIONS: dict[str, Callable[..., Vector]] = {
    "increase": _increase, "rate": _rate, "avg_over_time": _avg_over_time, "histogram_quantile": _histogram_quantile,
}  # fmt: skip
