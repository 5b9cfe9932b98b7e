"""Recording overhead: how much was written and how fast, what was lost, and what a decode step pays, as measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from kvscope.dashboard import figures_more, markup, plots
from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, duration_text
from kvscope.dashboard.opened import TraceView, results
from kvscope.dashboard.place import Place
from kvscope.inspector.results import Overhead

POINTS, LOOKED = 120, 4000
_HOW = """kvscope bench overhead --json > overhead.json
kvscope dashboard run.kvtrace --results overhead.json"""


def render(view: TraceView, place: Place) -> None:
    """The page."""
    seconds, rates = _rates(view.id, view)
    size = _size(view.path)
    manifest = getattr(view.reader, "manifest", {})
    clipped = int(manifest.get("clipped") or 0)
    span = float(seconds[-1] - seconds[0]) if len(seconds) > 1 else 0.0
    count = len(view.events)
    cost = [found.ratio - 1 for found in results().overhead]
    st.html(markup.stats((
        ("Events", count_text(count), "", "Rows of the trace."),
        ("Rate", f"{count / span:,.0f}" if span else ABSENT, "events/s", "Mean over the run, by the trace's clock."),
        ("Written", bytes_text(size), "", "All files of the trace."),
        ("Per event", f"{size / count:,.1f}" if count else ABSENT, "bytes", "All files over all events."),
        ("Dropped", count_text(view.dropped), "events", "The recorder could not write them: its disk was full."),
        ("Cut", count_text(clipped), "events", "A value did not fit its column."),
        ("Cost of a step", f"{max(cost):+.2%}" if cost else ABSENT, "" if cost else "not measured",
         "Time of a decode step with recording over one without it, less one; the worst load."),
    ), alarm="Dropped" if view.dropped else ""))  # fmt: skip
    st.markdown(f"**Events per second** over {duration_text(span)}")
    picture = figures_more.rate(seconds, rates)
    plots.show(picture, key="event_rate", alt="Events recorded per second over time")
    _measured(results().overhead)


def _measured(found: list[Overhead]) -> None:
    if not found:
        st.info("What recording costs a decode step is not in the trace: it is measured in pairs of runs, with and "
                "without it.", icon=":material/speed:")  # fmt: skip
        st.code(_HOW, language=None)
        return
    st.markdown("**A decode step with recording, over one without** (1 is no cost; the bars span the pairs measured)")
    picture = figures_more.overhead([(o.name, o.ratio, o.low, o.high, o.gate) for o in found])
    plots.show(picture, key="overhead", alt="Ratio of step times with and without recording, by load")
    said = [f"{o.name}: {o.without:.4g} {o.unit} without, {o.with_it:.4g} with" for o in found]
    st.caption(markup.plain("; ".join(said)))


@st.cache_resource(max_entries=4, show_spinner=False)
def _rates(key: tuple[Any, ...], _view: TraceView) -> tuple[Any, Any]:
    """(seconds, events per second up to there) in spans as long, from the times of some events."""
    rows = np.unique(np.linspace(0, len(_view.events) - 1, LOOKED).astype(np.int64))
    t_s = (_view.events[rows]["t_ns"] * 1e-9).astype(np.float64)
    t_s -= t_s[0]
    edges = np.linspace(0.0, t_s[-1], POINTS + 1)
    last = np.append(np.flatnonzero(np.diff(t_s) > 0), len(t_s) - 1)  # of each moment the last event
    counts = np.diff(np.interp(edges, t_s[last], rows[last] + 1, left=0))
    rate = counts / (edges[1] - edges[0]) if t_s[-1] > 0 else np.zeros(POINTS)
    return edges, np.append(rate[:1], rate)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.resolve().iterdir() if file.is_file() and file.name != "hot.bin")
