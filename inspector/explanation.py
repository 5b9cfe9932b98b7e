"""What an explanation is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvscope.inspector.findings import Finding

Verdict = Literal["clean", "damaged", "not-affected", "same-prefix", "unknown"]


def exit_code(verdict: Verdict) -> int:
    """With which status `kvscope explain` ends."""
    return {"damaged": 1, "unknown": 2}.get(verdict, 0)


@dataclass(frozen=True, slots=True)
class Write:
    """The write that a slot holds, or should hold; `seq` is None where there is none.

    With a `seq_id` all the same: a checker read that writer in the slot, and the trace has no event of the write.
    """

    seq: int | None
    step: int | None
    seq_id: int | None
    name: str


@dataclass(frozen=True, slots=True)
class BadRead:
    """The first read that went wrong."""

    seq: int  # of the SCHED event
    step: int
    position: int
    block: int
    gen: int
    slot: int  # within the block
    count: int  # wrong positions in this step
    found: Write
    expected: Write
    reader: str  # the sample that read it
    token: int | None  # the output token that came out of this step; None: a part of the prompt, or computed again
    poison: bool = False  # a look at the bytes found the NaN there with which freed blocks and new lives are filled


@dataclass(frozen=True, slots=True)
class Victim:
    """A sequence that the same damage reached."""

    seq_id: int
    name: str
    request: int | None
    first_token: int | None  # index among its output tokens; None: no token came out of a tainted step
    tokens: int  # tainted output tokens
    first_seq: int
    through: str  # whose tainted KV it read first; empty: it read foreign KV itself


@dataclass(frozen=True, slots=True)
class TokenStep:
    """The step that made the token asked for: what it read, in whose company."""

    name: str
    seq: int
    step: int
    positions: tuple[int, int]
    blocks: int
    company: int  # other sequences in the step
    foreign: BadRead | None = None  # the first position that held foreign KV
    through: str = ""  # whose tainted KV it read, where it read no foreign KV itself
    parent: str = ""  # whose step it was, where the sample had not been forked off yet
    goes_on_from: int | None = None  # the first tainted token before it


@dataclass(frozen=True)
class Explanation:
    """Why a request's text is what it is. `verdict`: clean, damaged, not-affected (of the token asked for), same-prefix
    (another wrote what it read, and a look beside the tensors found the right prefix all the same), or unknown: the
    trace has no step that could have read anything, or some went through tables that nobody knows."""

    request: str
    samples: list[str]
    verdict: Verdict
    token: int | None  # asked for
    steps: int  # steps of the request
    read: BadRead | None
    sample: str = ""  # the sample that was hit first
    first_token: int | None = None
    first_step: tuple[int, int] | None = None  # the step and the SCHED event that the first bad token came out of
    first_sample: str = ""  # the sample whose token that is
    through: str = ""
    cause: Finding | None = None
    followed: tuple[Finding, ...] = ()  # the first finding of each kind that followed from the cause
    should: str = ""
    victims: list[Victim] = field(default_factory=list)
    elsewhere: list[Finding] = field(default_factory=list)  # findings that explain nothing of this request
    touching: list[Finding] = field(default_factory=list)  # of these, on blocks that it held
    why_it_may_differ: list[str] = field(default_factory=list)
    made: list[TokenStep] = field(default_factory=list)  # the steps that made the token asked for, one per sample
    other_tables: list[Finding] = field(default_factory=list)  # that steps went through tables that nobody knows
    other_steps: list[int] = field(default_factory=list)  # these steps
    beams: int = 0  # of the search that these sequences belong to; 0: they are samples
    lost: bool = False
    writer: tuple[int, int] | None = None  # which of the trace's writers, of how many; None where it has one
    same_prefix: bool = False  # provenance compared these steps and found the right prefix in every slot
