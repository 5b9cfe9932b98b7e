"""`kvscope check`: replay the ledger of a trace, report every broken rule."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kvscope.inspector.cli._files import readable
from kvscope.inspector.units import counted

if TYPE_CHECKING:
    from kvscope.inspector.findings import CheckResult
    from kvscope.inspector.source import Frozen
    from kvscope.inspector.suppress import Rule, Suppressed
    from kvscope.traces.losses import Losses


_ACCEPTED = 5  # suppressed findings of a rule that get a line each


def check(
    traces: Annotated[
        list[Path], typer.Argument(help="Traces (NAME.kvtrace, NAME.kvpack), or a folder of them.", metavar="TRACE...")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (kvsan/1) on standard output.")] = False,
    most: Annotated[int, typer.Option("--max", min=1, help="Report at most this many kinds of mistake in full.")] = 20,
    junit: Annotated[
        Path | None, typer.Option(help="Also write this JUnit XML file (one trace); missing folders are made.")
    ] = None,
    suppress: Annotated[
        list[str] | None, typer.Option(help="Accept findings: KV006, KV006:b9, KV006:FILE, or a file of such lines.")
    ] = None,
    show_suppressed: Annotated[
        bool, typer.Option("--show-suppressed", help="List every accepted finding, not the first of each rule.")
    ] = False,
) -> None:
    """Replay a trace and report every broken rule: who, what, where, and why.

    Of several traces (the ranks or pools of one run) each is checked by itself. Exits 1 where one of them has a
    finding, whatever became of the others; else 2 where one cannot be read, or has nothing to check; else 0: what they
    hold is clean (the line says how many events are missing, if any). Suppressed findings are listed and do not count.

    Example: kvscope check run.kvtrace
    """
    from kvscope.errors import UsageError
    from kvscope.inspector.junit_file import errors_in_junit, ready_for_junit
    from kvscope.inspector.suppress import parse
    from kvscope.traces import find_traces

    rules = parse(suppress or ())
    subject = " ".join(map(str, traces))
    with errors_in_junit(junit, "check", subject):
        found, failed = readable(find_traces(traces))
    given = len(found) + len(failed)
    if junit is not None and given > 1:
        raise UsageError(f"--junit writes one trace's result, got {given} traces: check them one by one")
    ready_for_junit(junit)
    listed = None if show_suppressed else _ACCEPTED
    with errors_in_junit(junit, "check", subject):
        told = [_check_one(path, as_json, most, rules, heading=given > 1, listed=listed) for path in found]
    if as_json:
        several = {"schema": "kvsan-several/1", "traces": [one.record for one in told],
                   "unreadable": [" ".join(str(error).split()) for error in failed]}  # fmt: skip
        sys.stdout.write(json.dumps(told[0].record if given == 1 else several, ensure_ascii=False) + "\n")
    if junit is not None:  # last, and written whole: what was found is told even where it cannot be
        from kvscope.inspector.junit import write_junit

        write_junit(junit, told[0].result, told[0].trace, name=str(found[0]), suppressed=told[0].accepted)
    results = [one.result for one in told]
    if any(result.findings for result in results):
        raise typer.Exit(1)
    raise typer.Exit(2 if failed or any(result.nothing_to_check for result in results) else 0)


class _Told(NamedTuple):
    """What was said of one trace: `record` as JSON, where that was asked for."""

    result: CheckResult
    trace: Frozen
    accepted: list[Suppressed]
    record: dict[str, Any]


def _check_one(
    trace: Path, as_json: bool, most: int, rules: list[Rule], *, heading: bool, listed: int | None
) -> _Told:  # fmt: skip
    from kvscope.inspector import findings
    from kvscope.inspector.report import report, to_json
    from kvscope.inspector.source import frozen
    from kvscope.inspector.suppress import suppress
    from kvscope.traces import open_trace

    reader = open_trace(trace)
    opened = frozen(reader)  # a long trace is decoded a piece at a time
    result, taken = suppress(findings.check(opened), opened, rules)
    about = f"{trace}: " if heading else ""
    for line in (*opened.warnings, *result.notes):
        sys.stderr.write(f"kvscope: note: {about}{line}\n")
    for accepted in taken:
        sys.stderr.write(f"kvscope: note: {about}{accepted}\n")
        sys.stderr.writelines(f"{line}\n" for line in ([] if as_json else accepted.lines(opened, listed)))
    accepted_findings = sum(len(each.findings) for each in taken)
    if as_json:
        told = to_json(result, opened, name=str(trace)) | {"missing_events": opened.missing}
        told["lost_records"] = reader.losses._asdict()
        told["suppressed_findings"] = accepted_findings
        return _Told(result, opened, taken, told | {"suppressed": [t.to_json() for t in taken]})
    if result.nothing_to_check:
        text = f"nothing to check: none of the {result.events:,} events of {trace} speaks of a block"
        sys.stdout.write(text + "\n")
    elif result.findings:
        sys.stdout.write(report(result, opened, name=str(trace), most=most) + "\n")
    else:
        line = clean_line(result, opened.missing, reader.losses, suppressed=accepted_findings)
        sys.stdout.write(about + line + "\n")
    return _Told(result, opened, taken, {})


def clean_line(result: CheckResult, missing: int = 0, losses: Losses | None = None, *, suppressed: int = 0) -> str:
    """One line that says how much was checked, and what could not be: `missing` events and `losses` were lost.

    Args:
        suppressed: findings that were accepted: none is open, and that is not the same as clean.
    """
    lost = [f"{missing:,} event{'s are' if missing > 1 else ' is'} missing"] if missing else []
    if losses is not None and any(losses):
        lost.append(f"{losses} {'was' if sum(losses) == 1 else 'were'} not written")
    verdict = f"none open, {counted(suppressed, 'finding')} suppressed" if suppressed else "clean"
    verdict += f" as far as recorded: {', '.join(lost)}; " if lost else ": "
    idle = f"; nothing to look at for {' '.join(name for name, _ in result.idle)}" if result.idle else ""
    return (
        f"{verdict}checked {counted(result.events, 'event')}, {counted(result.blocks, 'block')}, "
        f"{counted(result.slots, 'slot')} in "
        f"{result.elapsed_s:.2f} s (detectors {' '.join(result.detectors)}{idle})"
    )
