"""Planted faults on the real model: a short run that forks, shares, preempts and retries, with all layers looking on.

Nine short requests over a pool that is too small for them: one with three samples, three behind one beginning, one of
another tenant, and one that is aborted while its prompt is computed and asked again. `Truth` writes down beside it what
the device was told to do, so that what is explained from a trace can be held against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.hooks import EngineHook
from kvscope.engine.prefix import identity
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.errors import KVScopeError
from kvscope.inspector.content import ContentCheck
from kvscope.inspector.faults.truth import DeviceTruth, Row
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


class Truth(EngineHook, DeviceTruth):
    """`DeviceTruth` of an engine, told by the engine's own orders."""

    def __init__(self, engine: Engine) -> None:
        DeviceTruth.__init__(self, engine.manager.block_size)
        self.manager = engine.manager
        engine.watch(self)

    def on_copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self.copy(copy.source, copy.target, copy.slots)

    def on_swap(self, swaps: Sequence[Swap]) -> None:
        for swap in swaps:
            self.swap(swap.blocks, swap.slots, out=swap.out)

    def before_attention(self, plan: StepPlan, inputs: StepInputs) -> None:
        rows = []
        for sequence, item, table in zip(plan.sequences, plan.rows, inputs.tables.tolist(), strict=True):
            tokens, extras = sequence.tokens, sequence.request.extras
            slots = [table[p // self.size] * self.size + p % self.size for p in range(item.hi)]
            writes = [(p, slots[p]) for p in range(item.lo, item.hi)]
            prefixes = [(extras, *tokens[: p + 1]) for p in range(item.hi)]
            rows.append(
                Row(item.seq_id, item.lo, item.hi, 0, writes, slots, prefixes, len(sequence.request.prompt))
            )  # fmt: skip
        self.step(self.manager.step_number(), rows)


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
