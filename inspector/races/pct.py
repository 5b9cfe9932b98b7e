"""Probabilistic concurrency testing: random priorities, changed at d - 1 random moments.

Burckhardt, Kothari, Musuvathi, Nagarakatti, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs"
(ASPLOS 2010). A bug of depth d (d ordering constraints make it happen) is found by one schedule of n threads and k
steps with probability at least 1 / (n * k**(d-1)). We differ in one thing: k is the longest schedule seen so far, where
the paper wants it beforehand, so the bound is stated with the longest of all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kvscope.inspector.races.schedule import Decisions


class PctScheduler:
    """Endless; the same seed gives the same schedules.

    Args:
        threads: how many.
        depth: d; 2 finds what one preemption shows, 3 what needs two.
        seed: decides priorities and moments.
    """

    name = "pct"

    def __init__(self, threads: int, depth: int = 3, seed: int = 0) -> None:
        self.threads, self.depth, self.seed = threads, max(1, depth), seed
        self.played = self.longest = 0
        self._priority: list[int] = []
        self._changes: dict[int, int] = {}  # number of a decision -> the low priority given there

    def begin(self) -> bool:
        """New priorities, new moments of change."""
        draw = random.Random(f"{self.seed}:{self.played}")
        self._priority = [self.depth + i for i in range(self.threads)]
        draw.shuffle(self._priority)
        steps = max(self.longest, 1)
        self._changes = {draw.randrange(steps): low for low in range(self.depth - 1)}
        return True

    def choose(self, options: Sequence[int], current: int, number: int) -> int:
        """The thread of the highest priority; at a moment of change the running one becomes one of the lowest."""
        low = self._changes.get(number)
        if low is not None and current >= 0:
            self._priority[current] = low
        return max(range(len(options)), key=lambda i: self._priority[options[i]])

    def end(self, decisions: Decisions) -> None:
        """The longest schedule is what the bound is stated with."""
        self.played += 1
        self.longest = max(self.longest, len(decisions))

    def statement(self) -> dict[str, Any]:
        """Depth, and the probability with which a bug of that depth, or one less, would have been found by now."""
        chances = {}
        for depth in {2, self.depth} if self.depth > 1 else {1}:
            each = 1 / (self.threads * max(self.longest, 1) ** (depth - 1))
            chances[str(depth)] = 1 - (1 - each) ** self.played
        return {"seed": self.seed, "depth": self.depth, "longest": self.longest, "found_with_probability": chances}
