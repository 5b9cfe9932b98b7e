"""Makes a failing schedule short: leaves out switches, looks for one with fewer, then for one that a GIL allows."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kvscope.inspector.races.exhaustive import ExhaustiveScheduler
from kvscope.inspector.races.player import Played, Player
from kvscope.inspector.races.schedule import Switch
from kvscope.inspector.races.worker import Failure

Switches = tuple[Switch, ...]


class Shrinker:
    """Looks for a smaller schedule with the same kind of failure.

    Args:
        player: replays.
        failure: what has to happen again.
        seconds: when to stop at the latest.
    """

    def __init__(self, player: Player, failure: Failure, seconds: float = 5.0) -> None:
        self.player, self.failure = player, failure
        self.until = time.monotonic() + seconds
        self.tried = 0

    def shrink(self, switches: Switches) -> Switches:
        """The smallest schedule found; its switches are exactly those that its replay makes."""
        switches = self._fewer(switches)
        best = self.player.replay(switches)
        bound = best.run.decisions.preemptions - 1
        if bound >= 1 and not self.player.control.lost:
            switches = self._bounded(min(bound, 2)) or switches
        return self._for_a_gil(self._fewer(switches))

    def _fails(self, switches: Switches) -> Played | None:
        if time.monotonic() > self.until or self.player.control.lost:
            return None
        self.tried += 1
        played = self.player.replay(switches)
        return played if self.failure.same_kind(played.failure) else None

    def _fewer(self, switches: Switches) -> Switches:
        """Without every chunk of switches that it fails without."""
        size = max(1, len(switches) // 2)
        while size >= 1:
            start = 0
            while start < len(switches):
                shorter = switches[:start] + switches[start + size :]
                played = self._fails(shorter)
                if played is not None:
                    switches = played.run.decisions.switches
                else:
                    start += size
            size //= 2
        return switches

    def _bounded(self, preemptions: int) -> Switches | None:
        """The first schedule with so few preemptions that fails alike, looked for in a third of the time left."""
        end = time.monotonic() + (self.until - time.monotonic()) / 3
        scheduler = ExhaustiveScheduler(preemptions)
        while time.monotonic() < end and not self.player.control.lost and scheduler.begin():
            self.tried += 1
            played = self.player.play(scheduler)
            if self.failure.same_kind(played.failure):
                return played.run.decisions.switches
        return None

    def _for_a_gil(self, switches: Switches) -> Switches:
        """Switches that only a build without a GIL can make, moved to where any can, if it still fails."""
        if self.player.level == "hook":
            return switches
        for i in range(len(switches)):
            for other in self._moved(switches, i):
                shown = self._detailed(other)
                if shown is not None and preempts_with_gil(shown, len(other)):
                    switches = shown.run.decisions.switches
                    break
        return switches

    def _moved(self, switches: Switches, i: int) -> Iterator[Switches]:
        """The same schedule with switch `i` at another decision of the same thread, nearest first."""
        shown = self._detailed(switches)
        if shown is None or i >= len(switches) or preempts_with_gil(shown, len(switches)):
            return
        number, choice = switches[i]
        decisions = shown.run.decisions
        low = switches[i - 1][0] + 1 if i else 0
        high = switches[i + 1][0] if i + 1 < len(switches) else len(decisions)
        near = sorted(range(low, high), key=lambda n: abs(n - number))
        for other in near[:24]:
            if other != number:
                yield (*switches[:i], (other, choice), *switches[i + 1 :])

    def _detailed(self, switches: Switches) -> Played | None:
        if time.monotonic() > self.until or self.player.control.lost:
            return None
        self.tried += 1
        played = self.player.replay(switches, detailed=True)
        return played if self.failure.same_kind(played.failure) else None


def preempts_with_gil(played: Played, most: int | None = None) -> bool:
    """Whether a GIL would let all preemptions of a detailed run happen, of which there are at most so many."""
    decisions, details = played.run.decisions, played.run.details
    if most is not None and len(decisions.switches) > most:
        return False
    return all(
        details[decisions.at[number] - 1].gil for number, _ in decisions.switches if not decisions.forced[number]
    )
