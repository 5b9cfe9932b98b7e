"""Every schedule with at most so many preemptions, those with fewer first.

Musuvathi, Qadeer, "Iterative Context Bounding for Systematic Testing of Multithreaded Programs" (PLDI 2007): most bugs
need few preemptions, and there are only polynomially many schedules with at most c of them. A schedule is the plain
run with some decisions changed; its followers change one more decision behind the last change, so each schedule comes
once. Choices where the running thread cannot go on cost nothing and are all tried.

What is left out is left out without loss: a thread that would only run into a held lock is no choice, and at opcode
level there is no point before an instruction that touches nothing shared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from kvscope.inspector.races.schedule import Decisions, Switch


class ExhaustiveScheduler:
    """Ends when every schedule with at most `preemptions` preemptions has been played."""

    name = "exhaustive"

    def __init__(self, preemptions: int = 3) -> None:
        self.bound = preemptions
        self.played = 0
        self.by_preemptions: dict[int, int] = {}
        self._queues: list[deque[tuple[Switch, ...]]] = [deque([()])]  # by number of preemptions
        self._moves: dict[int, int] = {}
        self._last = -1
        self._level = 0

    def begin(self) -> bool:
        """The next schedule, of the lowest number of preemptions that has any left."""
        for level, queue in enumerate(self._queues):
            if queue:
                switches = queue.popleft()
                self._moves, self._level = dict(switches), level
                self._last = switches[-1][0] if switches else -1
                return True
        return False

    def choose(self, options: Sequence[int], current: int, number: int) -> int:
        """The changed decisions of this schedule, 0 elsewhere."""
        return self._moves.get(number, 0)

    def end(self, decisions: Decisions) -> None:
        """Its followers: one more decision changed, behind the last one that was."""
        self.played += 1
        self.by_preemptions[self._level] = self.by_preemptions.get(self._level, 0) + 1
        switches = tuple(self._moves.items())
        for number in range(self._last + 1, len(decisions)):
            level = self._level + (not decisions.forced[number])
            if level > self.bound:
                continue
            while len(self._queues) <= level:
                self._queues.append(deque())
            queue = self._queues[level]
            for choice in range(1, decisions.options[number]):
                queue.append((*switches, (number, choice)))

    @property
    def complete(self) -> int:
        """All schedules with at most so many preemptions have been played; -1 if not even those without any."""
        for level, queue in enumerate(self._queues):
            if queue:
                return level - 1
        return self.bound

    def statement(self) -> dict[str, Any]:
        """The bound, how far it got, and how many schedules are known to wait."""
        return {
            "bound": self.bound, "complete_to": self.complete, "by_preemptions": dict(self.by_preemptions),
            "waiting": sum(map(len, self._queues)),
        }  # fmt: skip
