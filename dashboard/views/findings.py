"""Findings: every broken rule, the report of each kind of mistake in full, and jumps to the events."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from kvscope.dashboard import markup
from kvscope.dashboard.answers import checked, findings_so_far, names_of
from kvscope.dashboard.component import event_list, finding_lanes
from kvscope.dashboard.numbers import count_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.palette import sequence_colour
from kvscope.dashboard.place import Place, go
from kvscope.dashboard.verdict import recorded
from kvscope.inspector.findings import CheckResult, Finding, FindingGroup, group
from kvscope.inspector.interleaving import Interleaving, interleaving
from kvscope.inspector.link import url
from kvscope.inspector.report import report
from kvscope.inspector.source import frozen
from kvscope.inspector.story import Story, tell
from kvscope.inspector.units import counted

MAX_REPORTS = 20
_AGAIN_S = 2.0
MAX_LISTED = 1000


def render(view: TraceView, place: Place) -> None:
    """The page."""
    result = checked(view)
    if view.live:
        st.fragment(_while_live, run_every=_AGAIN_S)(view, len(result.findings), result.events)
    for note in result.notes:
        st.warning(note, icon=":material/info:")
    if result.nothing_to_check:
        st.info("Nothing to check: no event of this trace speaks of a block.")
        return
    groups = group(result.findings, view)
    _stats(result, groups)
    ran = f"Looked for by the detectors {' '.join(result.detectors)}."
    if not result.findings:
        st.success(f"No rule is broken{recorded(view)}.", icon=":material/verified:")
        st.caption(ran)
        return
    st.caption(ran)
    here = next((i for i, found in enumerate(groups[:MAX_REPORTS]) if _is_at(place, found)), 0)
    for i, found in enumerate(groups[:MAX_REPORTS]):
        _one(view, found, i, unfolded=i == here)
    if len(groups) > MAX_REPORTS:
        st.caption(f"The first {MAX_REPORTS} kinds are reported in full; `kvscope check` prints all of them.")
    _list(view, place, result)


def _stats(result: CheckResult, groups: list[FindingGroup]) -> None:
    lives = len({(f.block, f.gen) for f in result.findings if f.block >= 0})
    st.html(markup.stats((
        ("Findings", count_text(len(result.findings)), "", "Broken rules, each at its event."),
        ("Kinds", count_text(len(groups)), "", "Of mistakes: one mistake may break a rule many times."),
        ("Lives", count_text(lives), "of blocks", "That have a finding."),
        ("Events", count_text(result.events), "checked", "Rows that were looked at."),
        ("Blocks", count_text(result.blocks), "checked", "Blocks that the events speak of."),
        ("Slots", count_text(result.slots), "checked", "Slots whose writes were followed."),
    ), alarm="Findings" if result.findings else ""))  # fmt: skip


def _while_live(view: TraceView, known: int, events: int) -> None:
    """A run that goes on is checked beside it: the page is drawn anew when there is something new."""
    found = findings_so_far(view)
    if found is not None and len(found) != known:
        st.rerun()
    st.caption(
        f"The run goes on and is checked again and again; this is what its first {count_text(events)} events say."
    )


def _is_at(place: Place, found: FindingGroup) -> bool:
    return any(finding.seq == place.seq for finding in (found.first, *found.others))


def _one(view: TraceView, found: FindingGroup, number: int, *, unfolded: bool) -> None:
    """One kind of mistake: its first finding in full."""
    first = found.first
    more = f", and {count_text(len(found.others))} more like it" if found.others else ""
    label = f"**{first.code}** {first.title} at event {count_text(first.seq)}{more}"
    with st.expander(label, expanded=unfolded, icon=":material/bug_report:"):
        with st.container(horizontal=True):
            _jump(first, f"jump_{number}", "Jump to this event", ":material/my_location:", "blocks", primary=True)
            if first.block >= 0:
                _jump(first, f"life_{number}", "Biography of the block", ":material/history:", "biography")
            _jump(first, f"around_{number}", "Events around it", ":material/list:", "events")
        story = _story(view.id, first, view)
        _lanes(view, story, number)
        st.code(_text(story, view), language=None, wrap_lines=True)


@st.cache_resource(max_entries=4 * MAX_REPORTS, show_spinner=False)
def _story(key: tuple[Any, ...], finding: Finding, _view: TraceView) -> Story:
    return tell(finding, frozen(_view))


def _lanes(view: TraceView, story: Story, number: int) -> None:
    """What led to it, each event in the lane of who did it; picking one goes there."""
    told = interleaving(story, view)
    st.markdown("**How it came about**: time goes down, each sequence has its lane (pick an event to go there)")
    picked = finding_lanes(lane_data(told), key=f"lanes_{number}")
    if picked is not None:
        block = next((link.block for link in told.links if link.seq == picked), -1)
        go("blocks", seq=picked, block=block if block >= 0 else story.finding.block)


def lane_data(told: Interleaving) -> dict[str, Any]:
    """The lanes as the element draws them; what should have happened stands where it was due."""
    rows: list[dict[str, Any]] = []
    before, own = None, next(link.lane for link in told.links if link.guilty)
    for link in told.links:
        rows.append({
            "seq": link.seq, "lane": link.lane, "where": f"step {link.step}" if link.step >= 0 else "no step",
            "between": "" if before is None else _between(link.seq - before - 1),
            "role": " · ".join((*(["breaks the rule"] if link.guilty else ()), *link.roles)), "text": link.text,
            "guilty": link.guilty, "missing": False,
        })  # fmt: skip
        before = link.seq
    if told.missing:
        rows.insert(told.due, {"seq": -1, "lane": own, "where": "", "between": "", "role": "missing here",
                               "text": told.missing, "guilty": False, "missing": True})  # fmt: skip
    lanes = [
        {"name": lane.name, "by": ", ".join(lane.actors), "colour": sequence_colour(lane.seq_id)} for lane in told.lanes
    ]
    alt = f"{counted(len(told.links), 'event')} in {counted(len(lanes), 'lane')}, in the order in which they happened"
    return {"alt": alt, "lanes": lanes, "rows": rows}


def _between(events: int) -> str:
    return f"{counted(events, 'event')} later" if events > 0 else ""


def _text(story: Story, view: TraceView) -> str:
    """The report, with links to the dashboard that shows it."""
    said = report(story, view, name=str(view.path))
    here = urlsplit(st.context.url or "")  # none under test
    return said.replace(url(), f"{here.scheme}://{here.netloc}/") if here.netloc else said


def _jump(finding: Finding, key: str, label: str, icon: str, page: str, *, primary: bool = False) -> None:
    if st.button(label, key=key, icon=icon, type="primary" if primary else "secondary"):
        go(page, seq=finding.seq, block=finding.block if finding.block >= 0 else None)


def _list(view: TraceView, place: Place, result: CheckResult) -> None:
    """Every finding in one line; picking one goes to its event."""
    names = names_of(view)
    st.markdown("**All findings** (pick one to go to its event)")
    if len(result.findings) > MAX_LISTED:
        st.caption(f"The first {MAX_LISTED:,} of {count_text(len(result.findings))}.")
    columns = (("event", "number"), ("step", "number"), ("code", "text"), ("severity", "text"), ("what", "grow"),
               ("by", "text"))  # fmt: skip
    rows = [
        (f.seq, f.step if f.step >= 0 else None, f.code, f.severity, f.title, names(f.seq_id) if f.seq_id >= 0 else "")
        for f in result.findings[:MAX_LISTED]
    ]
    picked = event_list(columns, rows, place.seq, height=420, key="all_findings")
    if picked is not None:
        block = next((f.block for f in result.findings if f.seq == picked), -1)
        go("blocks", seq=picked, block=block if block >= 0 else None)
