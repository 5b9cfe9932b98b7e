"""Doctor: does paging pay here, which layer loses memory, and which of the known complaints apply."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvscope.dashboard import markup
from kvscope.dashboard.numbers import count_text, factor_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.inspector.doctor import Diagnosis, diagnose, of_trace
from kvscope.inspector.doctor.verdicts import Verdict
from kvscope.inspector.units import number

_FOUND = {True: "yes", False: "no", None: "cannot tell"}
_COLUMNS = ("applies", "complaint", "evidence", "what to do", "confidence")


def render(view: TraceView, place: Place) -> None:
    """The page."""
    found = _diagnosed(view.id, view)
    pays = {True: "yes", False: "no", None: "unknown"}[found.pays]
    cells = (
        ("Does paging pay", pays, "", "Limit over P50 length, and whether a request fills a block."),
        ("Benefit ratio", factor_text(found.benefit_ratio), "", "Longest possible length over the P50 length."),
        ("P50 length", number(found.p50), "tokens", "Half of the sequences are shorter."),
        ("Limit", count_text(found.max_model_len), "tokens", "Where a request ends at the latest."),
        ("Complaints", count_text(len(found.complaints)), "", "Of those below, how many apply."),
    )
    st.html(markup.stats(cells, alarm="Complaints" if found.complaints else ""))
    for note in found.notes:
        st.warning(markup.plain(note), icon=":material/info:")
    st.markdown("**Three layers, three cures**")
    for column, layer in zip(st.columns(3, gap="medium"), found.layers, strict=True):
        with column, st.container(border=True, height="stretch"):
            st.markdown(f"**{layer.name.capitalize()}**: {ratio_text(layer.value)}")
            st.caption(markup.plain(f"{layer.evidence}. Cure: {layer.cure}."))
    for title, verdicts in (
        ("Why it might not have helped", found.symptoms),
        ("When it does not pay", found.does_not_pay),
    ):
        st.markdown(f"**{title}**")
        st.html(markup.table(_COLUMNS, _rows(verdicts), marked={"yes"}))


@st.cache_resource(max_entries=4, show_spinner="examining")
def _diagnosed(key: tuple[Any, ...], _view: TraceView) -> Diagnosis:
    return diagnose(of_trace(_view))


def _rows(told: tuple[Verdict, ...]) -> list[tuple[str, ...]]:
    """What was found first, then what cannot be told."""
    ordered = sorted(told, key=lambda v: {True: 0, None: 1, False: 2}[v.found])
    return [
        (_FOUND[v.found], v.title, v.evidence, v.next_step if v.found is not False else "", v.confidence)
        for v in ordered
    ]
