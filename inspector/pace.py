"""Tokens per second of a run that goes on: a mean over its newest steps, by its own clock; 0 when none comes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from kvscope.traces.schema import Kind

SPAN_NS = 5_000_000_000  # a rate is a mean over so long
LEAST_S = 0.1  # and over no less: a number per second does not come from a few microseconds
_MOST = 4096  # steps that are kept


class Pace:
    """Takes in rows as they come; columns `kind`, `t_ns` and `aux` are read."""

    def __init__(self) -> None:
        self._ended: list[tuple[int, int]] = []  # (t_ns, tokens) of the newest steps
        self._news = time.monotonic()

    def add(self, part: Any) -> None:
        """The next rows."""
        if not len(part["kind"]):
            return
        self._news = time.monotonic()
        ends = np.flatnonzero(part["kind"] == Kind.STEP_END)[-_MOST:]
        self._ended += zip(part["t_ns"][ends].tolist(), part["aux"][ends].tolist(), strict=True)
        self._ended = [(t, n) for t, n in self._ended[-_MOST:] if t >= int(part["t_ns"][-1]) - SPAN_NS]

    @property
    def idle_s(self) -> float:
        """How long nothing has come."""
        return time.monotonic() - self._news

    @property
    def tokens_per_s(self) -> float | None:
        """None where the steps lie too close together to say; 0 where nothing has come for longer than it is a mean."""
        if len(self._ended) < 2:
            return None
        if self.idle_s * 1e9 > SPAN_NS:
            return 0.0
        span = (self._ended[-1][0] - self._ended[0][0]) * 1e-9
        return sum(n for _, n in self._ended[1:]) / span if span >= LEAST_S else None
