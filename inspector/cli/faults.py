"""`kvscope faults`: the catalogue of planted faults, and the kill matrix."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvscope.engine.model import LoadedModel
    from kvscope.inspector.faults.matrix import Kill
    from kvscope.inspector.faults.real import RealRun
    from kvscope.inspector.findings import CheckResult
    from kvscope.inspector.source import TraceLike

_POISON = (
    "(a text that falls into repeating a piece of a word is what the poison of --content makes: freed\n"
    "blocks are filled with NaN, and a step that reads them has no likeliest token)"
)

app = typer.Typer(help="The planted faults: broken block managers that the sanitizer must find.", no_args_is_help=True)


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False) -> None:
    """Every fault by name, with its kind and the code it is found as.

    Example: kvscope faults list
    """
    from kvscope.inspector.faults import FAULTS, KINDS

    if as_json:
        rows = [
            {"name": f.name, "code": f.code, "kind": f.kind, "kind_title": KINDS[f.kind], "title": f.title}
            for f in FAULTS.values()
        ]
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    for fault in FAULTS.values():
        sys.stdout.write(f"{fault.name:24} {fault.kind}  {fault.code}  {fault.title}\n")


@app.command("run")
def run(
    names: Annotated[list[str] | None, typer.Argument(help="Faults to run; all if none is named.")] = None,
    real: Annotated[
        bool, typer.Option("--real", help="Run each on SmolLM2 too; takes some seconds per fault.")
    ] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the matrix as a Markdown page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """The kill matrix: every fault through every play, and which detector finds it.

    Exits 0 only if every fault was found by its own code, and nothing where nothing is planted.

    Example: kvscope faults run missing-copy double-free
    """
    from kvscope.errors import UsageError
    from kvscope.inspector.cli._lines import errors
    from kvscope.inspector.faults import FAULTS
    from kvscope.inspector.faults.matrix import detected, false_alarms, kill, kill_real
    from kvscope.inspector.faults.matrix import markdown as page

    for name in names or ():
        if name not in FAULTS:
            raise UsageError(f"fault {name!r} is unknown: choose one of {', '.join(FAULTS)}")
    if markdown is not None:  # before the work, not after it
        if markdown.is_dir():
            raise UsageError(f"{markdown} is a folder: give --markdown a file")
        markdown.parent.mkdir(parents=True, exist_ok=True)
    kills: list[Kill] = []
    loaded, clean = _real_model() if real else (None, None)
    with errors.status("without a fault ...") as status:
        alarms = false_alarms()
        if clean is not None and (found := detected(clean.trace)):
            alarms["the real model"] = found
        for number, name in enumerate(names or FAULTS, 1):
            status.update(f"{name} ({number} of {len(names or FAULTS)})")
            kills.append(kill(FAULTS[name]))
            if loaded is not None and clean is not None:
                kill_real(kills[-1], loaded, clean)
            if not as_json:
                _line(kills[-1])
    if markdown is not None:
        markdown.write_text(page(kills), encoding="utf-8")
    missed = [made.fault for made in kills if not made.found]
    if as_json:
        record = {"ok": not missed and not alarms, "faults": [k.to_json() for k in kills], "false_alarms": alarms}
        sys.stdout.write(json.dumps(record) + "\n")
    else:
        sys.stdout.write(f"{len(kills) - len(missed)} of {len(kills)} faults found by name")
        sys.stdout.write(f"; false alarms: {json.dumps(alarms)}\n" if alarms else "; no false alarm without a fault\n")
    raise typer.Exit(1 if missed or alarms else 0)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A fault (`kvscope faults list`).")],
    trace: Annotated[
        Path | None, typer.Option(help="Keep the run with the fault in this folder (NAME.kvtrace), to look at it.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a trace that this has not made.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """One fault on SmolLM2: what the model says without and with it, and what `explain` tells of the first damage.

    Exits 1 if the fault was found, as a check of its trace would; 0 if that run does nothing that it breaks.

    Example: kvscope faults show stale-table
    """
    from kvscope.errors import UsageError
    from kvscope.inspector.cli._files import check_replaceable
    from kvscope.inspector.explain import explain
    from kvscope.inspector.explain_report import explanation_json, explanation_text
    from kvscope.inspector.faults import FAULTS
    from kvscope.inspector.faults.real import ENGINE, changed, run_real
    from kvscope.inspector.findings import check
    from kvscope.traces.folder import check_claim

    if name not in FAULTS:
        raise UsageError(f"fault {name!r} is unknown: choose one of {', '.join(FAULTS)}")
    if trace is not None and not (trace / "manifest.json").exists():
        check_claim(trace, overwrite)
    elif trace is not None:
        check_replaceable(trace, ENGINE, overwrite=overwrite)
    loaded, clean = _real_model()
    broken = run_real(loaded, FAULTS[name].manager(), keep=trace)
    kept = str(trace) if trace is not None else f"{name}.kvtrace"
    result = check(broken.trace)
    differ = changed(clean, broken)
    texts = [
        {"request": request, "sample": k, "clean": clean.texts[request][k], "broken": broken.texts[request][k]}
        for request, samples in differ.items()
        for k in samples
    ]
    wrong = broken.truth.first if broken.truth is not None else {}
    first = min(wrong.values(), key=lambda found: (found.step, found.seq_id), default=None)
    told = explain(broken.trace, f"s{first.seq_id}", result=result) if first is not None else None
    if as_json:
        record = {
            "fault": name, "code": FAULTS[name].code, "codes": sorted({f.code for f in result.findings}),
            "texts": texts, "trace": str(trace) if trace is not None else None,
            "explanation": explanation_json(told, broken.trace, name=kept) if told is not None else None,
        }  # fmt: skip
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(f"{name}: {FAULTS[name].title}\n")
        for text in texts:
            sys.stdout.write(f"\n{text['request']}/{text['sample']}\n  clean   {text['clean']!r}\n")
            sys.stdout.write(f"  broken  {text['broken']!r}\n")
        if texts and _poisoned(broken.trace):
            sys.stdout.write(f"\n{_POISON}\n")
        sys.stdout.write(
            "\n" + (explanation_text(told, broken.trace, name=kept) if told is not None else _harmless(result)) + "\n"
        )
        if trace is None and told is not None:
            sys.stdout.write(f"(this run was not kept: `kvscope faults show {name} --trace {kept}` keeps it to view)\n")
    raise typer.Exit(1 if result.findings else 0)


def _poisoned(trace: TraceLike) -> bool:
    """Whether a step read the poison of a freed block."""
    from kvscope.traces.schema import Kind, Reason

    events = trace.events
    return bool(((events["kind"] == Kind.MISMATCH) & (events["reason"] == Reason.POISON)).any())


def _harmless(result: CheckResult) -> str:
    """A run whose reads were all its own: what a check of it says all the same."""
    from kvscope.inspector.units import counted

    found = [f"    {finding.code} {finding.title}: {finding.why}" for finding in result.findings[:5]]
    more = len(result.findings) - len(found)
    told = ["no step of this run read foreign KV, and no text was damaged"]
    if found:
        told.append(f"a check of it finds what may do so in another run, {counted(len(result.findings), 'finding')}:")
    return "\n".join([*told, *found, *([f"    ... and {more} more"] if more else [])])


def _real_model() -> tuple[LoadedModel, RealRun]:
    """The embedded model, and what it says without a fault."""
    import torch

    from kvscope.inspector.cli._engine import load
    from kvscope.inspector.faults.real import run_real

    loaded = load("smollm2", device="cpu", dtype=torch.float32, threads=0)
    return loaded, run_real(loaded)


def _line(made: Kill) -> None:
    found = " ".join(f"{name}:{'+'.join(codes)}" for name, codes in made.detectors.items()) or "nothing"
    verdict = "found " if made.found else "MISSED"
    sys.stdout.write(f"{verdict} {made.fault:24} {made.code}  {found}\n")
    if made.real is not None:
        there = " ".join(f"{name}:{'+'.join(codes)}" for name, codes in made.real.items()) or "not touched by that run"
        sys.stdout.write(f"       on the real model: {there}{'; the text changed' if made.changed_text else ''}\n")
