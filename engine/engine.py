"""The engine: requests in, tokens out, one step at a time.

submit -> Scheduler -> BlockManager (tables, copies, events) -> Runner (device) -> sampler -> outputs
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.kvcache import KVCache
from kvscope.engine.prefix import Extras
from kvscope.engine.runner import Runner
from kvscope.engine.sampler import sample
from kvscope.engine.scheduler import Scheduler, SchedulerConfig, StepPlan
from kvscope.engine.sequence import Request, SamplingParams, Sequence, Status
from kvscope.errors import UsageError
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


@dataclass(frozen=True, slots=True)
class Token:
    """One new token of one sample; `finish` is set on its last."""

    request_id: int
    sample: int
    seq_id: int
    token: int
    finish: Reason = Reason.NONE


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
        )
        self.cache = KVCache(
            loaded.config, config.num_blocks, config.block_size, dtype=config.dtype, device=config.device
        )
        self.runner = Runner(loaded.model, self.cache, self.manager, head_dim=loaded.config.head_dim)
        self.scheduler = Scheduler(self.manager, config.scheduler, sink=sink)
        self._sequences: dict[int, list[Sequence]] = {}  # live ones, by request
        self._next_request = 0
        self._next_seq = 0
        self._fact(type="model", name=loaded.config.name, num_layers=loaded.config.num_layers,
                   num_kv_heads=loaded.config.num_kv_heads, head_dim=loaded.config.head_dim,
                   dtype_bytes=config.dtype.itemsize, max_model_len=loaded.config.max_model_len,
                   bytes_per_token=self.cache.bytes_per_token)  # fmt: skip

    @property
    def has_work(self) -> bool:
        """Whether anything is queued or running."""
        return self.scheduler.has_work

    def submit(
        self,
        prompt: list[int],
        params: SamplingParams,
        *,
        name: str = "",
        extras: Extras = (),
        prompt_text: str | None = None,
    ) -> int:
        """Queue a request; returns its id.

        Raises:
            UsageError: it could never run here: empty, longer than the context, or more than the whole pool.
        """
        self._check(prompt, params)
        request = Request(
            self._next_request, list(prompt), params, name or f"r{self._next_request}", extras, prompt_text
        )
        self._next_request += 1
        sequence = self._new_sequence(request, 0)
        self._sequences[request.request_id] = [sequence]
        text = {"prompt": prompt_text} if self.config.record_text and prompt_text is not None else {}
        self._fact(type="request", request=request.request_id, name=request.name, seq_ids=[sequence.seq_id],
                   prompt_tokens=len(prompt), max_tokens=params.max_tokens, samples=params.n, **text)  # fmt: skip
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
        plan = self.scheduler.schedule()
        if not plan.rows:
            return []
        sampled = [i for i, s in enumerate(plan.sequences) if plan.rows[i].hi == s.length]
        self.manager.begin_step(plan.rows)
        copies = self.manager.drain_copies()
        self.cache.copy(copies)
        self.manager.copies_done(copies)
        logits = self.runner.run(plan, sampled)
        self.manager.end_step()
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            sequence.computed = row.hi
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

    def _advance(self, plan: StepPlan, sampled: list[int], logits: torch.Tensor) -> list[Token]:
        """Fork what finished its prompt, choose a token for every sampled row, finish what is done."""
        rows: list[Sequence] = []
        picked: list[int] = []
        for i, index in enumerate(sampled):
            sequence = plan.sequences[index]
            for member in [sequence, *self._fork(sequence)]:
                rows.append(member)
                picked.append(i)
        if not rows:
            return []
        out = []
        for sequence, token in zip(rows, sample(logits[picked], rows), strict=True):
            sequence.output.append(token)
            finish = self._finish_reason(sequence, token)
            request = sequence.request.request_id
            if finish is not Reason.NONE:
                self._finish(sequence, finish)
            out.append(Token(request, sequence.sample, sequence.seq_id, token, finish))
        return out

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        """The further samples of a request whose prompt has just been computed, sharing all of its blocks."""
        request = sequence.request
        if sequence.output or len(self._sequences[request.request_id]) == request.params.n:
            return []
        children = []
        for number in range(1, request.params.n):
            child = self._new_sequence(request, number)
            child.computed, child.admitted = sequence.computed, sequence.admitted
            self.manager.fork(sequence.seq_id, child.seq_id)
            self._fact(type="sample", request=request.request_id, sample=number, seq_id=child.seq_id)
            self._sequences[request.request_id].append(child)
            self.scheduler.adopt(child)
            children.append(child)
        return children

    def _finish_reason(self, sequence: Sequence, token: int) -> Reason:
        params = sequence.request.params
        if token in self.loaded.tokenizer.eos_ids and not params.ignore_eos:
            return Reason.STOP
        if params.stop:
            text = self.loaded.tokenizer.decode(sequence.output)
            if any(stop in text for stop in params.stop):
                return Reason.STOP
        full = sequence.length >= self.loaded.config.max_model_len
        return Reason.LENGTH if len(sequence.output) >= params.max_tokens or full else Reason.NONE

    def _finish(self, sequence: Sequence, reason: Reason) -> None:
        kind = Kind.ABORT if reason in (Reason.ABORTED, Reason.DRAINED) else Kind.FINISH
        held = sequence.status is Status.RUNNING
        self.scheduler.retire(sequence)
        if held:
            self.manager.free(sequence.seq_id, kind, reason, aux=len(sequence.output))
        else:
            self.manager.record(kind, reason, sequence.seq_id, len(sequence.output))
        sequence.finish_reason = reason
        siblings = self._sequences[sequence.request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._sequences[sequence.request.request_id]
        text = {"text": self.loaded.tokenizer.decode(sequence.output)} if self.config.record_text else {}
        self._fact(type="output", request=sequence.request.request_id, seq_id=sequence.seq_id,
                   tokens=len(sequence.output), finish=reason.name.lower(), **text)  # fmt: skip

    def _new_sequence(self, request: Request, number: int) -> Sequence:
        sequence = Sequence(self._next_seq, request, number)
        self._next_seq += 1
        return sequence

    def _check(self, prompt: list[int], params: SamplingParams) -> None:
        context, size = self.loaded.config.max_model_len, self.config.block_size
        if not prompt:
            raise UsageError("the prompt is empty: give at least one token")
        if len(prompt) >= context:
            raise UsageError(f"the prompt has {len(prompt)} tokens: the model's context is {context}; shorten it")
        if params.n > self.config.scheduler.max_seqs:
            raise UsageError(
                f"n is {params.n}: at most max_seqs = {self.config.scheduler.max_seqs} samples run at once"
            )
        # The newest token is never written, so a request ends with one position less than it has tokens.
        positions = min(len(prompt) + params.max_tokens, context) - 1
        needed = -(-positions // size)
        if needed > self.config.num_blocks:
            raise UsageError(
                f"pool too small for one request: {len(prompt)} prompt + {params.max_tokens} new tokens need {needed} "
                f"blocks of {size}, the pool has {self.config.num_blocks}; raise num_blocks to at least {needed}"
            )

    def _fact(self, **record: Any) -> None:
        if self.sink is not None:
            self.sink.fact(record)
