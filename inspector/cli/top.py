"""`kvscope top`: a pool in a terminal, while it works."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kvscope.errors import TraceError, UsageError
from kvscope.inspector.numerals import ABSENT, ratio_text, unit_text
from kvscope.inspector.palette import BY_LETTER, STATES, WRITING
from kvscope.inspector.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvscope.inspector.glance import Glance, History, Moment
    from kvscope.inspector.palette import State
    from kvscope.inspector.statrow import Cell
    from kvscope.inspector.top import Source

LOST = "Lost"
_DRAWN = (STATES[0], WRITING, *STATES[1:])  # what a map tells apart: private blocks are being written or not
_COUNTED = (("COW copies", "cow_copies"), ("preemptions", "preemptions"), ("evictions", "evictions"))
_SPARKS = " ▁▂▃▄▅▆▇█"
_MAP_ROWS = 24
LOOK_S, ASK_S = 10.0, 5.0  # how long one look waits for a server's answer; and one of many
_AWAY = "The server does not answer, asking again"


def top(
    place: Annotated[str, typer.Argument(help="A trace, or the URL of a server with --debug-routes.")],
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, then end; as on a pipe.")] = False,
    token_file: Annotated[Path | None, typer.Option(help="File with the server's bearer token.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One look as one JSON object on standard output.")] = False,
    seq: Annotated[int | None, typer.Option(min=0, help="One look at the pool just after this event.")] = None,
) -> None:
    """Watch a pool: its measures, its blocks by state, and a map, live until Ctrl-C or the end of the trace.

    Of a trace that nobody writes any more it shows the moment at which most blocks were in use.

    Example: kvscope top live.kvtrace

    Example: kvscope top run.kvtrace --seq 9412
    """
    from kvscope.inspector.glance import History

    if not 0.1 <= interval <= 3600:
        raise UsageError(f"interval is {interval:g}: must be 0.1..3600 seconds")
    console = Console(highlight=False)
    followed = not as_json and not once and seq is None and console.is_terminal
    source, history = _source(place, token_file, followed, seq), History()
    if followed:
        _follow(source, history, console, interval)
        return
    history.add(source.look())
    if as_json:
        sys.stdout.write(json.dumps(history.kept[-1].to_json(history.rates()), ensure_ascii=False) + "\n")
        return
    console.print(screen(history, console.width, _MAP_ROWS))


def _source(place: str, token_file: Path | None, followed: bool, seq: int | None) -> Source:
    from kvscope.inspector.cli._places import check_folder, check_scheme
    from kvscope.inspector.livecheck import LiveCheck
    from kvscope.inspector.remote import is_url, read_token
    from kvscope.inspector.top import FolderSource, RecordedSource, ServerSource, quick_check
    from kvscope.traces import open_trace

    check_scheme(place)
    if is_url(place):
        if seq is not None:
            raise UsageError("seq is for a trace, and a server's URL was given: it is shown as it is now")
        return ServerSource(place, read_token(token_file), ASK_S if followed else LOOK_S)
    if token_file is not None:
        raise UsageError("token-file is for a server's URL, and a trace was given")
    path = Path(place)
    check_folder(path)
    # (beside a run that is watched a program of its own checks; one look at a short one can wait for it)
    checked = LiveCheck(path).look if followed else lambda run, rows: quick_check(open_trace(path))
    growing = FolderSource(path, checked=checked)
    return growing if growing.live and seq is None else RecordedSource(path, seq)


def _follow(source: Source, history: History, console: Console, interval: float) -> None:
    """Look again and again; a trace whose writer is gone is shown once more, and that is the end.

    A server that does not answer is asked again, before the first answer as after it.

    Raises:
        TraceError: the first look is refused.
    """
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how one leaves
        _look(source, history)
        picture = partial(screen, history, console.width)
        with Live(picture(_rows_for(console)), console=console, auto_refresh=False) as live:
            while not history.kept or history.kept[-1].live:
                time.sleep(interval)
                _look(source, history)
                live.update(picture(_rows_for(console)), refresh=True)


def _rows_for(console: Console) -> int:
    return max(4, console.height - 14)


def _look(source: Source, history: History) -> None:
    """One more glance, or why there is none."""
    from kvscope.inspector.remote import Unreachable
    from kvscope.inspector.top import ServerSource

    try:
        history.add(source.look())
    except TraceError as error:
        if not isinstance(source, ServerSource) or not (history.kept or isinstance(error, Unreachable)):
            raise
        history.away = str(error)


def screen(history: History, width: int, map_rows: int) -> Group:
    """The whole picture: title, stat row, occupancy, map."""
    if not history.kept:
        return Group(Text(f"Waiting. {_AWAY}: {history.away}", "yellow"))
    parts: list[Any] = [Text(f"{_AWAY}: {history.away}", "bold red")] if history.away else []
    glance = history.kept[-1]
    if not glance.pool:
        said = Text(glance.failed or "the engine is in the middle of a long step", "yellow")
        return Group(*parts, _title(glance, away=bool(history.away)), said)
    rates = history.rates()
    parts += [
        _title(glance, away=bool(history.away)),
        *([Text("\nThe run", "dim"), *_stats(glance.whole, width)] if glance.whole else []),
        *([Text(f"\n{_when(glance.moment)}", "dim")] if glance.moment else []),
        *_stats(glance.row(rates["tokens_per_s"], away=bool(history.away)), width),
        *_occupancy(glance, history, width),
        _so_far(glance, None if history.away else rates["events_per_s"]),
    ]
    if glance.moment:
        parts.append(Text(_other_moments(glance.moment), "dim"))
    if glance.let_go:
        parts.append(Text(_let_go(glance), "dim"))
    return Group(*parts, Text(), *_map(glance, width, map_rows))


def _when(moment: Moment) -> str:
    """Which moment of a recorded run is shown."""
    why = {"most_in_use": ", at which most blocks were in use", "end": ", its last: no block was ever in use"}
    if moment.asked not in (None, moment.seq):
        return f"Just after event {moment.seq:,}: event {moment.asked:,} is missing"
    return f"Just after event {moment.seq:,}{why.get(moment.chosen, '')}"


def _other_moments(moment: Moment) -> str:
    """What else there is to look at, and how."""
    told = []
    if moment.seq != moment.last_seq:
        lost = f", {moment.lost_at_end:,} of them lost" if moment.lost_at_end else ""
        held = counted(moment.in_use_at_end, "block is", "blocks are") if moment.in_use_at_end else "no block is"
        told.append(f"at its last event, {moment.last_seq:,}, {held} in use{lost}")
    if moment.chosen == "asked" and moment.seq != moment.most_seq:
        told.append(f"most were in use at event {moment.most_seq:,}")
    if moment.first_finding is not None:
        told.append(f"the first finding is at event {moment.first_finding:,}")
    said = "; ".join([*told, "--seq N shows the pool just after event N"])
    return said[:1].upper() + said[1:]


def _so_far(glance: Glance, events_per_s: float | None) -> Text:
    """What has happened up to now, in counts."""
    totals = glance.totals
    asked = totals.get("prefix_query_tokens")
    hits = totals.get("prefix_hit_tokens", 0) / asked if asked else None
    speed = "" if events_per_s is None else f" ({events_per_s:,.0f} a second)"
    told = [
        f"prefix hits {ratio_text(hits)}",
        *(f"{name} {totals[key]:,}" for name, key in _COUNTED if key in totals),
        *([f"events {totals['events']:,}{speed}"] if "events" in totals else []),
    ]
    return Text(("Up to here: " if glance.moment else "So far: ") + ", ".join(told), "dim")


def _let_go(glance: Glance) -> str:
    """What the events that a recorder with limits has let go are to the figures."""
    told = f"{glance.let_go:,} events were let go"
    if not glance.unseen:
        return f"{told}: counts and rates have them too"
    if glance.run not in ("", "0"):
        return f"{told}, some before they were looked at: counts and rates began anew behind event {glance.unseen:,}"
    rest = "the rest" if glance.unseen == glance.let_go else f"those behind event {glance.unseen:,}"
    return f"{told}: counts and rates are of {rest}"


def _title(glance: Glance, *, away: bool = False) -> Text:
    pool = glance.pool
    text = Text()  # a style given here would be that of all that follows
    text.append(glance.name, "bold")
    at_end = "  recorded" if glance.moment else "  at its end"
    state = "  as it last was" if away else "  live" if glance.live else at_end
    text.append(state, "green" if glance.live and not away else "dim")
    if pool:
        text.append(f"  seq {pool['seq']:,}  step {pool['step']:,}" if pool["seq"] is not None else "", "dim")
    if glance.failed:
        text.append(f"  {glance.failed}", "bold red")
    if glance.totals.get("dropped_events"):
        text.append(f"  {glance.totals['dropped_events']:,} events dropped: what is shown is incomplete", "bold red")
    if glance.missing and not glance.totals.get("events"):
        text.append(f"  damaged: all {glance.missing:,} events are missing, and nothing can be shown", "bold red")
    elif glance.missing:
        text.append(f"  damaged: {glance.missing:,} events are missing: what is shown is incomplete", "bold red")
    return text


def _stats(cells: Sequence[Cell], width: int) -> list[Text]:
    """A row of numbers: names above, values below; on a narrow terminal more than one such pair of lines."""
    figures = [(name, _with_unit(value, unit), _alarm(name, value, unit)) for name, value, unit, _ in cells]
    lines: list[Text] = []
    for part in _rows(figures, width):
        names, values = Text(), Text()
        for name, value, style in part:
            cell = max(len(name), len(value)) + 2
            names.append(name.ljust(cell), "dim")
            values.append(value.ljust(cell), style)
        lines += [names, values]
    return lines


def _with_unit(value: str, unit: str) -> str:
    unit = unit_text(value, unit)
    return f"{value}, {unit}" if unit[:1].isdigit() else f"{value} {unit}".rstrip()


def _alarm(name: str, value: str, unit: str) -> str:
    """The style of a number: red where it is an alarm."""
    if name == "Held" and unit.endswith("%"):
        full = int(unit.rpartition(" ")[2].removesuffix("%"))
        return "bold red" if full >= 98 else "bold yellow" if full >= 90 else "bold"
    if name == LOST or (name == "Findings" and value not in ("0", ABSENT)):
        return "bold red"
    return "bold green" if (name, value) == ("Findings", "0") else "bold"


def _rows(figures: list[tuple[str, str, str]], width: int) -> list[list[tuple[str, str, str]]]:
    """As few rows as fit, with about as many figures each."""
    for count in range(1, len(figures) + 1):
        each = -(-len(figures) // count)
        parts = [figures[at : at + each] for at in range(0, len(figures), each)]
        if all(sum(max(len(name), len(value)) + 2 for name, value, _ in part) <= width + 2 for part in parts):
            return parts
    return [[figure] for figure in figures]


def _occupancy(glance: Glance, history: History, width: int) -> list[Text]:
    """A bar of the pool by state, its legend, and the pool in use over the last looks."""
    counts, total = glance.by_letter(), max(len(glance.letters), 1)
    bar, at = Text(), 0
    cells = max(10, width - 1)
    seen = 0
    for state in _DRAWN:
        seen += counts[state.letter]
        end = round(seen / total * cells)
        bar.append(state.letter * (end - at), _bar_style(state))
        at = end
    lines = [Text(), bar, *_legend(glance, cells)]
    used = history.used()[-(cells - 8) :]
    if len(used) > 1:
        line = Text().append("in use  ", "dim")
        line.append("".join(_SPARKS[min(8, round(value * 8))] for value in used), BY_LETTER["P"].colour)
        lines.append(line)
    return lines


def _bar_style(state: State) -> str:
    """A full area of the state's colour; of what is lost the letters are seen too."""
    if state.letter == "F":
        return "#3A4149"
    return f"on {state.colour} {'bold #FFFFFF' if state.hatched else state.colour}"


def _legend(glance: Glance, width: int) -> list[Text]:
    """What the letters mean, broken between them where a line is full."""
    counts = glance.by_letter()
    told = [(s.letter, s.colour, f"{s.label} {counts[s.letter]:,}") for s in _DRAWN]
    lines = [Text()]
    for letter, colour, words in told:
        if lines[-1].cell_len + len(words) + 2 > width:
            lines.append(Text())
        lines[-1].append(f"{letter} ", f"bold {colour}").append(f"{words}   ")
    for line in lines:
        line.rstrip()
    return lines


def _map(glance: Glance, width: int, rows: int) -> list[Text]:
    """One letter per block, or per run of blocks where they do not fit."""
    columns = max(8, width - 10)
    columns -= columns % 8
    per, cells = glance.cells(columns * rows)
    lines = []
    for at in range(0, len(cells), columns):
        line = Text().append(f"{at * per:>8} ", "dim")
        for letter, run in itertools.groupby(cells[at : at + columns]):
            count = len(list(run))
            line.append(letter * count, _style(letter))
        lines.append(line)
    if per > 1:
        lines.append(Text(f"         a letter stands for {per:,} blocks: the most telling of them", "dim"))
    return lines


def _style(letter: str) -> str:
    state = BY_LETTER[letter]
    return "dim" if letter == "F" else f"bold {state.colour} reverse" if state.hatched else state.colour
