"""Property runs: what the fuzzer, the race explorer and test suites found, with the counterexample to paste."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from kvscope.dashboard import choices, markup
from kvscope.dashboard.numbers import ABSENT, count_text, duration_text
from kvscope.dashboard.opened import TraceView, results
from kvscope.dashboard.place import Place
from kvscope.inspector.results import PropertyRun

NEEDS_TRACE = False
_VERDICTS = {
    "clean": ("nothing found", "#009E73"), "finding": ("finding", "#D55E00"), "unusable": ("unusable", "#E69F00"),
}  # fmt: skip
_HOW = """kvscope fuzz mypkg.pool:factory --seconds 30 --json > fuzz.json
kvscope races --example articles --json > races.json
kvscope dashboard run.kvtrace --results fuzz.json --results races.json"""


def render(view: TraceView | None, place: Place | None) -> None:
    """The page."""
    found = results()
    for said in found.unread:
        st.warning(markup.plain(said), icon=":material/warning:")
    _stats(found.runs)
    if not found.runs:
        st.info("No property run to show. Give files of `kvscope fuzz --json`, `kvscope races --json` or JUnit XML, or "
                "a folder of them:", icon=":material/science:")  # fmt: skip
        st.code(_HOW, language=None)
        return
    runs = sorted(found.runs, key=lambda run: run.verdict == "clean")
    labels = [f"{_VERDICTS[run.verdict][0]}: {run.target} ({run.tool}, {run.file})" for run in runs]
    chosen = runs[0]
    by_name = {f"{run.tool} {run.target} {run.file}": i for i, run in enumerate(runs)}
    asked = choices.one("run", list(by_name), next(iter(by_name)), key="property_run", what="Run")
    if len(runs) > 1:
        picked = st.selectbox("Run", list(by_name), format_func=lambda name: labels[by_name[name]], **asked)
        chosen = runs[by_name[picked]]
    _one(chosen)


def _stats(runs: Sequence[PropertyRun]) -> None:
    failed = sum(run.verdict != "clean" for run in runs)
    tried = sum(int(value) for run in runs for label, value, _ in run.numbers if label in _TRIED)
    spent = sum(value for run in runs for label, value, _ in run.numbers if label == "time")
    st.html(markup.stats((
        ("Runs", count_text(len(runs)), "", "Files, and suites in them."),
        ("With a finding", count_text(failed), "", "Runs that broke a rule, failed, or could not begin."),
        ("Tried", count_text(tried), "", "Programs, schedules and tests."),
        ("Time taken", duration_text(spent) if spent else ABSENT, "", "That the runs took together."),
    ), alarm="With a finding" if failed else ""))  # fmt: skip


def _counted(value: int, name: str) -> str:
    """`12 histories`, `1 history`"""
    one = f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")
    return f"{value:,} {one if value == 1 else name}"


_TRIED = ("programs tried", "schedules", "tests")


def _one(run: PropertyRun) -> None:
    label, colour = _VERDICTS[run.verdict]
    said = [f"{value:,.3g} {unit}".strip() + f" {name}" if unit else _counted(int(value), name)
            for name, value, unit in run.numbers if (name, value) != ("threads", 1) and name != "time"]  # fmt: skip
    st.html(markup.head(run.target, label, colour, said))
    (st.success if run.verdict == "clean" else st.error)(markup.plain(run.headline), icon=":material/science:")
    if run.lanes:
        st.markdown("**The interleaving**: time goes down, each thread has its column")
        st.html(markup.lanes([(s.thread, s.steps, s.preempted) for s in run.lanes]))
    elif run.lanes_text:
        st.markdown("**The interleaving**: time goes down, each thread has its column")
        st.code(run.lanes_text, language=None)
    if run.program:
        st.markdown("**The shortest program found**: a test to paste")
        st.code(run.program, language="python")
    if run.replay:
        option = f"kvscope {run.tool} {run.target} --replay '{run.replay}'"
        st.markdown("**Play it again**")
        st.code(option, language=None)
    if run.cases:
        _cases(run)
    for note in run.notes:
        st.caption(markup.plain(note))


def _cases(run: PropertyRun) -> None:
    import pandas as pd

    ordered = sorted(run.cases, key=lambda case: case.verdict in ("passed", "skipped"))
    for case in [case for case in ordered if case.verdict in ("failed", "error")][:10]:
        with st.expander(f"**{markup.plain(case.name)}**", icon=":material/close:"):
            st.code(case.said, language=None)
    st.markdown("**All tests**")
    st.dataframe(
        pd.DataFrame({
            "test": [case.name for case in ordered],
            "verdict": [case.verdict for case in ordered],
            "time (s)": [case.seconds for case in ordered],
        }),
        hide_index=True, key="property_cases", height=min(35 * (len(ordered) + 1) + 3, 420),
    )  # fmt: skip
