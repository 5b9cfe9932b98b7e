"""What a check found: findings with their codes, and how much was looked at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvscope.inspector.source import Names, TraceLike, life, site_of

QUICK_CHECK = 50_000  # events that are checked within a second

# Code -> (name, severity). A code, once published, never changes its meaning.
CODES: dict[str, tuple[str, str]] = {
    "KV001": ("write-after-free", "error"),
    "KV002": ("read-after-free", "error"),
    "KV003": ("double-free", "error"),
    "KV004": ("refcount-underflow", "error"),
    "KV005": ("leak", "error"),
    "KV006": ("write-while-shared", "error"),
    "KV007": ("lost-update", "error"),
    "KV009": ("uninitialised-read", "error"),
    "KV010": ("foreign-block", "error"),
    "KV011": ("wrong-content-hit", "error"),
    "KV012": ("conservation", "error"),
    "KV013": ("early-reuse", "error"),
    "KV014": ("double-allocation", "error"),
    "KV015": ("write-to-published", "error"),
    "KV016": ("early-publication", "error"),
    "KV017": ("lease", "error"),
    "KV018": ("bad-table", "error"),
    "KV019": ("bad-slot", "error"),
    "KV020": ("evicted-while-held", "error"),
    "KV021": ("stuck", "error"),
    "KV022": ("window", "error"),
    "KV023": ("provenance", "error"),
    "KV024": ("changed-content", "error"),
    "KV026": ("broken-promise", "error"),
    "KV029": ("capacity", "error"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule, at one event.

    `related` names other events of the story by their role: `allocated`, `released`, `freed`, `last_write`,
    `shared`, `reused`, `written`, ... ; `why` is one sentence with this finding's own numbers.
    """

    code: str
    seq: int
    step: int
    why: str
    block: int = -1
    gen: int = -1
    slot_lo: int = -1
    slot_hi: int = -1
    seq_id: int = -1
    others: tuple[int, ...] = ()  # other sequences that hold the block
    related: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """The finding's kind as a noun phrase, `write-while-shared`."""
        return CODES[self.code][0]

    @property
    def severity(self) -> str:
        """`error` or `warning`."""
        return CODES[self.code][1]

    @property
    def title(self) -> str:
        """`write-while-shared on block b5#1`."""
        if self.block >= 0:
            return f"{self.name} on block {life(self.block, self.gen)}"
        return f"{self.name} in sequence {self.seq_id}" if self.seq_id >= 0 else f"{self.name} in the pool"

    @property
    def slots(self) -> int:
        """How many slots the finding is about, 0 where it is about none."""
        return max(0, self.slot_hi - self.slot_lo)

    def seq_of(self, role: str) -> int | None:
        """The number of the related event in this role."""
        return dict(self.related).get(role)

    def to_json(self) -> dict[str, Any]:
        """The finding as plain values; what does not apply is null."""
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "title": self.title,
            "seq": self.seq,
            "step": self.step,
            "block": _or_none(self.block),
            "gen": _or_none(self.gen),
            "slots": [self.slot_lo, self.slot_hi] if self.slots else None,
            "seq_id": _or_none(self.seq_id),
            "others": list(self.others),
            "why": self.why,
            "related": dict(self.related),
        }


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The findings of a trace, in the order of events, and what was checked to come to them."""

    findings: tuple[Finding, ...]
    events: int  # events replayed
    blocks: int  # blocks that had an event
    slots: int  # distinct physical slots that were written or copied
    detectors: tuple[str, ...]  # that ran and had something to look at
    idle: tuple[tuple[str, str], ...]  # (detector, why it had nothing to look at)
    notes: tuple[str, ...] = field(default=())  # limits of this check: lost events, an unclean end
    elapsed_s: float = 0.0

    @property
    def nothing_to_check(self) -> bool:
        """No event spoke of a block: neither clean nor faulty."""
        return self.blocks == 0

    @property
    def clean(self) -> bool:
        """Something was checked and nothing was found."""
        return not self.nothing_to_check and not self.findings


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings that are the same mistake: equal code and call site. `first` is reported in full."""

    first: Finding
    others: tuple[Finding, ...]


def check(trace: TraceLike, *, only: Iterable[str] | None = None, replay: bool = False) -> CheckResult:
    """Judge the ledger of a trace and report every broken rule.

    A vectorised screen looks first; a trace that it suspects is replayed event by event.

    Args:
        only: names of detectors to run (`OWN REF FREE CONS GEN ...`), all by default.
        replay: replay in any case; what is reported is the same.
    """
    from kvscope.inspector.detectors import run_detectors

    return run_detectors(trace, only=only, replay=replay)


def group(findings: Iterable[Finding], trace: TraceLike) -> list[FindingGroup]:
    """De-duplicate by code and call site, in the order of first occurrence."""
    groups: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        site = site_of(trace, _row(trace, finding.seq))
        where = (site.file, site.line, site.function) if site else (None, finding.block, finding.gen)
        groups.setdefault((finding.code, *where), []).append(finding)
    return [FindingGroup(members[0], tuple(members[1:])) for members in groups.values()]


def one_line(finding: Finding, names: Names) -> str:
    """`seq 812 step 9: b5#1[2:3] by haiku/1`."""
    block = life(finding.block, finding.gen) if finding.block >= 0 else "pool"
    if finding.code == "KV018" and finding.seq_id >= 0:
        which = f"{block} in " if finding.block >= 0 else ""
        return f"seq {finding.seq} step {finding.step}: {which}the worker's table of {names(finding.seq_id)}"
    slots = f"[{finding.slot_lo}:{finding.slot_hi}]" if finding.slots else ""
    who = f" by {names(finding.seq_id)}" if finding.seq_id >= 0 else ""
    return f"seq {finding.seq} step {finding.step}: {block}{slots}{who}"


def _row(trace: TraceLike, seq: int) -> int:
    from kvscope.inspector.source import rows_until

    return max(0, rows_until(trace, seq) - 1)


def _or_none(value: int) -> int | None:
    return value if value >= 0 else None
