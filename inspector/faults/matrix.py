"""The kill matrix: every planted fault through every play, and by which detector it is found as which code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.detectors import detector_types
from kvscope.inspector.faults import FAULTS, KINDS, NOT_EXPRESSED, Fault
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import check
from kvscope.inspector.source import TraceLike

if TYPE_CHECKING:
    from kvscope.engine.model import LoadedModel
    from kvscope.inspector.faults.real import RealRun

SWAPPING = ("swap-without-lease", "reads-before-arrival", "swap-slots-mixed-up")


@dataclass
class Kill:
    """What became of one fault.

    `detectors`: by name the codes it reported; `plays`: those that its own code was in; `hurt`: sequences of all plays
    that read wrong KV, by the injector's own record.
    """

    fault: str
    kind: str
    code: str
    title: str
    detectors: dict[str, list[str]] = field(default_factory=dict)
    plays: list[str] = field(default_factory=list)
    hurt: int = 0
    real: dict[str, list[str]] | None = None  # the same on the real model; None: not run there
    changed_text: bool | None = None  # whether it changed what the real model said
    stopped: str = ""  # why the broken manager ended that run, if it did

    @property
    def found(self) -> bool:
        """Whether it was found as what it is, on the accounting engine or on the real model."""
        return bool(self.plays) or any(self.code in codes for codes in (self.real or {}).values())

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"found": self.found}


def detected(trace: TraceLike) -> dict[str, list[str]]:
    """The codes found in a trace by the detector that reports them."""
    codes = {finding.code for finding in check(trace).findings}
    out: dict[str, list[str]] = {}
    for code in sorted(codes):
        able = [name for name, made in detector_types().items() if code in made.codes]
        if len(able) > 1:  # several report under this code: each is asked alone
            able = [name for name in able if code in {f.code for f in check(trace, only=[name]).findings}]
        for name in able:
            out.setdefault(name, []).append(code)
    return out


def kill(fault: Fault) -> Kill:
    """Put one fault through all plays."""
    made = Kill(fault.name, fault.kind, fault.code, fault.title)
    for play in PLAYS.values():
        stage = play.staged(fault.manager())
        made.hurt += len(stage.truth.harm)
        for name, codes in detected(stage.sink).items():
            known = made.detectors.setdefault(name, [])
            known += [code for code in codes if code not in known]
            if fault.code in codes and play.name not in made.plays:
                made.plays.append(play.name)
    return made


def kill_real(made: Kill, loaded: LoadedModel, clean: RealRun) -> None:
    """Add what becomes of the fault on the real model, in the run of `real.run_real`; by swap where it needs one."""
    from kvscope.inspector.faults.real import changed, run_real

    manager = FAULTS[made.fault].manager()
    broken = run_real(loaded, manager, preemption="swap" if made.fault in SWAPPING else "recompute")
    made.real = detected(broken.trace)
    made.changed_text = bool(changed(clean, broken))
    made.stopped = broken.stopped


def false_alarms() -> dict[str, dict[str, list[str]]]:
    """What is found in plays by a manager without a fault: nothing, or the detectors are wrong."""
    found = {play.name: detected(play.run(BlockManager)) for play in PLAYS.values()}
    return {name: codes for name, codes in found.items() if codes}


def matrix(names: Iterable[str] = (), *, on_fault: Callable[[str], None] | None = None) -> Iterator[Kill]:
    """Every fault (or those named), one after another."""
    for name in names or FAULTS:
        if on_fault is not None:
            on_fault(name)
        yield kill(FAULTS[name])


def markdown(kills: list[Kill]) -> str:
    """The matrix as the page docs/kill-matrix.md."""
    columns = [name for name in detector_types() if any(name in made.detectors for made in kills)]
    real = any(made.real is not None for made in kills)
    head = ["fault", "kind", "found as", *columns, *(["real model"] if real else [])]
    lines = [
        "# The kill matrix",
        "",
        f"Made by `kvscope faults run{' --real' if real else ''} --markdown docs/kill-matrix.md`. Each row is a block",
        "manager that is broken on purpose, put through the plays of `inspector/faults/plays.py` on the accounting",
        "engine. A column holds the codes (without KV0) under which that detector reports it; **bold** is the code by",
        "which it has to be found. A manager without a fault gives no finding in any play.",
        "",
        f"{sum(made.found for made in kills)} of {len(kills)} faults are found by name.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    for made in kills:
        cells = [_cell(made.detectors.get(name, []), made.code) for name in columns]
        row = [f"`{made.fault}`", made.kind, made.code if made.found else f"{made.code} (missed)", *cells]
        lines.append("| " + " | ".join([*row, *([_real(made)] if real else [])]) + " |")
    lines += [
        "",
        "## What each fault is",
        "",
        "*Hurt*: how many sequences of all plays read wrong KV, by the injector's record, which `kvscope explain` is",
        "held against. 0: a leak, a counter, a refusal, or an order that this device does not break.",
        "",
        "| fault | kind | what is planted | found in the plays | hurt |",
        "|---|---|---|---|---|",
    ]
    for made in kills:
        kind = f"{made.kind} {KINDS[made.kind]}"
        lines.append(f"| `{made.fault}` | {kind} | {made.title} | {', '.join(made.plays) or '-'} | {made.hurt} |")
    if NOT_EXPRESSED:
        lines += ["", "## Kinds that are not planted", ""]
    lines += [f"- {kind} ({KINDS[kind]}): {why}." for kind, why in NOT_EXPRESSED.items()]
    if real:
        lines += [
            "",
            "In the column of the real model: the codes found in a short run of SmolLM2-135M with all three layers on;",
            "*text* where the fault changed what the model said; `-` where that run does nothing that the fault breaks",
            "(the engine rolls nothing back and takes no leases of others, and its model has no sliding window).",
        ]
    return "\n".join(lines) + "\n"


def _cell(codes: list[str], own: str) -> str:
    return " ".join(f"**{code[3:]}**" if code == own else code[3:] for code in sorted(codes))


def _real(made: Kill) -> str:
    if not made.real and not made.changed_text:
        return "-"
    codes = sorted({code for found in (made.real or {}).values() for code in found})
    return _cell(codes, made.code) + (", *text*" if made.changed_text else "")
