"""How block states are drawn, wherever they are: letters, colours and words, for pages, figures and the terminal.

The hues are Okabe and Ito's, which people with any kind of colour vision tell apart; a state is never told by its
colour alone but by its letter or its name too.
"""

from __future__ import annotations

from dataclasses import dataclass

BLUE, ORANGE, SKY, GREEN = "#0072B2", "#E69F00", "#56B4E9", "#009E73"
PURPLE, YELLOW, VERMILLION, GREY = "#CC79A7", "#F0E442", "#D55E00", "#9AA5B1"


@dataclass(frozen=True)
class State:
    """How one block state is drawn: its series name, letter, colour, and what it means."""

    name: str
    letter: str
    colour: str
    meaning: str

    @property
    def label(self) -> str:
        """The name as people read it."""
        return self.name.replace("_", " ")

    @property
    def hatched(self) -> bool:
        """Whether it is of no use to anybody, which is told by a pattern too."""
        return self.name == "lost"


# In the order of a stack, from the bottom: what is in use first, what is free on top.
STATES: tuple[State, ...] = (
    State("private", "P", BLUE, "held by one table entry"),
    State("shared", "S", ORANGE, "held by more than one table entry"),
    State("in_transit", "T", YELLOW, "held by leases alone, or being moved"),
    State("lost", "L", VERMILLION, "counted as held, but in no table and under no lease: it never comes back"),
    State("cached", "C", SKY, "held by nobody, content kept for the prefix cache"),
    State("quarantined", "Q", PURPLE, "held by nobody, an open step still uses it"),
    State("free", "F", GREY, "on the free list"),
)
WRITING = State("writing", "W", GREEN, "private, a write was issued and has not committed")
BY_NAME: dict[str, State] = {state.name: state for state in (*STATES, WRITING)}
BY_LETTER: dict[str, State] = {state.letter: state for state in (*STATES, WRITING)}
