"""The files beside the events, as a reader follows them: names, facts and late details."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kvscope.traces.counted import counted
from kvscope.traces.files import read_late, read_lines
from kvscope.traces.folder import ACTORS, FACTS, LATE, SITES
from kvscope.traces.place import Place
from kvscope.traces.schema import EventArray
from kvscope.traces.sink import UNKNOWN_SITE, Frame, Site

_T = TypeVar("_T")
MAX_NUMBER = 1 << 16


class LineFile:
    """The records of a file of checksummed JSON lines, followed as it grows."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self.name = name
        self.records: list[dict[str, Any]] = []
        self._damaged = 0
        self._used = 0
        self._torn = False
        self._unread = ""

    def poll(self) -> list[dict[str, Any]]:
        """The records that came since the last call."""
        data, self._unread = _read_from(self._place, self.name, self._used)
        records, damaged, used = read_lines(data)
        self._used += used
        self._torn = used < len(data)
        self._damaged += damaged
        self.records.extend(records)
        return records

    def damage(self) -> list[str]:
        """What is wrong with the file, in words."""
        return _damage(self.name, self._damaged, self._torn, self._unread)


class LateFile:
    """The late details, followed as they grow."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self.name = name
        self._damaged = 0
        self._used = 0
        self._torn = False
        self._unread = ""

    def poll(self) -> dict[int, tuple[int, ...]]:
        """The details that came since the last call, by seq."""
        data, self._unread = _read_from(self._place, self.name, self._used)
        found, damaged, used = read_late(data)
        self._used += used
        self._torn = used < len(data)
        self._damaged += damaged
        return found

    def damage(self) -> list[str]:
        """What is wrong with the file, in words."""
        return _damage(self.name, self._damaged, self._torn, self._unread)


class Names:
    """What stands beside the events of one trace: call sites, actors, facts and late details."""

    def __init__(self, place: Place) -> None:
        self.sites: list[Site] = [UNKNOWN_SITE]
        self.actors: list[str] = ["unknown"]
        self._sites, self._actors = LineFile(place, SITES), LineFile(place, ACTORS)
        self._facts, self._late = LineFile(place, FACTS), LateFile(place, LATE)

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The facts of the run, in the order they came."""
        return self._facts.records

    def poll(self) -> dict[int, tuple[int, ...]]:
        """Follow all files; returns the late details that are new."""
        late = self._late.poll()
        put_sites(self._sites.poll(), self.sites, 1)
        put_actors(self._actors.poll(), self.actors, 1)
        self._facts.poll()
        return late

    def need(self, events: EventArray) -> None:
        """Rows name sites and actors by number: those that no line brought are unknown."""
        if len(events):
            put_sites([], self.sites, int(events["site"].max()) + 1)
            put_actors([], self.actors, int(events["actor"].max()) + 1)

    def damage(self) -> list[str]:
        """What is wrong with the files, in words."""
        return [line for file in (self._sites, self._actors, self._facts, self._late) for line in file.damage()]


def put_sites(records: list[dict[str, Any]], into: list[Site], needed: int) -> None:
    """Enter call sites by number; the list then has at least `needed` entries, unknown ones between."""
    _put(records, _site_of, into, needed, UNKNOWN_SITE)


def put_actors(records: list[dict[str, Any]], into: list[str], needed: int) -> None:
    """Enter actors by number; the list then has at least `needed` entries, unknown ones between."""
    _put(records, lambda record: str(record["name"]), into, needed, "unknown")


def _put(
    records: list[dict[str, Any]], parse: Callable[[dict[str, Any]], _T], into: list[_T], needed: int, unknown: _T
) -> None:
    for record in records:
        try:
            number, value = record["i"], parse(record)
        except (KeyError, TypeError, ValueError, IndexError):
            continue
        if type(number) is int and 0 <= number < MAX_NUMBER:
            into.extend([unknown] * (number + 1 - len(into)))
            into[number] = value
    into.extend([unknown] * (needed - len(into)))


def _site_of(record: dict[str, Any]) -> Site:
    frames = tuple(Frame(str(file), int(line), str(function)) for file, line, function in record["frames"])
    return Site(*frames[0], frames=frames)


def _read_from(place: Place, name: str, offset: int) -> tuple[bytes, str]:
    """(what came since, why it cannot be read)"""
    try:
        return place.read(name, offset), ""
    except FileNotFoundError:
        return b"", f"{name} is missing"
    except OSError as error:
        return b"", f"{name} cannot be read: {error.strerror}"


def _damage(name: str, damaged: int, torn: bool, unread: str) -> list[str]:
    if unread:
        return [unread]
    found = [f"{name}: {counted(damaged, 'damaged record is', 'damaged records are')} left out"] if damaged else []
    return [*found, f"{name}: the last record is torn"] if torn else found
