"""Requests and sequences: what a user asked for, and the state of each sample that answers it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kvscope.engine.prefix import Extras, Tokens
from kvscope.errors import UsageError
from kvscope.traces.schema import Reason

MAX_PRIORITY = 1 << 20
MAX_SAMPLES = 256


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. temperature 0 is greedy; top_k 0 and top_p 1 do not cut.

    beams: 0 samples; K searches with K beams, and the best `n` of its answers are the outputs. length_penalty: an
    answer's score is its log-probability / length ** length_penalty; above 0 favours long ones.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    n: int = 1
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    beams: int = 0
    length_penalty: float = 1.0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        def require(ok: bool, name: str, value: object, limit: str) -> None:
            if not ok:
                raise UsageError(f"{name} is {value}: must be {limit}")

        require(1 <= self.max_tokens <= 1 << 20, "max_tokens", self.max_tokens, f"1..{1 << 20}")
        warm = self.temperature == 0.0 or 1e-6 <= self.temperature <= 100.0
        require(warm, "temperature", self.temperature, "0 (greedy) or 0.000001..100")
        require(0 <= self.top_k <= 1 << 20, "top_k", self.top_k, f"0..{1 << 20} (0 cuts nothing)")
        require(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "above 0, at most 1")
        require(1 <= self.n <= MAX_SAMPLES, "n", self.n, f"1..{MAX_SAMPLES} samples")
        require(0 <= self.seed < 1 << 63, "seed", self.seed, "0..2**63-1")
        require(0 <= self.beams <= 256, "beams", self.beams, "0..256 (0 searches with no beams)")
        require(-10.0 <= self.length_penalty <= 10.0, "length_penalty", self.length_penalty, "-10..10")
        if self.logprobs is not None:
            require(0 <= self.logprobs <= 20, "logprobs", self.logprobs, "0..20 tokens (none: not wanted)")
            require(not self.beams, "logprobs", self.logprobs, "absent with beams")
        if self.beams:
            require(self.n <= self.beams, "n", self.n, f"at most beams = {self.beams}, whose answers it counts")
            require(self.temperature == 0.0, "temperature", self.temperature, "0 with beams: beam search draws nothing")
            require(self.top_k == 0, "top_k", self.top_k, "0 with beams: beam search draws nothing")
            require(self.top_p == 1.0, "top_p", self.top_p, "1 with beams: beam search draws nothing")
        else:
            require(self.length_penalty == 1.0, "length_penalty", self.length_penalty, "1 without beams; set beams")

    @property
    def width(self) -> int:
        """Sequences that run at once for one request: its beams, or its samples."""
        return self.beams or self.n


class Status(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Request:
    """One prompt and the samples wanted of it."""

    request_id: int
    prompt: list[int]
    params: SamplingParams
    name: str = ""
    extras: Extras = ()
    prompt_text: str | None = None
    priority: int = 0  # lower is sooner, where the scheduler goes by priority
    user: str = ""  # whose turn it is, where the scheduler is fair to users

    def __post_init__(self) -> None:
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise UsageError(f"priority is {self.priority}: must be {-MAX_PRIORITY}..{MAX_PRIORITY}")


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request, from queue to finish; its KV lives in the block manager under `seq_id`."""

    seq_id: int
    request: Request
    sample: int = 0
    output: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    computed: int = 0  # positions whose KV exists
    admitted: int = 0  # tokens known when it was last admitted: it prefills up to here, then decodes
    finish_reason: Reason = Reason.NONE
    preemptions: int = 0
    cached_tokens: int = 0  # of the first admission
    last_wait: tuple[int, int] | None = None  # what the last WAIT row said, so that it is written once
    number: int = 0  # how many sequences were submitted before it
    place: tuple[int, int, int] = (0, 0, 0)  # its key in the queue, or among the running
    swapped: bool = False  # waits with its blocks in the host tier
    waits: bool = False  # a beam with nothing to compute until the other beams of its request are as far
    _tokens: Tokens = field(default_factory=Tokens, repr=False)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output so far: not to be changed, and longer as soon as the output is."""
        known, output = self._tokens, self.output
        if len(known) < self.length:
            if not known:
                known.extend(self.request.prompt)
            known.extend(output[len(known) - len(self.request.prompt) :])
        return known

    @property
    def length(self) -> int:
        """How many tokens are known: prompt plus output."""
        return len(self.request.prompt) + len(self.output)

    @property
    def width(self) -> int:
        """How many sequences this one stands for: all samples or beams of its request until they are forked."""
        return 1 if self.output else self.request.params.width

    @property
    def unit(self) -> object:
        """What runs and is preempted as one: the beams of a request together, any other sequence by itself."""
        return self.request if self.request.params.beams else self

    @property
    def prefilling(self) -> bool:
        """Whether tokens known at admission still have to be computed."""
        return self.computed < self.admitted
