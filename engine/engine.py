"""The engine: requests in, tokens out, one step at a time.

submit -> Scheduler -> BlockManager (tables, copies, events) -> Runner (device) -> sampler -> outputs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kvscope.engine.beam import BeamGroup, heirs
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.hooks import EngineHook
from kvscope.engine.host_tier import Swap
from kvscope.engine.kvcache import KVCache
from kvscope.engine.limits import check_request
from kvscope.engine.prefix import Extras
from kvscope.engine.resizing import resize
from kvscope.engine.runner import Runner
from kvscope.engine.sampler import TokenLogprobs, logprobs, sample
from kvscope.engine.scheduler import Scheduler, SchedulerConfig, StepPlan
from kvscope.engine.sequence import Request, SamplingParams, Sequence, Status
from kvscope.engine.windows import first_needed
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

if TYPE_CHECKING:
    from kvscope.engine.model import LoadedModel

ManagerFactory = Callable[..., BlockManager]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is started with."""

    num_blocks: int = 256
    block_size: int = 16
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    share_prefixes: bool = True
    record_text: bool = False
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    hash_key: bytes | None = None
    host_blocks: int = 0  # blocks of host memory in which preempted sequences can wait


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of one sample; `finish` is set on its last.

    Beam search knows its answers when it is over: then all of their tokens come at once, answer by answer, the best
    being sample 0; `seq_id` is the beam that found the answer.
    """

    request_id: int
    sample: int
    seq_id: int
    token: int
    finish: Reason = Reason.NONE
    logprobs: TokenLogprobs | None = None  # where the request asked for them


class Engine:
    """A paged engine over one loaded model; not thread-safe, one thread steps it.

    Args:
        loaded: model, tokenizer and configuration from `load_model`.
        config: pool and scheduler sizes.
        sink: where events go; None records nothing.
        manager_factory: builds the block manager; a planted fault is a subclass given here.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig | None = None,
        *,
        sink: EventSink | None = None,
        manager_factory: ManagerFactory = BlockManager,
    ) -> None:
        self.loaded = loaded
        self.config = config = config or EngineConfig()
        self.sink = sink
        self.manager = manager_factory(
            config.num_blocks,
            config.block_size,
            sink=sink,
            share_prefixes=config.share_prefixes,
            hash_key=config.hash_key,
            **({"host_blocks": config.host_blocks} if config.host_blocks else {}),
        )
        self.cache = KVCache(
            loaded.config, config.num_blocks, config.block_size, dtype=config.dtype, device=config.device,
            host_blocks=config.host_blocks,
        )  # fmt: skip
        self.hooks: list[EngineHook] = []
        self.runner = Runner(
            loaded.model, self.cache, self.manager, head_dim=loaded.config.head_dim, hooks=self.hooks
        )  # fmt: skip
        self.scheduler = Scheduler(self.manager, config.scheduler, sink=sink, move=self._swap)
        self._sequences: dict[int, list[Sequence]] = {}  # live ones, by request
        self._beams: dict[int, BeamGroup] = {}  # searches under way, by request
        self._next_request = 0
        self._next_seq = 0
        self._fact(type="model", name=loaded.config.name, num_layers=loaded.config.num_layers,
                   num_kv_heads=loaded.config.num_kv_heads, head_dim=loaded.config.head_dim,
                   dtype_bytes=config.dtype.itemsize, max_model_len=loaded.config.max_model_len,
                   bytes_per_token=self.cache.bytes_per_token, window=loaded.config.window or 0)  # fmt: skip
        self._fact(type="scheduler", **asdict(config.scheduler))

    def live(self) -> list[Request]:
        """Requests that are queued or running, oldest first."""
        return [sequences[0].request for sequences in self._sequences.values()]

    def resize(self, num_blocks: int) -> int:
        """Give the engine a pool of another size, between two steps; see `resizing.resize`."""
        return resize(self, num_blocks)

    @property
    def has_work(self) -> bool:
        """Whether anything is queued or running."""
        return self.scheduler.has_work

    def sequences(self, request_id: int) -> tuple[Sequence, ...]:
        """The sequences of a request that are queued or running; none once it has ended."""
        return tuple(self._sequences.get(request_id, ()))

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        name: str = "",
        extras: Extras = (),
        prompt_text: str | None = None,
        priority: int = 0,
        user: str = "",
    ) -> int:
        """Queue a request; returns its id.

        Args:
            priority: lower is sooner, where the scheduler's policy is `priority`.
            user: whose request it is, where the policy is `fair`. It is not recorded.

        Raises:
            UsageError: it could never run here: empty, longer than the context, or more than the whole pool.
        """
        check_request(
            prompt, params, context=self.loaded.config.max_model_len, max_seqs=self.config.scheduler.max_seqs,
            num_blocks=self.manager.num_blocks, block_size=self.config.block_size,
            share_prefixes=self.config.share_prefixes,
        )  # fmt: skip
        request = Request(
            self._next_request, list(prompt), params, name or f"r{self._next_request}", extras, prompt_text, priority,
            user,
        )  # fmt: skip
        self._next_request += 1
        sequence = self._new_sequence(request, 0)
        self._sequences[request.request_id] = [sequence]
        more: dict[str, Any] = {"beams": params.beams} if params.beams else {}
        if priority:
            more["priority"] = priority
        if self.config.record_text and prompt_text is not None:
            more["prompt"] = prompt_text
        self._fact(type="request", request=request.request_id, name=request.name, seq_ids=[sequence.seq_id],
                   prompt_tokens=len(prompt), max_tokens=params.max_tokens, samples=params.n, **more)  # fmt: skip
        self.manager.record(Kind.SUBMIT, Reason.NONE, sequence.seq_id, len(prompt),
                            details=(request.request_id, params.max_tokens, params.n))  # fmt: skip
        self.scheduler.submit(sequence)
        return request.request_id

    def abort(self, request_id: int) -> None:
        """End a request now, wherever it is; its blocks are given back. Unknown or finished ones are ignored."""
        for sequence in list(self._sequences.get(request_id, [])):
            self._finish(sequence, Reason.ABORTED)

    def step(self) -> list[Token]:
        """Run one engine step; returns the tokens it produced (none when there is nothing to do)."""
        self._slide()
        plan = self.scheduler.schedule()
        if not plan.rows:
            return []
        ends, decoding = plan.rows.ends(), plan.rows.decoding  # one that decodes computes the last token it has
        sampled = list(range(decoding))
        sampled += [i for i in range(decoding, len(ends)) if ends[i] == plan.sequences[i].length]
        self.manager.begin_step(plan.rows)
        for hook in self.hooks:
            hook.on_begin(plan)
        copies = self.manager.drain_copies()
        self.cache.copy(copies)
        for hook in self.hooks:
            hook.on_copy(copies)
        self.manager.copies_done(copies)
        logits = self.runner.run(plan, sampled)
        self.manager.end_step()
        for hook in self.hooks:
            hook.on_step(plan, logits)
        for sequence, end in zip(plan.sequences, ends, strict=True):
            sequence.computed = end
        return self._advance(plan, sampled, logits)

    def run(self) -> Iterator[Token]:
        """Step until all work is done, yielding tokens as they come."""
        while self.has_work:
            yield from self.step()

    def close(self) -> None:
        """Abort what is unfinished, so that a trace ends with nothing held."""
        for request_id in list(self._sequences):
            for sequence in list(self._sequences.get(request_id, [])):
                self._finish(sequence, Reason.DRAINED)

    def watch(self, hook: EngineHook) -> None:
        """Let a hook see every step from now on, behind those that are there already."""
        self.hooks.append(hook)

    def _swap(self, swaps: list[Swap]) -> None:
        self.cache.swap(swaps)
        for hook in self.hooks:
            hook.on_swap(swaps)

    def _slide(self) -> None:
        """Running sequences give back the blocks that their next position does not attend to."""
        window = self.loaded.config.window
        if window:
            for sequence in self.scheduler.running:
                self.manager.slide(sequence.seq_id, first_needed(sequence.computed, window))

    def _advance(self, plan: StepPlan, sampled: list[int], logits: torch.Tensor) -> list[Token]:
        """Fork what finished its prompt, choose a token for every sampled row, finish what is done."""
        rows: list[Sequence] = []
        picked: list[int] = []
        groups: dict[int, BeamGroup] = {}
        for i, index in enumerate(sampled):
            sequence = plan.sequences[index]
            if sequence.request.params.beams:
                number = sequence.request.request_id
                groups[number] = group = self._beams.setdefault(number, BeamGroup(sequence))
                group.take(sequence, logits[i])
                continue
            for member in [sequence, *self._fork(sequence)]:
                rows.append(member)
                picked.append(i)
        out = [token for group in groups.values() if group.ready for token in self._search(group)]
        if not rows:
            return out
        chosen = sample(logits if picked == list(range(len(logits))) else logits[picked], rows)
        likely = logprobs(logits, picked, rows, chosen)
        for sequence, token, known in zip(rows, chosen, likely, strict=True):
            sequence.output.append(token)
            finish = self._finish_reason(sequence.request, sequence.output)
            request = sequence.request.request_id
            if finish is not Reason.NONE:
                self._finish(sequence, finish)
            out.append(Token(request, sequence.sample, sequence.seq_id, token, finish, known))
        return out

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        """The further samples of a request whose prompt has just been computed, sharing all of its blocks."""
        request = sequence.request
        if sequence.output or len(self._sequences[request.request_id]) == request.params.n:
            return []
        children = []
        for number in range(1, request.params.n):
            children.append(self._branch(sequence, number))
        return children

    def _branch(self, parent: Sequence, number: int) -> Sequence:
        """A new sequence that continues from everything `parent` has."""
        request = parent.request
        child = self._new_sequence(request, number)
        child.output = list(parent.output)
        child.computed, child.admitted = parent.computed, parent.admitted
        self.manager.fork(parent.seq_id, child.seq_id)
        self._fact(type="sample", request=request.request_id, sample=number, seq_id=child.seq_id)
        self._sequences[request.request_id].append(child)
        self.scheduler.adopt(child)
        return child

    def _search(self, group: BeamGroup) -> list[Token]:
        """All beams of a request are as far: choose the next ones, reorder the tables; the answers when it is over."""
        ends = 0 if group.request.params.ignore_eos else len(self.loaded.tokenizer.eos_ids)
        chosen = group.choose(ends, lambda output: self._finish_reason(group.request, output))
        if not chosen:
            return self._answer(group)
        beams = [group.beams[candidate.parent] for candidate in chosen]
        for parent, ranks in zip(group.beams, heirs(chosen, len(group.beams)), strict=True):
            if not ranks:
                self._retire(parent, Reason.BEAM)
            for rank in ranks[:-1]:  # the last child takes the parent's table over
                beams[rank] = self._branch(parent, group.born)
                group.born += 1
        for beam, candidate in zip(beams, chosen, strict=True):
            beam.output.append(candidate.token)
        group.advance(beams, chosen)
        return []

    def _answer(self, group: BeamGroup) -> list[Token]:
        request, best = group.request.request_id, group.answers[: group.request.params.n]
        reasons = {answer.seq_id: answer.finish for answer in reversed(best)}
        for beam in group.beams:
            self._retire(beam, reasons.get(beam.seq_id, Reason.BEAM))
        out = []
        for number, answer in enumerate(best):
            self._output_fact(request, answer.seq_id, answer.tokens, answer.finish, sample=number)
            finishes = [Reason.NONE] * (len(answer.tokens) - 1) + [answer.finish]
            out += [Token(request, number, answer.seq_id, t, f) for t, f in zip(answer.tokens, finishes, strict=True)]
        return out

    def _finish_reason(self, request: Request, output: list[int]) -> Reason:
        params = request.params
        if output[-1] in self.loaded.tokenizer.eos_ids and not params.ignore_eos:
            return Reason.STOP
        if params.stop:
            text = self.loaded.tokenizer.decode(output)
            if any(stop in text for stop in params.stop):
                return Reason.STOP
        full = len(request.prompt) + len(output) >= self.loaded.config.max_model_len
        return Reason.LENGTH if len(output) >= params.max_tokens or full else Reason.NONE

    def _finish(self, sequence: Sequence, reason: Reason) -> None:
        self._retire(sequence, reason)
        self._output_fact(sequence.request.request_id, sequence.seq_id, sequence.output, reason)

    def _retire(self, sequence: Sequence, reason: Reason) -> None:
        """Out of the scheduler and the pool; its output is not an answer by itself."""
        kind = Kind.ABORT if reason in (Reason.ABORTED, Reason.DRAINED) else Kind.FINISH
        held = sequence.status is Status.RUNNING
        self.scheduler.retire(sequence)
        if held:
            self.manager.free(sequence.seq_id, kind, reason, aux=len(sequence.output))
        elif sequence.swapped:
            self.manager.forget_swapped(sequence.seq_id, kind, reason, aux=len(sequence.output))
        else:
            self.manager.record(kind, reason, sequence.seq_id, len(sequence.output))
        sequence.finish_reason = reason
        siblings = self._sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.request_id]
            self._beams.pop(sequence.request.request_id, None)

    def _output_fact(self, request: int, seq_id: int, tokens: list[int], reason: Reason, **more: Any) -> None:
        if self.config.record_text:
            more["text"] = self.loaded.tokenizer.decode(tokens)
        more["finish"] = reason.name.lower()
        self._fact(type="output", request=request, seq_id=seq_id, tokens=len(tokens), **more)

    def _new_sequence(self, request: Request, number: int) -> Sequence:
        sequence = Sequence(self._next_seq, request, number)
        self._next_seq += 1
        return sequence

    def _fact(self, **record: Any) -> None:
        if self.sink is not None:
            self.sink.fact(record)
