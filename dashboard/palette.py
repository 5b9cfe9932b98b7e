"""One set of colours for the canvas, the figures and the tables; those of block states are the inspector's."""

from __future__ import annotations

from typing import Any

from kvscope.inspector.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION, YELLOW
from kvscope.inspector.palette import BY_LETTER as BY_LETTER
from kvscope.inspector.palette import BY_NAME as BY_NAME
from kvscope.inspector.palette import STATES as STATES
from kvscope.inspector.palette import WRITING as WRITING

FINDING = VERMILLION
# Readable on both a light and a dark page, so that a figure needs no second version.
MUTED = "#7B8794"
FREE_FILL = "rgba(154,165,177,0.22)"


def hatch(colour: str) -> dict[str, Any]:
    """Plotly's pattern on an area of a colour: what is hatched is of no use to anybody."""
    return {"shape": "/", "size": 7, "solidity": 0.2, "fillmode": "replace", "bgcolor": colour,
            "fgcolor": "rgba(0,0,0,0.4)"}  # fmt: skip


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
