"""Linearizability: could these results have come from calls made one after another?

Herlihy, Wing, "Linearizability: A Correctness Condition for Concurrent Objects" (TOPLAS 1990). The sequential model is
the target itself (or another one given) driven by the same threads with switches between calls only. All such orders
are run once; a concurrent history is linearizable if one of them gave the same results and keeps the order of calls
that did not overlap. Block ids count up to renaming. Orders grow fast, so there is a limit; beyond it nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvscope.inspector.races.history import Frozen, History

Order = tuple[tuple[int, int], ...]  # (thread, which of its calls), in the order in which they ended


class Sequential:
    """Results and orders of all runs in which no call is interrupted.

    Args:
        runs: plays them, and gives for each its history and what was observed at its end; or says why it cannot.
    """

    def __init__(self, runs: Callable[[], list[tuple[History, Frozen]] | str]) -> None:
        self._runs = runs
        self._orders: dict[Frozen, list[Order]] | None = None
        self._verdicts: dict[Frozen, bool] = {}
        self.count = 0
        self.asked = False
        self.unknown = ""  # why nothing can be said

    def explains(self, history: History, observed: Frozen) -> bool:
        """Whether the history is linearizable; True as well where that is not known."""
        self.asked = True
        if self._orders is None:
            self._collect()
        assert self._orders is not None
        if self.unknown:
            return True
        results = history.results(observed)
        key = (results, history.order())
        known = self._verdicts.get(key)
        if known is None:
            orders = self._orders.get(results, [])
            before = precedence(history)
            known = any(_keeps(order, before) for order in orders)
            self._verdicts[key] = known
        return known

    def _collect(self) -> None:
        self._orders = {}
        runs = self._runs()
        if isinstance(runs, str):
            self.unknown = runs
            return
        for history, observed in runs:
            ended = sorted(numbered(history), key=lambda item: item[1].returned)
            self._orders.setdefault(history.results(observed), []).append(tuple(name for name, _ in ended))
        self.count = sum(len(set(orders)) for orders in self._orders.values())


def numbered(history: History) -> list[tuple[tuple[int, int], Any]]:
    """Every call with its name: its thread, and which of the thread's calls it is."""
    return [((thread, i), op) for thread, ops in history.by_thread() for i, op in enumerate(ops)]


def precedence(history: History) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of calls of which the first ended before the second began."""
    ops = numbered(history)
    return [(a, b) for a, one in ops for b, two in ops if 0 <= one.returned < two.invoked]


def _keeps(order: Order, before: list[tuple[tuple[int, int], tuple[int, int]]]) -> bool:
    at = {name: i for i, name in enumerate(order)}
    return all(at.get(a, -1) < at.get(b, len(order)) for a, b in before)
