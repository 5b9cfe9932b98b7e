"""The shortest live map there is: a Plotly heatmap in a refreshing fragment. The baseline of `kvscope bench frames`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from kvscope.inspector.following import Follower
from kvscope.traces import open_trace

EVERY_S = 0.12


@st.cache_resource
def follower(path: str) -> tuple[object, Follower]:
    """One for all sessions."""
    reader = open_trace(Path(path))
    return reader, Follower(reader)


@st.fragment(run_every=EVERY_S)
def picture(path: str) -> None:
    """The pool now, a cell for each block."""
    reader, follow = follower(path)
    reader.refresh()  # type: ignore[attr-defined]
    pool = follow.look().pool
    columns = int((pool.num_blocks * 1.7) ** 0.5)
    cells = np.zeros(-(-pool.num_blocks // columns) * columns, np.uint8)
    cells[: pool.num_blocks] = pool.state
    st.plotly_chart(go.Figure(go.Heatmap(z=cells.reshape(-1, columns))), key="map")
    st.html(f'<span class="kv-frame" data-seq="{pool.seq}"></span>')


picture(sys.argv[1])
