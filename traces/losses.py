"""What a writer could not put on its disk, beside the events that it dropped: facts, details and names.

They wait in memory, 1 MiB of them for each file, and are tried again whenever another comes, in the background and at
the end. The hot tail, whose blocks are there from the start, counts those that wait and those that found no room, so
that a reader knows of them on a full disk too, and after the writer was killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kvscope.traces.counted import counted
from kvscope.traces.files import AppendFile


class Losses(NamedTuple):
    """Records that were taken and are not in the trace."""

    facts: int = 0
    details: int = 0
    names: int = 0  # call sites and actors

    def __str__(self) -> str:
        named = [(count, name) for name, count in zip(self._fields, self, strict=True) if count]
        return " and ".join(f"{count:,} {name[:-1] if count == 1 else name}" for count, name in named)

    @classmethod
    def of(cls, trace: Any) -> Losses:
        """Those of a trace, whoever gives it; none where it cannot have any."""
        found = getattr(getattr(trace, "source", trace), "losses", None)
        return found if isinstance(found, Losses) else cls()


def losses_of(streams: Sequence[AppendFile], before: Losses) -> Losses:
    """What is not in the files of call sites, actors, facts and late details; `before` is of an earlier writer."""
    sites, actors, facts, details = (stream.missing for stream in streams)
    return Losses(before.facts + facts, before.details + details, before.names + sites + actors)


def close_streams(streams: Iterable[AppendFile]) -> bool:
    """Write what still waits, and close the files; False when there was no room for it."""
    written = [stream.flush() for stream in streams]
    for stream in streams:
        stream.close()
    return all(written)


def as_members(losses: Losses) -> dict[str, Any]:
    """What a manifest says of them: nothing where there are none."""
    return {"lost": losses._asdict()} if any(losses) else {}


def known_losses(counted: Sequence[int], manifest: Mapping[str, Any]) -> Losses:
    """What the hot tail counts, or the manifest where that says more."""
    said = manifest.get("lost")
    said = said if isinstance(said, dict) else {}
    noted = [value if type(value := said.get(name)) is int and 0 <= value < 2**63 else 0 for name in Losses._fields]
    return Losses(*(max(pair) for pair in zip(counted, noted, strict=True)))


def notes(dropped: int, losses: Losses, clipped: int, *, live: bool) -> list[str]:
    """A reader's warnings of what its writer could not record, or not as it was."""
    found = []
    if dropped:
        events = counted(dropped, "event was", "events were")
        found.append(f"{events} dropped by the writer: it could not write to its disk")
    if any(losses):
        state = "not on the disk yet" if live else "lost"
        found.append(f"{losses} {'is' if sum(losses) == 1 else 'are'} {state}: the writer could not write to its disk")
    return found + cut_values(clipped)


def cut_values(clipped: int) -> list[str]:
    """The warning of events whose columns could not hold what was to be said."""
    return [f"{counted(clipped, 'event holds', 'events hold')} a value cut to its column's range"] if clipped else []


def not_closed(losses: Losses, manifest: Mapping[str, Any]) -> str:
    """A reader's warning of a trace that was not closed properly."""
    if any(losses):
        return "the trace could not be closed properly: its disk was full, or its writer was stopped meanwhile"
    if type(manifest.get("events")) is int:
        return "the trace could not be closed: its disk was full; all that it acknowledged is here"
    return "the trace was not closed: its writer was stopped; all that it acknowledged is here"
