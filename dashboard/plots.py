"""Plotly figures on their way to the page: what is drawn again and again is checked and written out once.

A `go.Figure` checks each property it is given and is copied whole whenever it is drawn. A picture that stays the same
but for a line at the chosen event needs neither: it is kept as the dict that Plotly itself would send.
"""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import streamlit as st
from plotly.basedatatypes import BaseFigure

from kvscope.dashboard.palette import MUTED

CONFIG = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"]}
NO_BAR = {"displayModeBar": False}
_LINE = {"color": MUTED, "width": 1.5, "dash": "dot"}


class Written(BaseFigure):  # type: ignore[misc]
    """A figure as the dict that is sent; never changes."""

    def __init__(self, found: dict[str, Any]) -> None:
        object.__setattr__(self, "_found", found)

    def to_dict(self) -> dict[str, Any]:
        """What is sent; shared, not copied."""
        return self._found  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Written({len(self._found['data'])} traces)"


def written(figure: go.Figure) -> Written:
    """The figure, checked and written out."""
    return Written(figure.to_dict())


def with_line(figure: Written, x: float | None) -> Written:
    """The same figure with a dotted line at `x`, behind nothing and over everything; as it is for None."""
    if x is None:
        return figure
    line = {"type": "line", "x0": x, "x1": x, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain", "line": _LINE}
    found = figure.to_dict()
    layout = found["layout"]
    return Written({**found, "layout": {**layout, "shapes": [*layout.get("shapes", ()), line]}})


def show(figure: go.Figure | Written, *, key: str, alt: str, bar: bool = True, tall: bool = False) -> None:
    """Draw a figure.

    Args:
        alt: what it shows, in words. bar: whether it has Plotly's buttons for zooming and saving.
        tall: it is the page's big picture, and as high as the window has room for (`markup.STYLE`).
    """
    if tall:
        st.plotly_chart(figure, key=f"tall_{key}", config=CONFIG if bar else NO_BAR, alt=alt, height="stretch")
    else:
        st.plotly_chart(figure, key=key, config=CONFIG if bar else NO_BAR, alt=alt)
