"""What clients get, in OpenAI's shapes: completions, chat completions, their chunks, usage, errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from kvscope.engine.engine import Token
from kvscope.errors import Busy, EngineFailed, KVScopeError, UsageError

if TYPE_CHECKING:
    from kvscope.engine.model.tokenizer import Tokenizer

FINISH = {"stop": "stop", "length": "length"}


class BadField(UsageError):
    """A field of the request asks for something that cannot be had; `param` is its name, `code` OpenAI's for it."""

    def __init__(self, param: str | None, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class UnknownModel(BadField):
    """Another model was asked for."""

    def __init__(self, message: str) -> None:
        super().__init__("model", message, "model_not_found")


def named(problem: UsageError, fields: Iterable[str]) -> BadField:
    """The same complaint with the field that it begins with, if it is one of these ("n is 0: must be ...")."""
    if isinstance(problem, BadField):
        return problem
    first = str(problem).partition(" ")[0]
    return BadField(first if first in fields else None, str(problem))


def error(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of a refusal."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def status_of(problem: KVScopeError) -> int:
    """The HTTP status that says what kind of problem it is."""
    if isinstance(problem, UnknownModel):
        return 404
    if isinstance(problem, Busy):
        return 429
    return 503 if isinstance(problem, EngineFailed) else 400


def usage(prompt: int, completion: int, cached: int) -> dict[str, Any]:
    """What a request cost, in tokens."""
    return {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }  # fmt: skip


def finish_reason(name: str | None) -> str | None:
    """The engine's reason in OpenAI's words; what was cut off from outside is a length."""
    return None if name is None else FINISH.get(name, "length")


class Shape(Protocol):
    """How one route writes its answers."""

    prefix: str
    operation: str  # as OpenTelemetry calls it

    def choice(self, index: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
        """One whole answer."""
        ...

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of an answer, before any text; None for none."""
        ...

    def delta(self, index: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
        """A further piece of an answer."""
        ...

    def object(self, *, stream: bool) -> str:
        """The name of the object."""
        ...

    def logprobs(self, tokens: Iterable[Token], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
        """Log probabilities of these tokens, the first of which begins at character `offset`."""
        ...


class CompletionShape:
    """/v1/completions."""

    prefix = "cmpl"
    operation = "text_completion"

    def choice(self, index: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    delta = choice

    def object(self, *, stream: bool) -> str:
        return "text_completion"

    def logprobs(self, tokens: Iterable[Token], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
        out: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            if token.logprobs is None:
                continue
            text = tokenizer.decode([token.token], skip_special=False)
            out["tokens"].append(text)
            out["token_logprobs"].append(token.logprobs.logprob)
            top = {tokenizer.decode([i], skip_special=False): value for i, value in token.logprobs.top}
            out["top_logprobs"].append(top)
            out["text_offset"].append(offset)
            offset += len(text)
        return dict(out)


class ChatShape:
    """/v1/chat/completions."""

    prefix = "chatcmpl"
    operation = "chat"

    def choice(self, index: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, text: str, finish: str | None, logprobs: Any) -> dict[str, Any]:
        delta = {"content": text} if text or finish is None else {}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def object(self, *, stream: bool) -> str:
        return "chat.completion.chunk" if stream else "chat.completion"

    def logprobs(self, tokens: Iterable[Token], tokenizer: Tokenizer, offset: int) -> dict[str, Any]:
        def entry(token: int, value: float) -> dict[str, Any]:
            text = tokenizer.decode([token], skip_special=False)
            return {"token": text, "logprob": value, "bytes": list(text.encode())}

        return {"content": [
            {**entry(t.token, t.logprobs.logprob), "top_logprobs": [entry(i, v) for i, v in t.logprobs.top]}
            for t in tokens if t.logprobs is not None
        ], "refusal": None}  # fmt: skip
