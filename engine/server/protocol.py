"""What clients send, checked field by field, and what it means for the engine.

The fields are OpenAI's; `top_k`, `ignore_eos` and `user` are what other engines take beside them. What is not supported
is refused by name, never ignored: a client that asks for JSON and gets prose has been lied to.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from kvscope.engine.sequence import SamplingParams
from kvscope.engine.server.replies import BadField, named
from kvscope.errors import UsageError

MAX_PROMPTS = 64
MAX_MESSAGES = 512
MAX_TEXT = 1 << 20  # characters of one text
MAX_IDS = 1 << 20  # token ids of one prompt
MAX_TOP = 20  # alternatives per token
MAX_STOPS = 4

Text = Annotated[StrictStr, Field(max_length=MAX_TEXT)]
Ids = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=1 << 31)]], Field(max_length=MAX_IDS)]
Number = StrictFloat | StrictInt


class StreamOptions(BaseModel):
    """How a stream ends."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False


class _Common(BaseModel):
    model_config = ConfigDict(extra="allow")

    model: Annotated[StrictStr, Field(max_length=512)]
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: StrictInt | None = None
    n: StrictInt | None = None
    seed: StrictInt | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: StrictBool = False
    user: Annotated[StrictStr, Field(max_length=256)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, never empty ones."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and self.stream_options.include_usage

    def refuse_unsupported(self) -> None:
        """Raises BadField for a field that is unknown, or set to something that is not done here."""
        for name, value in (self.model_extra or {}).items():
            if value not in (None, *_HARMLESS.get(name, ())):
                raise BadField(name, f"{name} is not supported here: leave it out", "unsupported_parameter")
        if self.stream_options is not None and not self.stream:
            raise BadField("stream_options", "stream_options is only allowed with stream: true")

    def params(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """As the engine takes it; OpenAI's defaults, and a fresh seed where none is given.

        Raises:
            BadField: a value is out of its range.
        """
        try:
            return self._params(max_tokens, logprobs)
        except UsageError as problem:
            raise named(problem, type(self).model_fields) from None

    def _params(self, max_tokens: int, logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else float(self.temperature),
            top_p=1.0 if self.top_p is None else float(self.top_p),
            top_k=self.top_k or 0,
            n=1 if self.n is None else self.n,
            seed=secrets.randbits(62) if self.seed is None else self.seed % (1 << 63),
            stop=self.stops,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
        )


# Values that ask for nothing, which clients send by habit.
_HARMLESS: dict[str, tuple[Any, ...]] = {
    "best_of": (1,), "echo": (False,), "suffix": ("",), "logit_bias": ({},), "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0), "tools": ([],), "tool_choice": ("none",), "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},), "functions": ([],), "function_call": ("none",), "store": (False,),
    "metadata": ({},), "modalities": (["text"],), "service_tier": ("auto", "default"),
}  # fmt: skip


class CompletionRequest(_Common):
    """POST /v1/completions."""

    prompt: (
        Text
        | Annotated[list[Text], Field(max_length=MAX_PROMPTS)]
        | Ids
        | Annotated[list[Ids], Field(max_length=MAX_PROMPTS)]
    )
    max_tokens: StrictInt | None = None
    logprobs: StrictInt | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more prompts, each a text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if prompt and isinstance(prompt[0], int):
            return [list(prompt)]
        return list(prompt)  # type: ignore[arg-type]


class Part(BaseModel):
    """A piece of a message; text only."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: Text


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(max_length=64)]
    name: Annotated[StrictStr, Field(max_length=256)] | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(_Common):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: StrictInt | None = None
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = None

    def wanted_logprobs(self) -> int | None:
        """How many alternatives per token; None for no log probabilities.

        Raises:
            BadField: alternatives without log probabilities, or too many.
        """
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP:
            raise BadField("top_logprobs", f"top_logprobs is {self.top_logprobs}: must be 0..{MAX_TOP}")
        if not self.logprobs:
            if self.top_logprobs:
                raise BadField("top_logprobs", "top_logprobs needs logprobs: true")
            return None
        return self.top_logprobs or 0
