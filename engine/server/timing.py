"""How long answers take, counted where tokens leave the engine: a few additions per request and step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Seconds. The buckets of OpenTelemetry's GenAI metrics, with finer ones in front for small models.
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
WHOLE = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)


class Spread:
    """Durations in fixed buckets. One thread adds; others may look at any time, and see each duration or not yet."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration, `times` times."""
        self.counts[bisect_left(self.bounds, seconds)] += times
        self.total_s += seconds * times

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, durations up to it), as Prometheus writes them."""
        out, total = [], 0
        for bound, count in zip([*(f"{b:g}" for b in self.bounds), "+Inf"], list(self.counts), strict=True):
            total += count
            out.append((bound, total))
        return out


class Timing:
    """What a server's clients wait for, since it started.

    first_token: from the arrival of a request to its first token. between_tokens: from one token of an answer to the
    next. whole: from arrival to the last token of the last answer, of requests that were not aborted.
    """

    def __init__(self) -> None:
        self.first_token, self.between_tokens, self.whole = Spread(FIRST_TOKEN), Spread(PER_TOKEN), Spread(WHOLE)
