"""Calls that were made and have not returned, and what they are about to write.

The data of a call are played when it returns. What it does inside may be seen before: a prompt is given blocks as
cached that a call under way has just published. So a hit on what such a call will write counts as written, and the
call owes it: it has to write just that, there, by the time it returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.shadow import Content, Prefix, Shadow

Slot = tuple[int, int]


@dataclass(eq=False, slots=True)
class Flight:
    """A call under way. lo: the first position of its sequence that it may write; None if it writes none."""

    prefix: Prefix
    lo: int | None

    def may_write(self, position: int, content: Content) -> bool:
        """Whether it may be about to write this at this position."""
        return (
            self.lo is not None and self.lo <= position < len(self.prefix) and self.prefix.content(position) == content
        )


@dataclass(slots=True)
class Debt:
    """What a sequence was given as cached in a slot, and the calls of which one still has to write it."""

    seq: int
    content: Content
    writers: set[Flight]


class Flights:
    """The calls under way, and what they owe."""

    def __init__(self, shadow: Shadow) -> None:
        self.shadow = shadow
        self._under_way: set[Flight] = set()
        self._debts: dict[Slot, Debt] = {}

    def begin(self, prefix: Prefix, lo: int | None) -> Flight:
        """A call is made."""
        flight = Flight(prefix, lo)
        self._under_way.add(flight)
        return flight

    def hit(self, seq: int, table: list[int], prefix: Prefix, cached: Iterable[int], came_from: dict[int, int]) -> None:
        """A sequence was given these positions as cached: those that a call under way will write count as written.

        came_from: blocks that were copied within the same call, and from where.
        """
        for position in cached:
            block, slot = self.shadow.place(table, position)
            content = prefix.content(position)
            if self.shadow.slots.get((block, slot)) == content:
                continue
            writers = {flight for flight in self._under_way if flight.may_write(position, content)}
            if writers:
                source = came_from.get(block, block), slot
                self.shadow.slots[block, slot] = self.shadow.slots[source] = content
                self._debts[source] = Debt(seq, content, writers)

    def owes(self, flight: Flight, place: Slot) -> bool:
        """Whether a call owes what it is about to write there; then it is paid."""
        debt = self._debts.get(place)
        if debt is None or flight not in debt.writers:
            return False
        del self._debts[place]
        return True

    def end(self, flight: Flight) -> None:
        """A call has returned, or was refused.

        Raises:
            Violation: KV009, what it owed was not written.
        """
        self._under_way.discard(flight)
        for (block, slot), debt in self._debts.items():
            debt.writers.discard(flight)
            if not debt.writers:
                raise Violation(
                    "KV009",
                    f"sequence {debt.seq} was given b{block}[{slot}] as cached, while a call was under way that did "
                    "not write it in the end",
                )
