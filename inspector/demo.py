"""The demo's workload: one system prompt, eight requests, one of them with three samples, a pool that is tight.

    clean run    the block manager as it is
    planted run  the same requests, seeds and pool, with one named fault (inspector/faults)

Both run the real model and are recorded with their text, so that what the fault did to the words can be shown.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.errors import KVScopeError
from kvscope.traces import PoolFacts, Recorder

if TYPE_CHECKING:
    from kvscope.engine.block_manager import BlockManager
    from kvscope.engine.model import LoadedModel

SYSTEM = (
    "You are the keeper of a lighthouse on a small rocky island. You answer every traveller kindly, in a few plain "
    "sentences, and you speak only of what you have seen yourself: the sea, the birds, the ships and the lamp."
)

# Name, question, samples. The three-sample request is the one that a missing copy garbles.
REQUESTS = (
    ("weather", "What is the weather like on your island today?", 1),
    ("supper", "What do you cook for supper when the boat is late?", 1),
    ("story", "Please tell me a story about the lighthouse, the island and the great storm that night.", 3),
    ("birds", "Which birds visit you in spring?", 1),
    ("lamp", "How does the lamp of a lighthouse work?", 1),
    ("lonely", "Do you ever feel lonely out there?", 1),
    ("ships", "How do you warn the ships in thick fog?", 1),
    ("advice", "What would you tell a young keeper on the first day?", 1),
)
STORY = 2
MAX_TOKENS = 40
NUM_BLOCKS = 40
BLOCK_SIZE = 16
SEED = 7


@dataclass(slots=True)
class Outcome:
    """What one run produced: texts by request, in sample order, and how often a sequence was preempted."""

    trace: Path
    texts: list[list[str]] = field(default_factory=list)
    preemptions: int = 0
    stopped: str = ""  # why a broken manager ended it before its end
    tokens: int = 0


def run(
    loaded: LoadedModel,
    trace: Path,
    *,
    manager: type[BlockManager] | None = None,
    fault: str | None = None,
    on_token: Callable[[int], None] | None = None,
    overwrite: bool = False,
    provenance: bool = False,
) -> Outcome:
    """Run the workload once and record it.

    Args:
        loaded: the model.
        trace: folder to record into.
        manager: the block manager, or a broken variant of it, which may trip over its own state: that ends the run.
        fault: the name of the planted fault, noted in the trace.
        on_token: called with the number of tokens so far.
        overwrite: replace a trace that is there.
        provenance: check before attention whose prefix every slot holds.
    """
    import torch

    from kvscope.engine.block_manager import BlockManager
    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.scheduler import SchedulerConfig
    from kvscope.engine.sequence import SamplingParams
    from kvscope.inspector.provenance import Provenance

    config = EngineConfig(
        num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, record_text=True, dtype=torch.float32,
        scheduler=SchedulerConfig(max_seqs=16, max_batched_tokens=256),
    )  # fmt: skip
    facts = PoolFacts(NUM_BLOCKS, BLOCK_SIZE, BLOCK_SIZE * loaded.config.bytes_per_token(4))
    outcome = Outcome(trace, [[""] * samples for _, _, samples in REQUESTS])
    outputs: dict[tuple[int, int], list[int]] = {}
    tokenizer = loaded.tokenizer
    with Recorder(trace, pool=facts, engine="kvscope demo", record="sanitize", overwrite=overwrite) as sink:
        if fault is not None:
            sink.fact({"type": "run", "fault": fault})
        engine = Engine(loaded, config, sink=sink, manager_factory=manager or BlockManager)
        if provenance:
            Provenance(engine)
        try:
            for number, (name, question, samples) in enumerate(REQUESTS):
                messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
                params = SamplingParams(MAX_TOKENS, temperature=0.8, seed=SEED + number, n=samples)
                engine.submit(tokenizer.encode(tokenizer.chat(messages)), params, name=name, prompt_text=question)
            for token in engine.run():
                outputs.setdefault((token.request_id, token.sample), []).append(token.token)
                outcome.tokens += 1
                if on_token is not None:
                    on_token(outcome.tokens)
        except (KVScopeError, LookupError, AssertionError, ValueError, RuntimeError) as error:
            if manager is None:
                raise
            outcome.stopped = str(error)
        finally:
            with suppress(Exception) if outcome.stopped else nullcontext():
                engine.close()
    for (request, number), tokens in outputs.items():
        outcome.texts[request][number] = tokenizer.decode(tokens).strip()
    outcome.preemptions = engine.scheduler.preemptions
    return outcome
