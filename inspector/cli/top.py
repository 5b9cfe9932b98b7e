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
from kvscope.inspector.palette import BY_LETTER, STATES, WRITING
from kvscope.inspector.units import percent

if TYPE_CHECKING:
    from kvscope.inspector.palette import State
    from kvscope.inspector.top import Glance, History, Source

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
) -> None:
    """Watch a pool: its measures, its blocks by state, and a map, live until Ctrl-C or the end of the trace.

    Example: kvscope top live.kvtrace
    """
    from kvscope.inspector.top import History

    if not 0.1 <= interval <= 3600:
        raise UsageError(f"interval is {interval:g}: must be 0.1..3600 seconds")
    console = Console(highlight=False)
    followed = not as_json and not once and console.is_terminal
    source, history = _source(place, token_file, ASK_S if followed else LOOK_S), History()
    if followed:
        _follow(source, history, console, interval)
        return
    history.add(source.look())
    if as_json:
        sys.stdout.write(json.dumps(history.kept[-1].to_json(history.rates()), ensure_ascii=False) + "\n")
        return
    console.print(screen(history, console.width, _MAP_ROWS))


def _source(place: str, token_file: Path | None, timeout_s: float) -> Source:
    from kvscope.inspector.remote import is_url, read_token
    from kvscope.inspector.top import FolderSource, ServerSource

    if is_url(place):
        return ServerSource(place, read_token(token_file), timeout_s)
    if token_file is not None:
        raise UsageError("token-file is for a server's URL, and a trace was given")
    return FolderSource(Path(place))


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
    parts += [
        _title(glance, away=bool(history.away)),
        *_stats(glance, history, width),
        *_occupancy(glance, history, width),
    ]
    if glance.let_go:
        parts.append(Text(_let_go(glance), "dim"))
    return Group(*parts, Text(), *_map(glance, width, map_rows))


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
    state = "  as it last was" if away else "  live" if glance.live else "  at its end"
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


def _stats(glance: Glance, history: History, width: int) -> list[Text]:
    """The stat row: names above, values below; on a narrow terminal more than one such pair of lines."""
    pool, totals, rates = glance.pool, glance.totals, history.rates()
    used = 1 - (pool["blocks"]["free"] + pool["blocks"]["cached"]) / pool["num_blocks"]
    hits = (
        totals.get("prefix_hit_tokens", 0) / totals["prefix_query_tokens"]
        if totals.get("prefix_query_tokens")
        else None
    )
    kind = "tokens" if "generated_tokens" in totals else "computed"  # of answers; or positions, prompts' as well
    least = "" if pool.get("lineup_known", True) else "≥ "  # some may have come before the events that are left
    figures = [
        ("in use", percent(used), "bold red" if used >= 0.98 else "yellow" if used >= 0.9 else "bold"),
        ("running", f"{least}{pool['running']}", "bold"), ("waiting", f"{least}{pool['waiting']}", "bold"),
        ("hit rate", percent(hits), "bold"), ("tail waste", percent(pool["tail_waste"]), "bold"),
        ("saved", f"{pool['saved_blocks']:,}", "bold"),
        *([("lost", f"{pool['lost_blocks']:,}", "bold red")] if pool.get("lost_blocks") else []),
        ("cow", f"{totals.get('cow_copies', 0):,}", "bold"),
        ("preempted", f"{totals.get('preemptions', 0):,}", "bold"),
        ("evicted", f"{totals.get('evictions', 0):,}", "bold"),
        (f"{kind}/s", _rate(rates["tokens_per_s"]), "bold"), ("events/s", _rate(rates["events_per_s"]), "bold"),
    ]  # fmt: skip
    if glance.findings is not None:
        count = glance.findings["count"]
        figures.append(("findings", str(count), "bold red" if count else "bold green"))
    lines: list[Text] = []
    for part in _rows(figures, width):
        names, values = Text(), Text()
        for name, value, style in part:
            cell = max(len(name), len(value)) + 2
            names.append(name.ljust(cell), "dim")
            values.append(value.ljust(cell), style)
        lines += [names, values]
    return lines


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
    blocks, total = glance.pool["blocks"], glance.pool["num_blocks"]
    bar, at = Text(), 0
    cells = max(10, width - 1)
    seen = 0
    for state in STATES:
        seen += blocks.get(state.name, 0)
        end = round(seen / total * cells)
        bar.append(shown(state.letter) * (end - at), _bar_style(state))
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


def shown(letter: str) -> str:
    """A block's letter as it is drawn: a free one is a point."""
    return "·" if letter == "F" else letter


def _legend(glance: Glance, width: int) -> list[Text]:
    """What the letters mean, broken between them where a line is full."""
    blocks = glance.pool["blocks"]
    told = [(s.letter, s.colour, f"{s.label} {blocks[s.name]:,}") for s in STATES if s.name in blocks]
    if WRITING.letter in glance.cells(1 << 17)[1]:
        told.append((WRITING.letter, WRITING.colour, "being written"))
    lines = [Text()]
    for letter, colour, words in told:
        if lines[-1].cell_len + len(words) + 2 > width:
            lines.append(Text())
        lines[-1].append(f"{shown(letter)} ", f"bold {colour}").append(f"{words}   ")
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
            line.append(shown(letter) * count, _style(letter))
        lines.append(line)
    if per > 1:
        lines.append(Text(f"         a letter stands for {per:,} blocks: the most telling of them", "dim"))
    return lines


def _style(letter: str) -> str:
    state = BY_LETTER[letter]
    return "dim" if letter == "F" else f"bold {state.colour} reverse" if state.hatched else state.colour


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
