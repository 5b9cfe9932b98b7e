"""The routes that generate: one request becomes one or more engine requests, and their tokens one answer or stream."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from kvscope.engine.engine import Token
from kvscope.engine.sequence import SamplingParams
from kvscope.engine.server.answers import Answer
from kvscope.engine.server.asked import Asked
from kvscope.engine.server.loop import EngineLoop, Stream
from kvscope.engine.server.protocol import ChatRequest, CompletionRequest
from kvscope.engine.server.replies import (
    BadField,
    ChatShape,
    CompletionShape,
    Shape,
    UnknownModel,
    error,
    finish_reason,
    named,
    status_of,
    usage,
)
from kvscope.errors import KVScopeError, UsageError
from kvscope.traces.schema import Reason

_POLL_S = 0.25  # how soon a client that has left is noticed while its answer is made


@dataclass(slots=True)
class _Choice:
    """One answer while it is made."""

    answer: Answer
    text: str = ""
    tokens: list[Token] = field(default_factory=list)


@dataclass(slots=True)
class Job:
    """What one HTTP request asks of the engine, and what has come of it."""

    loop: EngineLoop
    shape: Shape
    model: str
    prompts: list[list[int]]
    texts: list[str | None]
    params: SamplingParams
    user: str
    id: str = ""
    created: int = 0
    streams: list[Stream] = field(default_factory=list)
    choices: dict[int, _Choice] = field(default_factory=dict)

    async def start(self) -> None:
        """Queue every prompt; all or none."""
        if len(self.prompts) > self.loop.max_requests:
            raise BadField("prompt", f"prompt is a list of {len(self.prompts)}: this server takes at most "
                                     f"{self.loop.max_requests} requests at once; send fewer")  # fmt: skip
        self.id, self.created = f"{self.shape.prefix}-{secrets.token_hex(12)}", int(time.time())
        tokenizer = self.loop.engine.loaded.tokenizer
        try:
            for number, (prompt, text) in enumerate(zip(self.prompts, self.texts, strict=True)):
                stream = await self.loop.submit(prompt, self.params, user=self.user, prompt_text=text)
                self.streams.append(stream)
                for sample in range(self.params.n):
                    self.choices[number * self.params.n + sample] = _Choice(Answer(tokenizer, self.params.stop))
        except UsageError as problem:
            self.close()
            raise named(problem, CompletionRequest.model_fields) from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the places back and abort what is unfinished."""
        for stream in self.streams:
            self.loop.release(stream)
        self.streams = []

    async def pieces(self) -> AsyncIterator[tuple[int, str, str | None, list[Token]]]:
        """(choice, new text, finish reason or None, its tokens) as they come, of all prompts together."""
        arrived: asyncio.Queue[tuple[int, list[Token] | BaseException | None]] = asyncio.Queue()

        async def pump(number: int, stream: Stream) -> None:
            try:
                async for tokens in stream:
                    arrived.put_nowait((number, tokens))
            except KVScopeError as problem:
                arrived.put_nowait((number, problem))
            else:
                arrived.put_nowait((number, None))

        tasks = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(self.streams)]
        try:
            left = len(tasks)
            while left:
                number, item = await arrived.get()
                if item is None:
                    left -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    for piece in self._take(number, item):
                        yield piece
        finally:
            for task in tasks:
                task.cancel()

    def _take(self, number: int, tokens: list[Token]) -> list[tuple[int, str, str | None, list[Token]]]:
        out = []
        by_sample: dict[int, list[Token]] = {}
        for token in tokens:
            by_sample.setdefault(token.sample, []).append(token)
        for sample, items in by_sample.items():
            index = number * self.params.n + sample
            choice, text, finish = self.choices[index], "", None
            for token in items:
                text += choice.answer.push(token.token)
                if token.finish is not Reason.NONE:
                    finish = finish_reason(token.finish.name.lower())
                    text += choice.answer.end(finish or "stop")
            choice.text += text
            choice.tokens += items
            out.append((index, text, finish, items))
        return out

    def usage(self, streams: list[Stream]) -> dict[str, Any]:
        """Tokens of all prompts and answers."""
        cached = sum(s.sequence.cached_tokens for s in streams if s.sequence is not None)
        return usage(sum(map(len, self.prompts)), sum(c.answer.tokens for c in self.choices.values()), cached)

    def body(self, choices: list[dict[str, Any]], *, stream: bool, **more: Any) -> dict[str, Any]:
        """The object around choices."""
        return {"id": self.id, "object": self.shape.object(stream=stream), "created": self.created,
                "model": self.model, "choices": choices, "system_fingerprint": None, **more}  # fmt: skip

    def known(self, tokens: list[Token], offset: int) -> Any:
        """Log probabilities, where they were asked for."""
        if self.params.logprobs is None:
            return None
        return self.shape.logprobs(tokens, self.loop.engine.loaded.tokenizer, offset)


def routes(loop: EngineLoop, model: str, run_id: str, *, max_tokens: int) -> APIRouter:
    """The routes of a server that serves `model`; an answer is `max_tokens` tokens at most."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    async def completions(asked: CompletionRequest, request: Request) -> Response:
        """Continue one or more prompts."""
        _same_model(asked.model, model)
        asked.refuse_unsupported()
        encode = loop.engine.loaded.tokenizer.encode
        prompts = [encode(p, add_special=True) if isinstance(p, str) else p for p in asked.prompts]
        if not prompts:
            raise BadField("prompt", "prompt is an empty list: give at least one prompt")
        _known_ids(prompts, loop.engine.loaded.config.vocab_size)
        _fits(prompts, loop.engine.loaded.config.max_model_len, "prompt")
        wanted = 16 if asked.max_tokens is None else asked.max_tokens
        params = asked.params(limited("max_tokens", wanted, max_tokens), asked.logprobs)
        texts = [p if isinstance(p, str) else None for p in asked.prompts]
        job = Job(loop, CompletionShape(), model, prompts, texts, params, asked.user or "")
        return await _reply(job, request, stream=bool(asked.stream), with_usage=asked.with_usage, run_id=run_id)

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(asked: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        _same_model(asked.model, model)
        asked.refuse_unsupported()
        tokenizer = loop.engine.loaded.tokenizer
        if not tokenizer.has_chat_template:
            raise UsageError(f"model {model} has no chat template: use /v1/completions")
        text = tokenizer.chat([message.plain() for message in asked.messages])
        prompt = tokenizer.encode(text)
        _fits([prompt], loop.engine.loaded.config.max_model_len, "messages")
        room = max(1, loop.engine.loaded.config.max_model_len - len(prompt))
        name = "max_tokens" if asked.max_tokens is not None else "max_completion_tokens"
        wanted = getattr(asked, name)
        count = limited(name, min(room, max_tokens) if wanted is None else wanted, max_tokens)
        params = asked.params(count, asked.wanted_logprobs())
        job = Job(loop, ChatShape(), model, [prompt], [text], params, asked.user or "")
        return await _reply(job, request, stream=bool(asked.stream), with_usage=asked.with_usage, run_id=run_id)

    return router


async def _reply(job: Job, request: Request, *, stream: bool, with_usage: bool, run_id: str) -> Response:
    await job.start()
    if job.loop.observer is not None:
        sent = {name: request.headers[name] for name in ("traceparent", "tracestate") if name in request.headers}
        asked = Asked(job.shape.operation, job.id, job.params.temperature, job.params.top_p, sent)
        job.loop.observer([stream.request_id for stream in job.streams], asked)
    headers = {"x-kvscope-run": run_id, "x-kvscope-request": ",".join(str(s.request_id) for s in job.streams),
               "x-request-id": job.id, "cache-control": "no-store"}  # fmt: skip
    if (first := min(s.seq for s in job.streams)) >= 0:
        headers["x-kvscope-seq"] = str(first)
    if stream:
        return StreamingResponse(_events(job, with_usage), media_type="text/event-stream", headers=headers)
    try:
        async with _leaves(request) as gone:
            streams = list(job.streams)
            try:
                async for _ in job.pieces():
                    pass
            except asyncio.CancelledError:
                if not gone.is_set():
                    raise
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()
                return Response(status_code=499)  # nobody hears it
            choices = [
                job.shape.choice(i, c.text, c.answer.finish, job.known(c.tokens, 0))
                for i, c in sorted(job.choices.items())
            ]
            return JSONResponse(job.body(choices, stream=False, usage=job.usage(streams)), headers=headers)
    finally:
        job.close()


@asynccontextmanager
async def _leaves(request: Request) -> AsyncIterator[asyncio.Event]:
    """Notices a client that leaves, and then cancels the work inside."""
    gone = asyncio.Event()
    work = asyncio.current_task()

    async def watch() -> None:
        while not await request.is_disconnected():
            await asyncio.sleep(_POLL_S)
        gone.set()
        if work is not None:
            work.cancel()

    task = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        task.cancel()


async def _events(job: Job, with_usage: bool) -> AsyncIterator[bytes]:
    """Server-sent events; whoever stops listening aborts the request."""
    streams = list(job.streams)
    try:
        for index in sorted(job.choices):
            opening = job.shape.opening(index)
            if opening is not None:
                yield _event(job.body([opening], stream=True, **({"usage": None} if with_usage else {})))
        try:
            async for index, text, finish, tokens in job.pieces():
                if text or finish or job.params.logprobs is not None:
                    offset = len(job.choices[index].text) - len(text)
                    delta = job.shape.delta(index, text, finish, job.known(tokens, offset))
                    yield _event(job.body([delta], stream=True, **({"usage": None} if with_usage else {})))
        except KVScopeError as problem:
            yield _event(error(str(problem), status_of(problem)))
            return
        if with_usage:
            yield _event(job.body([], stream=True, usage=job.usage(streams)))
        yield b"data: [DONE]\n\n"
    finally:
        job.close()


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _same_model(asked: str, served: str) -> None:
    if asked != served:
        raise UnknownModel(f"model {asked!r:.80} is not served here: this server has {served!r}")


def _known_ids(prompts: list[list[int]], vocab_size: int) -> None:
    for prompt in prompts:
        if prompt and max(prompt) >= vocab_size:
            raise BadField("prompt", f"token {max(prompt)} is not in the vocabulary of {vocab_size:,}")


def _fits(prompts: list[list[int]], context: int, field: str) -> None:
    for prompt in prompts:
        if not prompt:
            raise BadField(field, "the prompt is empty: give at least one token")
        if len(prompt) >= context:
            raise BadField(field, f"the prompt has {len(prompt)} tokens: the model's context is {context}; shorten it",
                           "context_length_exceeded")  # fmt: skip


def limited(name: str, wanted: int, most: int) -> int:
    """The tokens of an answer that the field `name` asks for; raises BadField where a server does not give so many."""
    if not 1 <= wanted <= most:
        raise BadField(name, f"{name} is {wanted:,}: this server gives 1..{most:,} tokens; change it")
    return wanted
