"""The chain of events behind a finding in lanes: who did what in which order, one lane for each sequence.

The chain is what the report tells (`inspector/story.py`): the events that made the fault possible, who else held the
block then, and the event that broke the rule. What is done by no sequence (a step, a checker) stands in the lane of
the thread that did it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvscope.inspector.findings import Finding
from kvscope.inspector.source import actor_of, row_of
from kvscope.inspector.story import Story, moment

_LEAK = "KV005"
MOST_EVENTS = 24  # of a chain: the newest


@dataclass(frozen=True, slots=True)
class Link:
    """One event of the chain. `roles` says what it is to the finding; `guilty` marks the event that broke the rule."""

    seq: int
    step: int
    t_s: float
    lane: int
    roles: tuple[str, ...]
    text: str
    block: int
    guilty: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """Who acts: a sequence (-1: none) by its name, or a thread; `actors` are the threads that acted for it."""

    name: str
    seq_id: int
    actors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interleaving:
    """The chain in the order of events; `missing` should have stood before link number `due` (empty: nothing is)."""

    lanes: tuple[Lane, ...]
    links: tuple[Link, ...]
    missing: str = ""
    due: int = 0


def interleaving(story: Story, trace: Any) -> Interleaving:
    """The lanes of a finding whose story has been told."""
    finding = story.finding
    roles: dict[int, list[str]] = {}
    for told in story.moments:
        roles.setdefault(told.seq, []).append(told.role.removesuffix(" by"))
    for holder in story.holders:
        roles.setdefault(holder.since_seq, []).append("held since")
    roles.setdefault(finding.seq, [])
    lanes: dict[tuple[int, str], int] = {}
    actors: dict[int, list[str]] = {}
    links = []
    for seq in sorted(roles)[-MOST_EVENTS:]:
        event, who = trace.events[row_of(trace, seq)], actor_of(trace, row_of(trace, seq))
        seq_id = _sequence(finding, event, seq)
        lane = lanes.setdefault((seq_id, "" if seq_id >= 0 else who), len(lanes))
        actors.setdefault(lane, [])
        if who not in actors[lane]:
            actors[lane].append(who)
        links.append(_link(story, trace, seq, lane, tuple(dict.fromkeys(roles[seq]))))
    named = tuple(
        Lane(story.names(seq_id) if seq_id >= 0 else who, seq_id, tuple(actors[at]))
        for (seq_id, who), at in lanes.items()
    )
    seqs = [link.seq for link in links]
    due = seqs.index(finding.seq) + (finding.code == _LEAK)
    return Interleaving(named, tuple(links), story.missing, due)


def _sequence(finding: Finding, event: Any, seq: int) -> int:
    """The sequence that an event belongs to; a finding names its own, also where the event does not."""
    seq_id = int(event["seq_id"])
    return finding.seq_id if seq_id < 0 and seq == finding.seq else seq_id


def _link(story: Story, trace: Any, seq: int, lane: int, roles: tuple[str, ...]) -> Link:
    told = story.act if seq == story.finding.seq else moment(trace, "", seq, story.names)
    block = int(trace.events[row_of(trace, seq)]["block"])
    return Link(seq, told.step, told.t_s, lane, roles, told.text, block, guilty=seq == story.finding.seq)
