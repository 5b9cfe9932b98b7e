"""A finding in lanes: the events of its report in their order, each in the lane of who did it, one of them guilty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvscope.dashboard.views.findings import lane_data
from kvscope.inspector.findings import Finding, check, group
from kvscope.inspector.interleaving import interleaving
from kvscope.inspector.report import report
from kvscope.inspector.source import Names, frozen
from kvscope.inspector.state import BlockState, state_at
from kvscope.inspector.story import tell
from kvscope.traces import Kind, open_trace

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"


def _groups(path: Path) -> tuple[Any, list[Finding]]:
    trace = open_trace(path)
    return frozen(trace), [g.first for g in group(check(trace).findings, trace)]


@pytest.mark.parametrize("name", ["garbled-race", "leak"])
def test_each_event_of_the_report_stands_in_the_lane_of_who_did_it(name: str) -> None:
    trace, found = _groups(SAMPLES / f"{name}.kvpack")
    names = Names(trace.facts)
    assert found
    for finding in found:
        story = tell(finding, trace)
        told = interleaving(story, trace)
        seqs = [link.seq for link in told.links]
        assert seqs == sorted(set(seqs))
        assert {m.seq for m in story.moments} | {h.since_seq for h in story.holders} | {finding.seq} <= set(seqs)
        if name == "leak":  # the release was due when its sequence was preempted
            at = trace.events[trace.seqs == told.links[told.due - 1].seq][0]
            assert (at["kind"], at["seq_id"]) == (Kind.PREEMPT, finding.seq_id)
            assert f"(seq {told.links[told.due - 1].seq})" in told.missing
        assert [link.seq for link in told.links if link.guilty] == [finding.seq]
        assert {link.lane for link in told.links} == set(range(len(told.lanes)))
        for link in told.links:
            event, lane = trace.events[trace.seqs == link.seq][0], told.lanes[link.lane]
            if event["seq_id"] >= 0:
                assert (lane.name, lane.seq_id) == (names(int(event["seq_id"])), event["seq_id"])
            assert trace.actors[int(event["actor"])] in lane.actors
        assert told.missing == story.missing


def test_the_planted_race_has_a_lane_for_each_holder(toy_traces: dict[str, Path]) -> None:
    trace, (first, *_) = _groups(toy_traces["missing-copy"])
    told = interleaving(tell(first, trace), trace)
    data = lane_data(told)
    assert [lane.name for lane in told.lanes] == ["lighthouse", "lighthouse/1", "lighthouse/2"]
    assert [row["missing"] for row in data["rows"]].index(True) + 1 == [r["guilty"] for r in data["rows"]].index(True)
    assert "breaks the rule" in next(row["role"] for row in data["rows"] if row["guilty"])
    assert data["rows"][0]["between"] == ""
    assert len({lane["colour"] for lane in data["lanes"]}) == 3


def test_a_finding_about_a_block_that_is_lost_is_told() -> None:
    trace = frozen(open_trace(SAMPLES / "leak.kvpack"))
    seq = int(trace.seqs[-1])
    state = state_at(trace, seq)
    block = int((state.state == BlockState.LOST).argmax())
    finding = Finding("KV005", seq, 0, "made up", block, int(state.gen[block]))
    said = report(finding, trace)
    assert "lost: held by nobody any more" in said
    assert "  L lost" in said
