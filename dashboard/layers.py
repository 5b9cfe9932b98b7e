"""What the big picture of a run stacks up: the pool by state, or by what is the matter with it, seen without a word.

Pure functions, no Streamlit. Every stack adds up to the pool at every event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.dashboard.palette import BLUE, BY_NAME, FREE_FILL, PURPLE, STATES, ink_on
from kvscope.inspector.holes import Holes
from kvscope.inspector.measures import Series
from kvscope.inspector.units import counted


@dataclass(frozen=True)
class Layer:
    """One layer of a stack.

    Args:
        label: what is written on it where it is thickest; nothing where it is too thin for that.
        hatched: told by its pattern too.
    """

    name: str
    colour: str
    values: npt.NDArray[Any]
    fill: str = ""  # the area's colour, where it is another
    label: str = ""
    hatched: bool = False


@dataclass(frozen=True)
class Stack:
    """Layers from the bottom, and what the picture shows in a few words after its title."""

    layers: Sequence[Layer]
    said: str = ""
    shares: bool = False  # it is about what sharing saves


def stack_of(series: Series, allocator: str = "paged", holes: Holes | None = None) -> Stack:
    """The telling stack of a run: what leaked, what is reserved and empty, what is free in holes; else the states.

    Args:
        holes: of the same run, where its allocator gives memory out in one piece.
    """
    if series.lost_blocks.any():
        return _lost(series)
    if allocator == "reserved" and not np.isnan(series.filled_slots).any():
        return _reserved(series)
    if holes is not None and len(holes.seq):
        return _in_holes(series, holes)
    return Stack(
        [_state(series, state.name) for state in STATES if not state.hatched], _saved(series), saves_much(series)
    )


def saves_much(series: Series) -> bool:
    """Whether sharing is what a run is about: at its best it saves as many blocks as the pool has, or more."""
    return bool(series.saved_blocks.max(initial=0) >= series.num_blocks > 0)


def _saved(series: Series) -> str:
    if not saves_much(series):
        return ""
    most = int(series.saved_blocks.max())
    return f"the orange is held by several at once, which saves up to {most / series.num_blocks:.1f} times the pool"


def labels(
    layers: Sequence[Layer], rows: npt.NDArray[np.int64], x: npt.NDArray[Any], top: float
) -> list[dict[str, Any]]:
    """What is written on layers, each in the middle of the longest stretch where it is at its thickest."""
    found, below = [], np.zeros(len(rows))
    for layer in layers:
        values = layer.values[rows]
        thick = values >= 0.8 * values.max(initial=0)
        if layer.label and values.max(initial=0) > top / 10:
            edges = np.flatnonzero(np.diff(np.concatenate([[False], thick, [False]]).astype(np.int8)))
            stretches = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
            _, lo, hi = max((x[min(hi, len(x) - 1)] - x[lo], lo, hi) for lo, hi in stretches)
            middle = (x[lo] + x[hi - 1]) / 2
            at = min(int(np.searchsorted(x, middle)), len(x) - 1)
            left = (middle - x[0]) / max(x[-1] - x[0], 1e-12)
            place, anchor = (
                (x[hi - 1], "right") if left > 0.75 else (x[lo], "left") if left < 0.25 else (middle, "center")
            )
            found.append({
                "x": place, "xanchor": anchor, "y": below[at] + values[at] / 2, "text": f"<b>{layer.label}</b>",
                "showarrow": False, "bgcolor": layer.colour, "font": {"color": ink_on(layer.colour)}, "borderpad": 3,
            })  # fmt: skip
        below = below + values
    return found


def _state(series: Series, name: str) -> Layer:
    state = BY_NAME[name]
    fill = FREE_FILL if name == "free" else ""
    return Layer(state.label, state.colour, getattr(series, name), fill, hatched=state.hatched)


def _others(series: Series, *, but: Sequence[str]) -> list[Layer]:
    """Layers of the states that are not told in another way, and that are not empty throughout."""
    return [
        _state(series, s.name)
        for s in STATES
        if s.name not in but and (s.name == "free" or getattr(series, s.name).any())
    ]


def _lost(series: Series) -> Stack:
    count, most = int(series.lost_blocks[-1]), int(series.lost_blocks.max())
    gone = replace(_state(series, "lost"), label=f"{counted(most, 'block')} held by nobody")
    said = f"the red are lost blocks, {counted(most, 'block')} at the most, which came back late"
    if count:
        said = f"the red grows to {counted(count, 'block')} that never come back, for no sequence holds them"
    return Stack([gone, *_others(series, but=("lost",))], said)


def _reserved(series: Series) -> Stack:
    held = series.private + series.shared
    used = np.minimum(series.filled_slots / series.block_size, held)
    empty = Layer("reserved and empty", PURPLE, held - used, label="reserved, and empty", hatched=True)
    full = Layer("holds tokens", BLUE, used, label="holds tokens")
    return Stack([full, empty, *_others(series, but=("private", "shared"))], "only what is blue holds tokens")


def _in_holes(series: Series, holes: Holes) -> Stack:
    at = np.maximum(np.searchsorted(holes.seq, series.seq, side="right") - 1, 0)
    largest = np.minimum(holes.largest[at], series.free)
    small = Layer("free, in smaller holes", PURPLE, series.free - largest, label="free, in smaller holes", hatched=True)
    room = Layer("the largest hole", BY_NAME["free"].colour, largest, FREE_FILL)
    return Stack([*_others(series, but=("free",)), small, room],
                 "whoever needs a longer piece than the largest hole is refused, whatever else is free")  # fmt: skip
