"""Findings: every broken rule with its severity, the whole report, and a jump to the event."""

from __future__ import annotations

import pandas as pd
import streamlit as st
from kvscope.inspector.report import report

from kvscope.dashboard.numbers import count_text
from kvscope.dashboard.session import Place, TraceView, checked, go, names_of
from kvscope.inspector.findings import Finding

MAX_REPORTS = 20


def render(view: TraceView, place: Place) -> None:
    """The page."""
    result = checked(view)
    looked = (
        f"{count_text(result.events)} events, {count_text(result.blocks)} blocks, {count_text(result.slots)} slots "
        f"checked by {len(result.detectors)} detectors"
    )
    for note in result.notes:
        st.warning(note, icon=":material/info:")
    if result.nothing_to_check:
        st.info("Nothing to check: no event of this trace speaks of a block.")
        return
    if not result.findings:
        st.success(f"No rule is broken: {looked} ({', '.join(result.detectors)}).", icon=":material/verified:")
        return
    st.markdown(f"**{len(result.findings)} findings.** {looked[0].upper()}{looked[1:]}.")
    st.dataframe(_table(view, result.findings), hide_index=True, key="finding_table",
                 height=min(35 * (len(result.findings) + 1) + 3, 248))  # fmt: skip
    for i, finding in enumerate(result.findings[:MAX_REPORTS]):
        _one(view, finding, i)
    if len(result.findings) > MAX_REPORTS:
        st.caption(f"Reports of the first {MAX_REPORTS}; `kvscope check` prints all of them.")


def _one(view: TraceView, finding: Finding, number: int) -> None:
    label = f"**{finding.code}** {finding.title}, event {count_text(finding.seq)}"
    with st.expander(label, expanded=number == 0, icon=":material/bug_report:"):
        st.markdown(finding.why)
        with st.container(horizontal=True):
            if st.button("Jump to this event", key=f"jump_{number}", icon=":material/my_location:", type="primary"):
                go("blocks", seq=finding.seq, block=max(finding.block, -1))
            if finding.block >= 0 and st.button("Biography", key=f"life_{number}", icon=":material/history:"):
                go("biography", seq=finding.seq, block=finding.block)
            if st.button("Events around it", key=f"events_{number}", icon=":material/list:"):
                go("events", seq=finding.seq, block=finding.block)
        st.code(report(finding, view), language=None, wrap_lines=False)


def _table(view: TraceView, found: tuple[Finding, ...]) -> pd.DataFrame:
    names = names_of(view)
    return pd.DataFrame(
        {
            "severity": [f.severity for f in found],
            "code": [f.code for f in found],
            "what": [f.title for f in found],
            "event": [f.seq for f in found],
            "step": [f.step for f in found],
            "by": [names(f.seq_id) if f.seq_id >= 0 else "" for f in found],
        }
    )
