"""One set of colours and letters for the canvas, the figures, the tables and the terminal.

The hues are Okabe and Ito's, which people with any kind of colour vision tell apart; a state is never told by its
colour alone but by its letter or its name too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BLUE, ORANGE, SKY, GREEN = "#0072B2", "#E69F00", "#56B4E9", "#009E73"
PURPLE, YELLOW, VERMILLION, GREY = "#CC79A7", "#F0E442", "#D55E00", "#9AA5B1"
FINDING = VERMILLION
# Readable on both a light and a dark page, so that a figure needs no second version.
MUTED = "#7B8794"
FREE_FILL = "rgba(154,165,177,0.22)"


def hatch(colour: str) -> dict[str, Any]:
    """Plotly's pattern on an area of a colour: what is hatched is of no use to anybody."""
    return {"shape": "/", "size": 7, "solidity": 0.2, "fillmode": "replace", "bgcolor": colour,
            "fgcolor": "rgba(0,0,0,0.4)"}  # fmt: skip


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


# In the order of a stack, from the bottom: what is in use first, what is free on top.
STATES: tuple[State, ...] = (
    State("private", "P", BLUE, "held by one table entry"),
    State("shared", "S", ORANGE, "held by more than one table entry"),
    State("in_transit", "T", YELLOW, "held by leases alone, or being moved"),
    State("cached", "C", SKY, "held by nobody, content kept for the prefix cache"),
    State("quarantined", "Q", PURPLE, "held by nobody, an open step still uses it"),
    State("free", "F", GREY, "on the free list"),
)
WRITING = State("writing", "W", GREEN, "private, a write was issued and has not committed")
BY_NAME: dict[str, State] = {state.name: state for state in (*STATES, WRITING)}
BY_LETTER: dict[str, State] = {state.letter: state for state in (*STATES, WRITING)}

# Sequences, in the order they appear: seven hues, then seven darker ones turned by three, so that neighbours and
# numbers seven apart differ in hue.
SEQUENCES: tuple[str, ...] = (
    BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW,
    "#8C4A70", "#2A7FB0", "#8A3D00", "#A79D1F", "#004B75", "#966700", "#00664B",
)  # fmt: skip
SEVERAL = "#6B7480"  # more than one owner

# Few to many, and long ago to just now: dark to light in equal steps of lightness (cividis).
SEQUENTIAL: tuple[str, ...] = (
    "#00224E", "#123570", "#3B496C", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369", "#FEE838",
)  # fmt: skip

PHASES: dict[str, str] = {"queued": GREY, "prefill": SKY, "decode": BLUE, "preempted": VERMILLION}
SEVERITIES: dict[str, str] = {"error": VERMILLION, "warning": ORANGE, "info": BLUE}
CAUSES: dict[str, tuple[str, str]] = {  # what a marker on the time axis says: colour and Plotly symbol
    "evict": ("#2A7FB0", "line-ns-open"),
    "preempt": (PURPLE, "triangle-down"),
    "finding": (FINDING, "star"),
}


def sequence_colour(seq_id: int) -> str:
    """The colour of a sequence, the same in every view."""
    return SEQUENCES[seq_id % len(SEQUENCES)] if seq_id >= 0 else GREY


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour` (given as #rrggbb)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.22 else "#FFFFFF"
