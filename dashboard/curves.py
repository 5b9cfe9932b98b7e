"""What the canvas of measures over time is sent: one byte string with a header, its JSON and an array per curve.

The layout is written down in `curves.js`, which reads it. The element keeps its node while the data changes, which a
Plotly chart in a refreshing fragment does not; a payload of 1,200 points is 60 KB.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.dashboard.palette import FREE_FILL, GREEN, ORANGE, PURPLE, STATES
from kvscope.inspector.units import counted

Past = Mapping[str, npt.NDArray[Any]]
LAYERS = sorted(STATES, key=lambda state: not state.hatched)  # from the bottom: what is lost, for it only grows
HEIGHT = 400  # CSS pixels, at least: on a laptop the axis is on the first screen
# Measure, title, unit (which says how it is written), colour.
CURVES: tuple[tuple[str, str, str, str], ...] = (
    ("sharing_factor", "Sharing factor (table entries per block)", "×", ORANGE),
    ("tail_waste", "{} (share of held slots)", "%", PURPLE),
    ("saved_blocks", "Saved by sharing (blocks)", "blocks", GREEN),
)


@dataclass(frozen=True)
class Tick:
    """A mark on the axis: where, and in which colour."""

    x: float
    colour: str


def encode(
    past: Past,
    num_blocks: int,
    *,
    axis: str = "time",
    cursor: float | None = None,
    marks: Sequence[Tick] = (),
    height: int = HEIGHT,
    waste: str = "Tail waste",
) -> bytes:
    """The payload for measures by time, event or step; by these, runs that took turns stand one behind the other.

    Args:
        past: as `inspector.following` has it; NaN where events are missing and between two runs.
        num_blocks: the pool as it is now: the height of the stack, where no run before had a larger one.
        cursor: where the page stands, on the axis, in the newest run. marks: triangles above the stack.
        height: CSS pixels. waste: what the empty share of held slots is called.
    """
    past = _last_of_steps(past) if axis == "step" else past
    told = x_values(past, axis)
    x = told if axis == "time" else _one_behind_the_other(told, past["run"])
    begin = float(x[0]) if len(x) else 0.0
    newest = (x - told)[of_newest_run(past) & ~np.isnan(told)]
    moved = (float(newest[0]) if len(newest) else 0.0) - begin
    pools = sum((np.nan_to_num(past[s.name]) for s in LAYERS), np.zeros(len(x)))
    meta = {
        "layers": [{"title": s.label, "colour": FREE_FILL if s.name == "free" else s.colour, "hatched": s.hatched}
                   for s in LAYERS],
        "curves": [{"title": title.format(waste), "unit": unit, "colour": colour} for _, title, unit, colour in CURVES],
        "blocks": max(num_blocks, int(pools.max(initial=0.0))), "height": height,
        "cursor": None if cursor is None else cursor + moved,
        "marks": [{"x": mark.x + moved, "colour": mark.colour} for mark in marks], "gaps": _gaps(past), "axis": axis,
        "bases": None if axis == "time" else told[_begins(told)].tolist(), "alt": alt_text(past, num_blocks),
    }  # fmt: skip
    text = json.dumps(meta, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    names = [s.name for s in LAYERS] + [name for name, *_ in CURVES]
    parts = [np.array([len(x), len(text)], dtype="<u4").tobytes(), text, (x - begin).astype("<f4").tobytes()]
    parts += [np.asarray(past[name], dtype="<f4").tobytes() for name in names]
    body = b"".join(parts)
    seq = np.where(of_newest_run(past), past["seq"], np.nan)  # events of runs before are gone: there is no way to them
    return body + b"\0" * (-len(body) % 8) + np.asarray(seq, dtype="<f8").tobytes()


def x_values(past: Past, axis: str) -> npt.NDArray[Any]:
    """Where the points lie on an axis; NaN at a gap."""
    if axis == "step":
        return np.maximum(past["step"], 0.0)
    return past["wall_s" if axis == "time" else "seq"]


def of_newest_run(past: Past) -> npt.NDArray[np.bool_]:
    """Which points are of the run that is there now."""
    newest: npt.NDArray[np.bool_] = past["run"] == np.nanmax(past["run"], initial=0.0)
    return newest


def _last_of_steps(past: Past) -> dict[str, npt.NDArray[Any]]:
    """Of each step its last event alone, as on every page."""
    step = past["step"]
    last = np.append(step[1:] != step[:-1], True)[: len(step)]  # (a gap is a point of its own: NaN is unequal to all)
    return {name: values[last] for name, values in past.items()}


def _one_behind_the_other(x: npt.NDArray[Any], run: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Each run begins where the one before it ended: each counts its events and steps from 0."""
    placed, at = x.copy(), 0.0
    for number in np.unique(run[~np.isnan(run)]).tolist():
        own = run == number
        placed[own] += at - x[own][0] if at else 0.0
        at = float(placed[own][-1])
    return placed


def _begins(x: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The first point behind each gap, and the first of all."""
    there = ~np.isnan(x)
    return np.flatnonzero(there & np.append(True, ~there[:-1])[: len(x)])


def _gaps(past: Past) -> list[str]:
    """What each gap is, in order."""
    at, run = np.flatnonzero(np.isnan(past["seq"])), past["run"]
    after = run[np.minimum(at + 1, len(run) - 1)]
    same = (after == run[np.maximum(at - 1, 0)]) & (at + 1 < len(run))
    return ["events missing" if one else "restart" for one in same.tolist()]


def alt_text(past: Past, num_blocks: int) -> str:
    """The curves in a sentence, for those who cannot see them."""
    if not len(past["seq"]):
        return "Measures over time: no event yet"
    last = ", ".join(f"{int(np.nan_to_num(past[s.name][-1]))} {s.label}" for s in STATES)
    seconds = float(np.nanmax(past["wall_s"]) - past["wall_s"][0])
    before = int(np.nanmax(past["run"], initial=0.0))
    runs = f" and {before + 1} runs" if before else ""
    pool = f"A pool of {counted(num_blocks, 'block')} over {seconds:.3g} s{runs}"
    return f"{pool}, sharing and waste below it; at the end {last}"
