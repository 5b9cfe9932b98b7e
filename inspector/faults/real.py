"""Planted faults on the real model: a short run that forks, shares, preempts and retries, with all layers looking on.

Nine short requests over a pool that is too small for them: one with three samples, three behind one beginning, one of
another tenant, and one that is aborted while its prompt is computed and asked again. `Truth` is the injector's own
record of what the device was told to do: which prefix lies in each slot, by whose write of which step. It knows nothing
of events or words, so that what is explained from a trace can be held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.hooks import EngineHook
from kvscope.engine.prefix import identity
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.errors import KVScopeError
from kvscope.inspector.content import ContentCheck
from kvscope.inspector.provenance import Provenance
from kvscope.traces import MemoryRecorder, PoolFacts, Recorder, open_trace

if TYPE_CHECKING:
    from kvscope.engine.host_tier import Swap
    from kvscope.engine.model import LoadedModel
    from kvscope.engine.runner import StepInputs
    from kvscope.engine.scheduler import StepPlan
    from kvscope.engine.tables import Copy
    from kvscope.traces.sink import Trace

ENGINE = "kvscope faults show"  # what a trace that is kept says of itself
BLOCK_SIZE, NUM_BLOCKS, MAX_TOKENS = 4, 24, 8
SEED = 80  # of those tried the one with which each fault changes most: a token drawn anew hides what was wrong
HEAD = "The old keeper of the lighthouse wrote:"

# Name, prompt, samples, tenant. `again` is asked a second time after it was aborted.
REQUESTS = (
    ("story", HEAD + " last night a great storm", 3, ""),
    ("birds", HEAD + " the birds came back", 1, ""),
    ("other", HEAD + " the birds came back", 1, "x"),
    ("sea", "The sea is salty because rivers carry", 1, ""),
    ("tea", "To make a good cup of tea you first", 1, ""),
    ("list", "One, two, three, four, five, six,", 1, ""),
    ("again", "A long letter from the harbour master to all captains of the small boats that go out at night begins",
     1, ""),
    ("late", HEAD + " my lamp went out", 1, ""),
)  # fmt: skip


class Cell(NamedTuple):
    """What a slot holds: whose write, in which step, of which prefix."""

    seq_id: int
    step: int
    prefix: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class FirstWrong:
    """The first step of a sequence that read another prefix than its own."""

    seq_id: int
    step: int
    position: int
    block: int
    slot: int
    found: Cell | None  # None: nothing was ever written there
    token: int | None  # the output token that came out of that step, from 0; None: a part of the prompt


class Truth(EngineHook):
    """Every slot of the device as the engine's own orders make it; in plain dictionaries."""

    def __init__(self, engine: Engine) -> None:
        self.manager, self.size = engine.manager, engine.manager.block_size
        self.slots: dict[int, Cell] = {}
        self.host: dict[int, dict[int, Cell]] = {}
        self.first: dict[int, FirstWrong] = {}
        engine.watch(self)

    def on_copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            for slot in range(copy.slots):
                self._move(copy.source * self.size + slot, copy.target * self.size + slot)

    def on_swap(self, swaps: Sequence[Swap]) -> None:
        for swap in swaps:
            for block, slot in zip(swap.blocks, swap.slots, strict=True):
                places = range(block * self.size, (block + 1) * self.size)
                if swap.out:
                    self.host[slot] = {p - places.start: self.slots[p] for p in places if p in self.slots}
                else:
                    for place in places:
                        self.slots.pop(place, None)
                    self.slots |= {places.start + offset: cell for offset, cell in self.host.get(slot, {}).items()}

    def _move(self, source: int, target: int) -> None:
        self.slots.pop(target, None)
        if source in self.slots:
            self.slots[target] = self.slots[source]

    def before_attention(self, plan: StepPlan, inputs: StepInputs) -> None:
        step, tables = self.manager.step_number(), inputs.tables.tolist()
        own = []
        for (sequence, row), table in zip(zip(plan.sequences, plan.rows, strict=True), tables, strict=True):
            extras, tokens = sequence.request.extras, sequence.tokens
            own.append([(extras, *tokens[: p + 1]) for p in range(row.hi)])
            for p in range(row.lo, row.hi):
                self.slots[table[p // self.size] * self.size + p % self.size] = Cell(row.seq_id, step, own[-1][p])
        for (sequence, row), table, prefixes in zip(
            zip(plan.sequences, plan.rows, strict=True), tables, own, strict=True
        ):
            for p in range(row.hi):
                slot = table[p // self.size] * self.size + p % self.size
                cell = self.slots.get(slot)
                if cell is not None and cell.prefix == prefixes[p]:
                    continue
                last = row.hi == len(sequence.tokens)  # else a chunk of what is computed, perhaps again
                token = row.hi - len(sequence.request.prompt) if last else None
                wrong = FirstWrong(row.seq_id, step, p, slot // self.size, slot % self.size, cell, token)
                self.first.setdefault(row.seq_id, wrong)
                break


@dataclass
class RealRun:
    """One run: what it said, its trace, and what was found beside the tensors."""

    trace: Trace = field(init=False)
    texts: dict[str, list[str]] = field(default_factory=dict)
    tokens: dict[str, list[list[int]]] = field(default_factory=dict)
    truth: Truth | None = None
    stopped: str = ""  # why a broken manager ended it


def run_real(
    loaded: LoadedModel, manager: Callable[..., BlockManager] = BlockManager, *, content: bool = True,
    preemption: str = "recompute", keep: Path | None = None,
) -> RealRun:  # fmt: skip
    """Run the requests once, with provenance (and content) checked, and the truth written down beside.

    Args:
        keep: record into this folder, in the place of a trace that is there; in memory only by default.
    """
    config = EngineConfig(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, hash_key=b"real", record_text=True,
        host_blocks=32 if preemption == "swap" else 0,
        scheduler=SchedulerConfig(max_seqs=12, max_batched_tokens=16, preemption=preemption),
    )  # fmt: skip
    facts = PoolFacts(NUM_BLOCKS, BLOCK_SIZE, BLOCK_SIZE * loaded.config.bytes_per_token(4))
    sink: MemoryRecorder | Recorder = MemoryRecorder(facts, record="sanitize")
    if keep is not None:
        sink = Recorder(keep, pool=facts, engine=ENGINE, record="sanitize", overwrite=True)
    engine = Engine(loaded, config, sink=sink, manager_factory=manager)
    made = RealRun(truth=Truth(engine))
    Provenance(engine)
    if content:
        ContentCheck(engine)
    outputs: dict[str, dict[int, list[int]]] = {}
    names: dict[int, str] = {}
    try:
        _drive(engine, loaded, names, outputs)
    except (KVScopeError, LookupError, AssertionError, ValueError, RuntimeError) as error:
        made.stopped = f"{type(error).__name__}: {error}"
    with suppress(Exception):
        engine.close()
    sink.close()
    made.trace = sink if isinstance(sink, MemoryRecorder) else open_trace(sink.path)
    for name, samples in outputs.items():
        made.tokens[name] = [samples[k] for k in sorted(samples)]
        made.texts[name] = [loaded.tokenizer.decode(tokens) for tokens in made.tokens[name]]
    return made


def _drive(
    engine: Engine, loaded: LoadedModel, names: dict[int, str], outputs: dict[str, dict[int, list[int]]]
) -> None:
    def submit(name: str, prompt: str, samples: int, tenant: str) -> int:
        stop = (" and",) if samples > 1 else ()  # its samples end at different times
        params = SamplingParams(
            MAX_TOKENS, temperature=0.7, seed=SEED + len(names), n=samples, ignore_eos=True, stop=stop
        )  # fmt: skip
        extras = identity(tenant=tenant) if tenant else ()
        number = engine.submit(loaded.tokenizer.encode(prompt), params, name=name, prompt_text=prompt, extras=extras)
        names[number] = name
        return number

    numbers = {request[0]: submit(*request) for request in REQUESTS if request[0] != "again"}
    first = next(request for request in REQUESTS if request[0] == "again")
    aborted = submit("aborted", *first[1:])
    while engine.has_work:
        for token in engine.step():
            outputs.setdefault(names[token.request_id], {}).setdefault(token.sample, []).append(token.token)
        held = engine.sequences(aborted)
        if held and held[0].prefilling and 0 < held[0].computed < held[0].length:
            engine.abort(aborted)
            numbers["again"] = submit(*first)
        elif held and not held[0].prefilling and held[0].output and "again" not in numbers:
            numbers["again"] = submit(*first)


def changed(clean: RealRun, broken: RealRun) -> dict[str, list[int]]:
    """The samples whose tokens differ from the clean run's, by request."""
    out = {}
    for name, samples in clean.tokens.items():
        other = broken.tokens.get(name, [])
        differ = [k for k, tokens in enumerate(samples) if k < len(other) and other[k] != tokens[: len(other[k])]]
        if differ:
            out[name] = differ
    return out
