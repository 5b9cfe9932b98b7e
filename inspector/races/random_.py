"""Random schedules: at every switch point, with a probability drawn anew for each schedule, somebody else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kvscope.inspector.races.schedule import Decisions

_RATES = (0.02, 0.05, 0.1, 0.3, 0.5)  # few switches find long windows, many find short ones


class RandomScheduler:
    """Endless; the same seed gives the same schedules."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.played = seed, 0
        self._random, self._rate = random.Random(), 0.0

    def begin(self) -> bool:
        """Always another one."""
        self._random.seed(f"{self.seed}:{self.played}")
        self._rate = self._random.choice(_RATES)
        return True

    def choose(self, options: Sequence[int], current: int, number: int) -> int:
        """One of the others with this schedule's probability; any where the running thread cannot go on."""
        if current < 0:
            return self._random.randrange(len(options))
        return self._random.randrange(1, len(options)) if self._random.random() < self._rate else 0

    def end(self, decisions: Decisions) -> None:
        """Counted."""
        self.played += 1

    def statement(self) -> dict[str, Any]:
        """The seed and how many."""
        return {"seed": self.seed}
