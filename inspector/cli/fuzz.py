"""`kvscope fuzz`: find the bug in an allocator."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvscope.inspector.fuzz.sandbox import Progress


def fuzz(
    target: Annotated[
        str, typer.Argument(help="package.module:factory, path.py:factory, or kvscope, transformers, vllm, nano-vllm.")
    ],
    seconds: Annotated[float, typer.Option(min=0.5, help="How long to look.")] = 60.0,
    threads: Annotated[int, typer.Option(min=1, max=4, help="Also interleave so many threads.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same programs.")] = 0,
    replay: Annotated[str | None, typer.Option(help="Play this interleaving of a finding again, nothing else.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (kvscope-fuzz/1).")] = False,
    junit: Annotated[
        Path | None, typer.Option(help="Also write this JUnit XML file; missing folders are made.")
    ] = None,
    database: Annotated[Path, typer.Option(help="Folder of programs that failed before, played first.")] = Path(
        ".hypothesis/kvscope"
    ),
    no_database: Annotated[bool, typer.Option("--no-database", help="Neither read nor keep such programs.")] = False,
    hang: Annotated[float, typer.Option(min=0.5, help="Seconds after which a call counts as hanging.")] = 5.0,
    allow_output: Annotated[bool, typer.Option("--allow-output", help="The target may print.")] = False,
) -> None:
    """Drive a paged allocator with random operations until it breaks a rule, and print the shortest program that does.

    The target is factory(num_blocks, block_size) and returns what kvscope.inspector.fuzz.PagedAllocator describes; it
    runs in a process of its own. Exits 0 when nothing was found, 1 with a finding, 2 when the target cannot be used.

    Example: kvscope fuzz mypkg.pool:factory --seconds 30
    """
    from kvscope.errors import MissingDependency
    from kvscope.inspector.fuzz.report import Job

    try:
        import hypothesis  # noqa: F401
    except ModuleNotFoundError:
        raise MissingDependency("fuzzing needs hypothesis: pip install 'kvscope[fuzz]'") from None
    from kvscope.inspector.fuzz.sandbox import run
    from kvscope.inspector.junit_file import errors_in_junit, ready_for_junit

    ready_for_junit(junit)
    if not no_database:
        with errors_in_junit(junit, "fuzz", target):
            _ready_for_programs(database)
    job = Job(
        target, seed, seconds, threads, shrink_seconds=max(5.0, seconds / 4), hang_seconds=hang,
        database=None if no_database else str(database), allow_output=allow_output, replay=replay,
    )  # fmt: skip
    with errors_in_junit(junit, "fuzz", target), _progress(target, seconds) as progress:
        report = run(job, progress)
    for note in report.notes:
        sys.stderr.write(f"kvscope: note: {note}\n")
    if as_json:
        sys.stdout.write(json.dumps(report.to_json(), ensure_ascii=False) + "\n")
    elif report.unusable is None:
        sys.stdout.write(report.text() + "\n")
    if report.unusable is not None:
        sys.stderr.write(f"kvscope: error: {' '.join(f'{target}: {report.unusable}'.split())}\n")
    if junit is not None:
        report.write_junit(junit)
    raise typer.Exit(report.status)


def _ready_for_programs(folder: Path) -> None:
    """Raises UsageError where programs that fail could not be kept."""
    from kvscope.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"database {folder} is a file: name a folder, or give --no-database") from None
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"database {folder} cannot be made: {reason}; give --no-database") from error


@contextmanager
def _progress(target: str, seconds: float) -> Iterator[Progress | None]:
    """A status line, on a terminal."""
    from kvscope.inspector.cli._lines import errors

    if not errors.is_terminal:
        yield None
        return
    with errors.status(f"fuzzing {target} ...") as status:

        def show(examples: int, calls: int, elapsed: float) -> None:
            status.update(f"fuzzing {target}: {examples:,} programs, {calls:,} calls, {elapsed:.0f} of {seconds:g} s")

        yield show
