"""`kvscope races`: every switch between threads chosen, until a schedule goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvscope.inspector.races import AllocatorOutcome, Outcome
    from kvscope.inspector.races.story_model import StoryTold

_HANG_S = 10.0  # after which a factory counts as hanging


def races(
    target: Annotated[
        str | None, typer.Argument(help="package.module:race or path.py:race: a Race, or a paged allocator's factory.")
    ] = None,
    example: Annotated[str | None, typer.Option(help="One of ours, by name; `list` names them.")] = None,
    level: Annotated[str | None, typer.Option(help="Where switches may be: hook, line or opcode.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="auto, exhaustive, pct or random.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to look.")] = 30.0,
    schedules: Annotated[int | None, typer.Option(min=1, help="No more schedules than these.")] = None,
    preemptions: Annotated[int, typer.Option(min=0, max=9, help="Bound of the exhaustive scheduler.")] = 3,
    depth: Annotated[int, typer.Option(min=1, max=9, help="Depth of PCT.")] = 3,
    threads: Annotated[int, typer.Option(min=2, max=4, help="Of a paged allocator.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same schedules.")] = 0,
    replay: Annotated[str | None, typer.Option(help="Play this string only.")] = None,
    out: Annotated[Path, typer.Option(help="With --example smollm2: where the two traces go.")] = Path("races-out"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="With --example smollm2: replace traces there that it has not made.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (kvscope-races/1).")] = False,
    junit: Annotated[
        Path | None, typer.Option(help="Also write this JUnit XML file; missing folders are made.")
    ] = None,
) -> None:
    """Run a few threads over one object under many schedules, and print the shortest that goes wrong.

    Prints the interleaving in lanes, with source lines, and a string that plays it again. Exits 0 when nothing was
    found, 1 with a finding, 2 when the target cannot be used.

    Example: kvscope races --example articles
    """
    from kvscope.errors import UsageError

    if (target is None) == (example is None):
        raise UsageError("give a target, or --example NAME (--example list names them)")
    if example == "list":
        _list(as_json)
        return
    if example == "smollm2":
        _story(out, replay, as_json, overwrite=overwrite)
        return
    from kvscope.inspector.junit_file import errors_in_junit, ready_for_junit

    ready_for_junit(junit)
    about = target or f"example {example}"
    with errors_in_junit(junit, "races", about), _progress(target or str(example), seconds) as progress:
        result = _explore(
            target, example, level, progress, scheduler=scheduler, seconds=seconds, schedules=schedules,
            preemptions=preemptions, depth=depth, threads=threads, seed=seed, replay=replay,
        )  # fmt: skip
    if as_json:
        sys.stdout.write(json.dumps({"schema": "kvscope-races/1", **result.to_json()}, ensure_ascii=False) + "\n")
    else:
        _print(result)
    if junit is not None:
        from kvscope.inspector.races.junit import write_junit

        write_junit(junit, about, result)
    raise typer.Exit(1 if result.found else 0)


def _explore(
    target: str | None, example: str | None, level: str | None, progress: Callable[[int, float], None] | None, *,
    scheduler: str | None, threads: int, **options: Any,
) -> Outcome | AllocatorOutcome:  # fmt: skip
    from kvscope.errors import UsageError
    from kvscope.inspector.fuzz.watchdog import watched
    from kvscope.inspector.races import Race, explore_allocator, explore_race
    from kvscope.inspector.races.examples import examples
    from kvscope.inspector.races.kinds import KINDS, explore_kind
    from kvscope.inspector.races.target import load_race

    if target is None:
        known = examples()
        if example not in known:
            raise UsageError(f"example {example!r} is unknown: choose one of smollm2, {', '.join(known)}")
        chosen = known[example]
        if example in KINDS and level is None and scheduler is None:
            wanted = {name: options[name] for name in ("seed", "seconds", "schedules", "replay")}
            return explore_kind(KINDS[example], on_progress=progress, **wanted)
        return explore_race(
            chosen.race(options["seed"]), level=level or chosen.level, scheduler=scheduler or chosen.scheduler,
            on_progress=progress, **options,
        )  # fmt: skip
    race = load_race(target)
    if isinstance(race, Race):
        return explore_race(
            race, level=level or "opcode", scheduler=scheduler or "auto", on_progress=progress, **options
        )
    told = None if progress is None else lambda _, schedules, elapsed: progress(schedules, elapsed)
    with watched(_HANG_S):
        return explore_allocator(
            race, threads=threads, seconds=options["seconds"], seed=options["seed"], level=level,
            replay=options["replay"], on_progress=told,
        )  # fmt: skip


def _list(as_json: bool) -> None:
    from kvscope.inspector.races.examples import examples

    rows = [("smollm2", "the articles' story on the real model: found, replayed, told")]
    rows += [(name, example.title) for name, example in examples().items()]
    if as_json:
        sys.stdout.write(json.dumps([{"name": name, "title": title} for name, title in rows]) + "\n")
        return
    for name, title in rows:
        sys.stdout.write(f"{name:22} {title}\n")


def _print(result: Outcome | AllocatorOutcome) -> None:
    """Lanes as wide as the terminal, what failed in red; plain text elsewhere."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        sys.stdout.write(result.text() + "\n")
        return
    text = Text(result.text(console.width))
    text.highlight_regex(r"is stopped here.*?(?=-)", "bold yellow")
    text.highlight_regex(r"\(next: .*?(\)|~)", "yellow")
    text.highlight_regex(r"(?m)^  (violation|finding|crash|deadlock|hang|stuck|not-linearizable|nondeterminism): .*$",
                         "bold red")  # fmt: skip
    text.highlight_regex(r"(?m)^  replay.*$", "bold")
    text.highlight_regex(r"no schedule of [\d,]+ failed|nothing found", "bold green")
    console.print(text, soft_wrap=True)


@contextmanager
def _progress(what: str, seconds: float) -> Iterator[Callable[[int, float], None] | None]:
    """A status line, on a terminal."""
    from kvscope.inspector.cli._lines import errors

    if not errors.is_terminal:
        yield None
        return
    with errors.status(f"{what} ...") as status:
        yield lambda schedules, elapsed: status.update(
            f"{what}: {schedules:,} schedules, {elapsed:.0f} of {seconds:g} s"
        )


def _story(folder: Path, replay: str | None, as_json: bool, *, overwrite: bool) -> None:
    """The articles' story on the real model."""
    from kvscope.engine.model.registry import locate
    from kvscope.inspector.cli._files import check_replaceable
    from kvscope.inspector.races.story_model import ENGINE, TRACES

    for name in TRACES:
        check_replaceable(folder / name, ENGINE, overwrite=overwrite)

    locate("smollm2")
    import torch

    from kvscope.inspector.cli._engine import load
    from kvscope.inspector.cli._lines import say
    from kvscope.inspector.findings import check
    from kvscope.inspector.races.story_model import tell
    from kvscope.traces import open_trace

    loaded = load("smollm2", device="cpu", dtype=torch.float32, threads=0, quiet=as_json)
    told = tell(loaded, folder, replay=replay, overwrite=True, on_run=(lambda _: None) if as_json else say)
    racy, mended = (open_trace(run.trace) for run in (told.broken, told.mended))
    results = check(racy), check(mended)
    if as_json:
        sys.stdout.write(json.dumps({"schema": "kvscope-races/1", **_story_json(told, *results)}) + "\n")
    else:
        _tell(told, *results)
    raise typer.Exit(1 if results[0].findings else 0)


def _story_json(told: StoryTold, racy: Any, mended: Any) -> dict[str, Any]:
    return {
        **told.outcome.to_json(), "garbled": told.garbled,
        "racy": {"trace": str(told.broken.trace), "texts": told.broken.texts, "errors": told.broken.errors,
                 "codes": sorted({f.code for f in racy.findings})},
        "mended": {"trace": str(told.mended.trace), "texts": told.mended.texts, "errors": told.mended.errors,
                   "codes": sorted({f.code for f in mended.findings})},
    }  # fmt: skip


def _tell(told: StoryTold, racy: Any, mended: Any) -> None:
    from kvscope.inspector.explain import explain
    from kvscope.inspector.explain_report import explanation_text
    from kvscope.traces import open_trace

    write = sys.stdout.write
    write(f'{told.outcome.text()}\n\nThe same schedule on SmolLM2: "{told.prompt}"\n')
    for number, (bad, good) in enumerate(zip(told.broken.texts, told.mended.texts, strict=True)):
        mark = "GARBLED" if number in told.garbled else "same"
        write(f"\nsample {number} ({mark})\n  counts not atomic: {bad}\n")
        if number in told.garbled:
            write(f"  counts mended:     {good}\n")
    codes = ", ".join(sorted({f.code for f in racy.findings}))
    write(f"\ncheck: {len(racy.findings)} findings ({codes}) with counts that are not atomic; "
          f"{len(mended.findings) or 'none'} with them mended\n\n")  # fmt: skip
    trace = open_trace(told.broken.trace)
    if told.garbled:
        name = "story" if told.garbled[0] == 0 else f"story/{told.garbled[0]}"
        write(explanation_text(explain(trace, name, None), trace, name=str(told.broken.trace)) + "\n")
    write(f"\ntraces: {told.broken.trace}  {told.mended.trace}\n")
