"""Parts of the server: text that is cut at stop strings, fields that clients send, the gate before the routes."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.model import load_model
from kvscope.engine.server.answers import Answer
from kvscope.engine.server.connections import OncePerMinute
from kvscope.engine.server.limits import Gate
from kvscope.engine.server.protocol import ChatRequest, CompletionRequest
from kvscope.errors import UsageError


class Letters:
    """A tokenizer whose tokens are characters."""

    def stream(self) -> Letters:
        return self

    def push(self, token: int) -> str:
        return chr(token)

    def finish(self) -> str:
        return ""


@given(st.text("ab.", max_size=12), st.lists(st.text("ab.", min_size=1, max_size=3), max_size=3))
def test_the_pieces_are_the_text_up_to_the_first_stop(text: str, stops: list[str]) -> None:
    answer = Answer(Letters(), tuple(stops))  # type: ignore[arg-type]
    pieces = [answer.push(ord(letter)) for letter in text]
    whole = "".join(pieces) + answer.end("length")
    # The stop that is complete first ends the text, where it (or one complete with it) begins.
    grown = (text[:end] for end in range(len(text) + 1))
    cut = next((g[: min(g.find(s) for s in stops if s in g)] for g in grown if any(s in g for s in stops)), text)
    assert whole == cut
    assert answer.tokens == len(text)


def test_text_is_not_held_back_for_nothing() -> None:
    answer = Answer(Letters(), ("END",))  # type: ignore[arg-type]
    assert [answer.push(ord(c)) for c in "xEyEND"] == ["x", "", "Ey", "", "", ""]
    assert answer.end("stop") == ""


@pytest.mark.parametrize(
    "extra",
    [{"tools": [{"type": "function"}]}, {"response_format": {"type": "json_object"}}, {"logit_bias": {"5": 1}},
     {"presence_penalty": 0.5}, {"echo": True}, {"best_of": 3}, {"made_up": 1}],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(extra: dict[str, Any]) -> None:
    asked = CompletionRequest.model_validate({"model": "m", "prompt": "x", **extra})
    with pytest.raises(UsageError, match=next(iter(extra))):
        asked.refuse_unsupported()


def test_habits_of_clients_are_harmless() -> None:
    ChatRequest.model_validate({
        "model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "tools": [],
        "frequency_penalty": 0, "response_format": {"type": "text"}, "logit_bias": None,
    }).refuse_unsupported()  # fmt: skip


def test_params_take_openais_defaults_and_a_fresh_seed() -> None:
    asked = CompletionRequest.model_validate({"model": "m", "prompt": "x", "stop": ["", "end"]})
    first, second = asked.params(5, None), asked.params(5, None)
    assert (first.temperature, first.n, first.stop) == (1.0, 1, ("end",))
    assert first.seed != second.seed
    assert CompletionRequest.model_validate({"model": "m", "prompt": "x", "seed": -1}).params(5, None).seed >= 0


# -- the gate ---------------------------------------------------------------------------------------------------------


async def knock(gate: Gate, messages: list[dict[str, Any]], headers: dict[str, str], path: str = "/v1/models") -> Any:
    """What the gate answers to a request whose messages come one after the other, then nothing."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}
    await gate(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def behind(scope: Any, receive: Any, send: Any) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(len(body)).encode()})


def part(size: int, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": b"x" * size, "more_body": more}


@pytest.mark.parametrize(
    ("headers", "messages", "status"),
    [
        ({"content-length": "10"}, [part(4, True), part(6, False)], 200),
        ({"content-length": "101"}, [], 413),
        ({"content-length": "99999999999999999999"}, [], 413),
        ({"content-length": "-5"}, [], 400),
        ({"content-length": "5"}, [part(60, True), part(60, True)], 413),
        ({"transfer-encoding": "chunked"}, [part(60, True), part(60, True)], 413),
        ({"content-length": "10"}, [part(4, True)], 408),
        ({"content-length": "10"}, [part(4, True), {"type": "http.disconnect"}], 400),
        ({}, [], 200),
    ],
)
def test_bodies(headers: dict[str, str], messages: list[dict[str, Any]], status: int) -> None:
    gate = Gate(behind, max_body=100, body_timeout_s=0.05)
    got, body = asyncio.run(knock(gate, messages, headers))
    assert got == status
    if status != 200:
        assert set(body["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("sent", "path", "status"),
    [("Bearer secret", "/metrics", 200), ("Bearer wrong", "/metrics", 401), ("", "/metrics", 401),
     ("secret", "/v1/models", 401), ("", "/healthz", 200), ("bearer secret", "/metrics", 200),
     ("BEARER  secret", "/metrics", 200), ("Basic secret", "/metrics", 401), ("bearersecret", "/metrics", 401),
     ("Bearer secret x", "/metrics", 401), ("Bearer", "/metrics", 401)],
)  # fmt: skip
def test_the_bearer_token(sent: str, path: str, status: int) -> None:
    gate = Gate(behind, max_body=100, body_timeout_s=1, token="secret")
    assert asyncio.run(knock(gate, [], {"authorization": sent} if sent else {}, path))[0] == status


def test_log_probabilities_are_those_of_the_model(tiny_folder: Path) -> None:
    import torch

    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.sequence import SamplingParams

    engine = Engine(load_model(tiny_folder), EngineConfig(num_blocks=32))
    engine.submit([1, 2, 3], SamplingParams(4, logprobs=3, ignore_eos=True))
    engine.submit([4, 5], SamplingParams(4, ignore_eos=True))
    tokens = list(engine.run())
    assert all((token.logprobs is not None) == (token.request_id == 0) for token in tokens)
    for token in tokens:
        if token.logprobs is not None:
            assert token.logprobs.top[0] == (token.token, pytest.approx(token.logprobs.logprob))
            values = [value for _, value in token.logprobs.top]
            assert values == sorted(values, reverse=True)
            assert float(torch.tensor(values).exp().sum()) <= 1.0


def test_warnings_that_say_the_same_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log, limit = logging.getLogger("kvscope.test.warnings"), OncePerMinute(lambda: now[0])
    log.addFilter(limit)
    for moment in (0, 1, 59, 60, 61, 500):
        now[0] = float(moment)
        log.warning("garbage came")
        log.error("a real one at 100 %")
    log.warning("another: %d", 7)
    log.removeFilter(limit)
    said = [record.getMessage() for record in caplog.records]
    assert said.count("a real one at 100 %") == 6
    assert [line for line in said if "real" not in line] == [
        "garbage came", "garbage came (2 more since the last such line)",
        "garbage came (1 more since the last such line)", "another: 7",
    ]  # fmt: skip
