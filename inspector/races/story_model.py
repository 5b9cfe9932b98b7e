"""The articles' story on a real model: the schedule that was found on shadow memory, played again on its KV tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.scheduler import StepPlan
from kvscope.engine.sequence import SamplingParams, Sequence
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy
from kvscope.errors import UsageError
from kvscope.inspector.races.exploration import explore_race
from kvscope.inspector.races.hooks import Switching
from kvscope.inspector.races.outcome import Outcome
from kvscope.inspector.races.planted import CountsMended, CountsNotAtomic
from kvscope.inspector.races.player import Player
from kvscope.inspector.races.schedule import Replay
from kvscope.inspector.races.story import BLOCK_SIZE, SAMPLES, Story, blocks_needed, find, story_race
from kvscope.traces import PoolFacts, Recorder

if TYPE_CHECKING:
    from kvscope.engine.model import LoadedModel

SYSTEM = "You are the keeper of a lighthouse on a small rocky island. You answer in a few plain sentences."
QUESTION = "Please tell me a story about the great storm that came last winter."
MAX_TOKENS = (12, 16, 24, 24)
SEED = 11
ENGINE = "kvscope races"  # as the traces say who made them
TRACES = ("racy.kvtrace", "mended.kvtrace")


class SwitchingRecorder(Switching, Recorder):
    """A recorder into a folder whose rows are switch points, at the same places as in memory."""

    quick = False


class ModelDevice:
    """A model and its KV tensor, one step at a time."""

    def __init__(self, loaded: LoadedModel, num_blocks: int) -> None:
        import torch

        from kvscope.engine.kvcache import KVCache

        self.loaded = loaded
        self.cache = KVCache(loaded.config, num_blocks, BLOCK_SIZE, dtype=torch.float32, device="cpu")
        self._runner: Any = None
        self._prompt: Any = None  # logits behind the prompt: every sample draws its first token from them

    def step(
        self, manager: BlockManager, rows: list[Sequence], spans: list[Scheduled], copies: list[Copy]
    ) -> list[int]:
        """Copies, then the spans through the model; the next token of each row by its own seed and place."""
        from kvscope.engine.runner import Runner
        from kvscope.engine.sampler import sample

        if self._runner is None:
            head_dim = self.loaded.config.head_dim
            self._runner = Runner(self.loaded.model, self.cache, manager, head_dim=head_dim)
        self.cache.copy(copies)
        plan = StepPlan()
        for sequence, span in zip(rows, spans, strict=True):
            plan.add(sequence, span.lo, span.hi)
        logits = self._runner.run(plan, list(range(len(rows))))
        if self._prompt is None:
            self._prompt = logits
        return sample(logits, rows)

    def first_token(self, sequence: Sequence) -> int:
        """A sample's first token."""
        from kvscope.engine.sampler import sample

        return sample(self._prompt, [sequence])[0]

    def text(self, sequence: Sequence) -> str:
        """What a sample says."""
        return str(self.loaded.tokenizer.decode(sequence.output)).strip()


@dataclass(slots=True)
class Told:
    """One run of the story on the model: texts by sample, the pool's own complaints, and the trace."""

    trace: Path
    texts: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class StoryTold:
    """The whole: what was found on shadow memory, and its schedule on the model, broken and mended."""

    outcome: Outcome
    broken: Told
    mended: Told
    prompt: str

    @property
    def garbled(self) -> list[int]:
        """Samples whose text is another one in the broken run."""
        pairs = zip(self.broken.texts, self.mended.texts, strict=True)
        return [i for i, (broken, mended) in enumerate(pairs) if broken != mended]


def tell(
    loaded: LoadedModel, folder: Path, *, replay: str | None = None, max_tokens: tuple[int, ...] = MAX_TOKENS,
    overwrite: bool = False, on_run: Callable[[str], object] = lambda _: None,
) -> StoryTold:  # fmt: skip
    """Find the schedule on shadow memory (or take the given one), and play it on the model: broken, then mended.

    Args:
        folder: where the two traces go. replay: a schedule found before. max_tokens: of each sample.
        on_run: told what is done next.

    Raises:
        UsageError: the replay string is not one; nothing was found.
    """
    tokens = loaded.tokenizer.encode(
        loaded.tokenizer.chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}])
    )
    race = story_race(tokens, max_tokens)
    on_run("looking for the schedule on shadow memory")
    outcome = explore_race(race, replay=replay) if replay is not None else find(tokens, max_tokens)
    if outcome.replay is None:
        raise UsageError("this schedule does no harm on shadow memory: nothing to show on the model")
    runs = []
    for name, manager in zip(TRACES, (CountsNotAtomic, CountsMended), strict=True):
        trace = folder / name
        on_run(f"playing it on the model, {trace.stem} pool")
        runs.append(play(loaded, tokens, Replay.parse(outcome.replay), manager, trace, max_tokens, overwrite=overwrite))
    return StoryTold(outcome, runs[0], runs[1], QUESTION)


def play(
    loaded: LoadedModel, prompt: list[int], replay: Replay, manager: type[BlockManager], trace: Path,
    max_tokens: tuple[int, ...] = MAX_TOKENS, *, overwrite: bool = False,
) -> Told:  # fmt: skip
    """One schedule of the story on the model, recorded with its texts."""
    blocks = blocks_needed(len(prompt), max_tokens)
    facts = PoolFacts(blocks, BLOCK_SIZE, BLOCK_SIZE * loaded.config.bytes_per_token(4))
    told = Told(trace)
    device = ModelDevice(loaded, blocks)

    def keep(story: Story) -> None:
        told.texts = [device.text(sequence) for sequence in story.samples]
        told.errors = story.errors

    with SwitchingRecorder(trace, pool=facts, engine=ENGINE, record="sanitize", sealing="inline",
                           overwrite=overwrite) as sink:  # fmt: skip
        config = loaded.config
        sink.fact({"type": "model", "name": config.name, "num_layers": config.num_layers, "dtype_bytes": 4,
                   "num_kv_heads": config.num_kv_heads, "head_dim": config.head_dim,
                   "max_model_len": config.max_model_len, "bytes_per_token": config.bytes_per_token(4)})  # fmt: skip
        race = story_race(
            prompt, max_tokens, manager=manager, device=lambda: device, sink=lambda: sink, params=_params, keep=keep
        )
        player = Player(race, replay.level, stall_s=300.0)
        try:
            player.replay(replay.switches)
        finally:
            player.close()
    return told


def _params(count: int) -> SamplingParams:
    return SamplingParams(count, temperature=0.7, seed=SEED, n=SAMPLES, ignore_eos=True)
