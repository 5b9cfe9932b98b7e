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

LAYERS = sorted(STATES, key=lambda state: not state.hatched)  # from the bottom: what is lost, for it only grows
HEIGHT = 470  # CSS pixels
# Measure, title, unit (which says how it is written), colour.
CURVES: tuple[tuple[str, str, str, str], ...] = (
    ("sharing_factor", "Sharing factor (table entries per block)", "×", ORANGE),
    ("tail_waste", "{} (share of held slots)", "%", PURPLE),
    ("saved_blocks", "Saved by sharing (blocks)", "blocks", GREEN),
)


@dataclass(frozen=True)
class Tick:
    """A mark on the time axis: where, and in which colour."""

    wall_s: float
    colour: str


def encode(
    past: Mapping[str, npt.NDArray[Any]],
    num_blocks: int,
    *,
    cursor_s: float | None = None,
    marks: Sequence[Tick] = (),
    height: int = HEIGHT,
    waste: str = "Tail waste",
) -> bytes:
    """The payload for measures over time.

    Args:
        past: `wall_s`, `seq` and every measure, as `inspector.following` has them; NaN between two runs.
        num_blocks: the height of the stack.
        cursor_s: where the page stands, on the clock of `wall_s`. marks: triangles above the stack.
        height: CSS pixels. waste: what the empty share of held slots is called.
    """
    wall_s = past["wall_s"]
    begin = float(wall_s[0]) if len(wall_s) else 0.0
    meta = {
        "layers": [{"title": s.label, "colour": FREE_FILL if s.name == "free" else s.colour, "hatched": s.hatched}
                   for s in LAYERS],
        "curves": [{"title": title.format(waste), "unit": unit, "colour": colour} for _, title, unit, colour in CURVES],
        "blocks": num_blocks, "height": height, "cursor": None if cursor_s is None else cursor_s - begin,
        "marks": [{"x": mark.wall_s - begin, "colour": mark.colour} for mark in marks],
        "alt": alt_text(past, num_blocks),
    }  # fmt: skip
    text = json.dumps(meta, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    names = [s.name for s in LAYERS] + [name for name, *_ in CURVES]
    parts = [np.array([len(wall_s), len(text)], dtype="<u4").tobytes(), text, (wall_s - begin).astype("<f4").tobytes()]
    parts += [np.asarray(past[name], dtype="<f4").tobytes() for name in names]
    body = b"".join(parts)
    return body + b"\0" * (-len(body) % 8) + np.asarray(past["seq"], dtype="<f8").tobytes()


def alt_text(past: Mapping[str, npt.NDArray[Any]], num_blocks: int) -> str:
    """The curves in a sentence, for those who cannot see them."""
    if not len(past["seq"]):
        return "Measures over time: no event yet"
    last = ", ".join(f"{int(np.nan_to_num(past[s.name][-1]))} {s.label}" for s in STATES)
    seconds = float(np.nanmax(past["wall_s"]) - past["wall_s"][0])
    gaps = int(np.count_nonzero(np.isnan(past["seq"])))
    runs = f" and {gaps + 1} runs" if gaps else ""
    pool = f"A pool of {counted(num_blocks, 'block')} over {seconds:.3g} s{runs}"
    return f"{pool}, sharing and waste below it; at the end {last}"
