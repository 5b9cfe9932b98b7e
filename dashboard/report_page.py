"""A trace as one HTML file: its numbers, pictures and findings, with all that a browser needs to show them.

Nothing is fetched: Plotly's script is in the file, and its policy forbids the browser to load anything. Texts of
requests are in it only where the trace holds them and they are asked for.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kvscope.errors import MissingDependency, UsageError
from kvscope.inspector.export.parts import Progress, no_progress
from kvscope.inspector.findings import CheckResult, check, group
from kvscope.inspector.holes import allocator_of
from kvscope.inspector.lanes import Lane, lanes
from kvscope.inspector.longrun import longrun
from kvscope.inspector.measures import Series, series, series_of, summary
from kvscope.inspector.report import report
from kvscope.inspector.source import Frozen, Names, TraceLike, frozen
from kvscope.inspector.state import STATE_NAMES, PoolState, state_at
from kvscope.traces.schema import Kind

TEMPLATE = Path(__file__).with_name("report.html")
MAX_LANES, MAX_REPORTS, MAX_MARKS, MAX_CELLS, MAX_TEXTS = 60, 20, 100, 1 << 16, 200
_STEPS = 5
_SMALL: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("sharing_factor", "Sharing factor", {"unit": "×"}),
    ("saved_blocks", "Blocks saved by sharing", {}),
    ("tail_waste", "Tail waste", {"percent": True}),
)


def write_html(
    trace: TraceLike, rows: range, file: BinaryIO, progress: Progress = no_progress, *, name: str = "trace",
    with_text: bool = False,
) -> int:  # fmt: skip
    """Write the report of a whole trace; returns how many figures are in it.

    Raises:
        MissingDependency: Plotly is not installed. UsageError: `rows` are not the whole trace.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingDependency("an HTML report needs plotly: pip install 'kvscope[dashboard]'") from None
    seen = frozen(trace)
    if len(rows) != len(seen.events):
        raise UsageError("an HTML report is of the whole trace: leave --seq-range out")
    page = _Page(seen, name, with_text, progress)
    parts = {
        "title": escape(f"{name} - KVScope"), "style": page.style(), "body": "\n".join(page.sections()),
        "plotly": get_plotlyjs().replace("</script", "<\\/script"), "figures": _script(page.figures),
        "map": _script(page.map),
    }  # fmt: skip
    text = TEMPLATE.read_text()
    for key in ("title", "style", "body", "figures", "map", "plotly"):  # the last one last: nothing is looked for in it
        text = text.replace("{{" + key + "}}", parts[key], 1)
    file.write(text.encode())
    return len(page.figures)


class _Page:
    """The sections of one report, and the data that its scripts draw."""

    def __init__(self, trace: Frozen, name: str, with_text: bool, progress: Progress) -> None:
        self.trace, self.name, self.with_text, self._progress = trace, name, with_text, progress
        self.figures: dict[str, dict[str, Any]] = {}
        self.map: dict[str, Any] = {}
        self._done = 0
        self.series, self.facts = self._measured()
        self.checked: CheckResult = check(trace)
        self._tick()

    def style(self) -> str:
        """The dashboard's own style sheet."""
        from kvscope.dashboard.markup import STYLE

        return STYLE

    def sections(self) -> Iterator[str]:
        """The body, section by section."""
        from kvscope.dashboard import figures, markup
        from kvscope.dashboard.layers import stack_of
        from kvscope.dashboard.marks import Mark
        from kvscope.inspector.statrow import stat_cells, waste_title

        yield self._head()
        found = len(self.checked.findings)
        yield markup.stats(stat_cells(self.facts, found), alarm="Findings" if found else "")
        if len(self.trace.events) == 0:
            yield "<p>This trace holds no event.</p>"
            return
        yield "<h2>The pool over time</h2>" + self._figure(
            "occupancy",
            figures.occupancy(
                self.series,
                "time",
                marks=list(self._marks(Mark)),
                stack=stack_of(self.series, allocator_of(self.trace.facts)),
            ),
        )
        small = []
        for name, title, options in _SMALL:
            title = waste_title(self.trace) if name == "tail_waste" else title
            picture = figures.small_multiple(self.series, name, "time", **options)
            small.append(f"<div><h2>{title}</h2>{self._figure(name, picture)}</div>")
        yield f'<div class="three">{"".join(small)}</div>'
        self._tick()
        yield self._block_map()
        self._tick()
        yield from self._lanes()
        self._tick()
        yield from self._findings()

    def _measured(self) -> tuple[Series, dict[str, Any]]:
        if self.trace.on_demand:
            source: Any = self.trace.source
            run = longrun(source)
            found = series_of(run, source), summary(source, run)
        else:
            every = series(self.trace)
            found = every, summary(self.trace, every)
        self._tick()
        return found

    def _head(self) -> str:
        from kvscope.dashboard.numbers import bytes_text, count_text, duration_text

        geometry = self.facts["geometry"]
        size = f", {bytes_text(geometry['pool_bytes'])}" if geometry["pool_bytes"] else ""
        told = (
            f"{count_text(self.facts['events'])} events in {duration_text(self.facts['duration_s'])}; "
            f"{count_text(geometry['num_blocks'])} blocks of {geometry['block_size']} slots{size}"
        )
        model = f"{geometry['model']}; " if geometry["model"] else ""
        warned = "".join(f'<p class="warn">{escape(line)}</p>' for line in self.trace.warnings)
        return f'<h1>{escape(self.name)}</h1><p class="dim">{escape(model + told)}</p>{warned}'

    def _figure(self, name: str, figure: Any) -> str:
        figure.update_layout(template="plotly_white")
        self.figures[name] = json.loads(figure.to_json())
        return f'<div id="{name}" style="height:{int(figure.layout.height or 300)}px"></div>'

    def _marks(self, mark: Any) -> Iterator[Any]:
        from kvscope.dashboard.words import event_text

        names, kinds = Names(self.trace.facts), self.trace.events["kind"]
        for cause, kind in (("preempt", Kind.PREEMPT), ("evict", Kind.EVICT)):
            rows = np.flatnonzero(kinds == kind)
            few = rows[np.unique(np.linspace(0, len(rows) - 1, MAX_MARKS).astype(int))] if len(rows) else rows
            for row in few.tolist():
                yield mark(cause, int(self.trace.seqs[row]), escape(event_text(self.trace, row, names)))
        for finding in self.checked.findings[:MAX_MARKS]:
            yield mark("finding", finding.seq, escape(f"{finding.code} {finding.title}"))

    def _block_map(self) -> str:
        from kvscope.dashboard import markup
        from kvscope.dashboard.palette import BY_NAME, FREE_FILL

        source: Any = self.trace.source if self.trace.on_demand else self.trace
        state: PoolState = state_at(source, int(self.trace.seqs[-1]))
        span = max(1, -(-state.num_blocks // MAX_CELLS))
        colours = {name: FREE_FILL if name == "free" else BY_NAME[name].colour for name in STATE_NAMES}
        # Of several blocks in one cell the first is shown.
        codes = base64.b64encode(state.state[::span].astype(np.uint8).tobytes()).decode()
        self.map = {"codes": codes, "span": span,
                    "states": [{"name": BY_NAME[n].label, "colour": colours[n]} for n in STATE_NAMES]}  # fmt: skip
        legend = markup.chips((f"{BY_NAME[n].label}: {state.counts[n]:,}", colours[n]) for n in STATE_NAMES)
        said = f" Each cell is the first of {span} blocks." if span > 1 else ""
        return (
            f'<h2>The blocks at the end</h2>{legend}<p class="dim">Just after event {state.seq:,}.{said}</p>'
            '<canvas id="map" role="img" aria-label="Blocks by state at the end of the trace"></canvas>'
            '<p id="said" class="dim"></p>'
        )

    def _lanes(self) -> Iterator[str]:
        from kvscope.dashboard import figures
        from kvscope.dashboard.lane_order import arrows_of, families

        found = families(lanes(self.trace))
        if not found:
            return
        shown = found[:MAX_LANES]
        more = f"The first {len(shown)} of {len(found):,} sequences. " if len(found) > len(shown) else ""
        picture = figures.lane_chart(shown, self.series, "time", arrows=arrows_of(self.trace, shown))
        yield f'<h2>What each sequence was doing</h2><p class="dim">{more}</p>' + self._figure("lanes", picture)
        yield self._texts(shown) if self.with_text else ""

    def _texts(self, shown: Sequence[Lane]) -> str:
        texts = {f["seq_id"]: str(f["text"]) for f in self.trace.facts if f.get("type") == "output" and f.get("text")}
        told = [(lane.name, texts[lane.seq_id]) for lane in shown if lane.seq_id in texts][:MAX_TEXTS]
        rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in told)
        return f"<h2>Texts</h2><table>{rows}</table>" if rows else "<p>This trace holds no text.</p>"

    def _findings(self) -> Iterator[str]:
        result = self.checked
        looked = f"{result.events:,} events, {result.blocks:,} blocks and {result.slots:,} slots"
        yield "<h2>Findings</h2>" + "".join(f'<p class="warn">{escape(note)}</p>' for note in result.notes)
        if result.nothing_to_check:
            yield "<p>Nothing to check: no event speaks of a block.</p>"
        elif not result.findings:
            yield f"<p>No rule is broken. Checked {looked}.</p>"
        else:
            groups = group(result.findings, self.trace)
            kinds = "1 kind" if len(groups) == 1 else f"{len(groups)} kinds"
            yield f"<p>{len(result.findings):,} findings of {kinds} in {looked}.</p>"
            for i, each in enumerate(groups[:MAX_REPORTS]):
                title = escape(f"{each.first.code} {each.first.title} at event {each.first.seq:,}")
                more = f", and {len(each.others):,} more like it" if each.others else ""
                text = escape(report(each.first, self.trace, name=self.name))
                yield f"<details{'' if i else ' open'}><summary>{title}{more}</summary><pre>{text}</pre></details>"

    def _tick(self) -> None:
        self._done += 1
        self._progress(min(self._done, _STEPS), _STEPS)


def _script(value: Any) -> str:
    """A value as JSON that may stand in a script: nothing in it ends the script or begins a comment."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c").replace("\u2028", "\\u2028")
