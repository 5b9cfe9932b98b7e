"""Following a trace that is still being written: fragments that refresh once a second and keep their place on the page.

Only elements whose DOM node survives a change of data are used here: metrics, the canvas, and Vega charts
(Plotly's would be built anew at each refresh and lose zoom and hover).
"""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd
import streamlit as st

from kvscope.dashboard.answers import measured
from kvscope.dashboard.figures import shown_rows
from kvscope.dashboard.opened import TraceView, open_view
from kvscope.dashboard.palette import STATES

EVERY_S = 1.0
POINTS = 600


def follow_toggle(view: TraceView) -> bool:
    """The `Follow` switch, there only while the trace is being written; whether it is on."""
    if not view.live:
        return False
    return st.toggle("Follow", key="follow", help="Refresh once a second while the trace is being written")


def refreshed(view: TraceView) -> TraceView:
    """The same trace as it is now; once its writer is gone the whole page runs again."""
    fresh = open_view(view.name, view.path)
    if not fresh.live:
        st.rerun()
    return fresh


@st.fragment(run_every=EVERY_S)
def overview(view: TraceView) -> None:
    """The stat row and the pool over time, refreshed."""
    from kvscope.dashboard.views.overview import stat_row

    fresh = refreshed(view)
    stat_row(fresh)
    st.caption(f"Following: {len(fresh.events):,} events so far. Findings are checked once it is closed.")
    st.altair_chart(occupancy_chart(fresh), key="live_occupancy", alt="Blocks by state over time, live")


def occupancy_chart(view: TraceView) -> alt.Chart:
    """The pool by state over events, stacked, as a Vega chart."""
    series = measured(view)
    rows = shown_rows(series, "event", [getattr(series, s.name) for s in STATES])
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, POINTS).astype(int))] if len(rows) else rows
    frame = pd.concat(
        [
            pd.DataFrame(
                {"event": series.seq[rows], "blocks": getattr(series, s.name)[rows], "state": s.label, "order": i}
            )
            for i, s in enumerate(STATES)
        ]
    )
    scale = alt.Scale(domain=[s.label for s in STATES], range=[s.colour for s in STATES])
    chart: alt.Chart = (
        alt.Chart(frame, height=360)
        .mark_area(interpolate="step-after")
        .encode(
            x=alt.X("event:Q", title="event", scale=alt.Scale(nice=False)),
            y=alt.Y("blocks:Q", stack=True, title="blocks", scale=alt.Scale(domain=[0, view.num_blocks])),
            color=alt.Color("state:N", scale=scale, sort=None, legend=alt.Legend(orient="top", title=None)),
            order=alt.Order("order:Q"),
        )
    )
    return chart
