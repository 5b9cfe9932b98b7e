"""What the server says beside its answers: params of errors, headers, HEAD, and a finding that stops it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import jsonschema
import pytest
import typer

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.server import EngineLoop, ServerConfig
from kvscope.engine.server.completions import limited
from kvscope.engine.server.protocol import ChatRequest, Message
from kvscope.engine.server.replies import BadField
from kvscope.engine.server.timing import Spread
from kvscope.errors import Sanitized
from kvscope.inspector import cli
from kvscope.inspector.cli._engine import recorder
from kvscope.inspector.cli._serving import Serving
from kvscope.inspector.faults import FAULTS
from kvscope.traces import Kind, open_trace


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options") / "run.kvtrace"


@pytest.fixture(scope="module")
def base(served_engine: ModuleType, loaded: LoadedModel, folder: Path) -> Iterator[str]:
    with served_engine.serving(loaded, folder) as (address, _, _):
        yield address


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"model": "other"}, "model", "model_not_found"),
        ({"prompt": ""}, "prompt", None),
        ({"prompt": []}, "prompt", None),
        ({"prompt": [1] * 600}, "prompt", "context_length_exceeded"),
        ({"prompt": [999_999]}, "prompt", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"max_tokens": 1 << 19}, "max_tokens", None),
        ({"prompt": "a" * ((1 << 20) + 1)}, "prompt", "context_length_exceeded"),
        ({"prompt": ["b", "a" * ((1 << 20) + 1)]}, "prompt", "context_length_exceeded"),
        ({"prompt": "the cat " * 9000}, "prompt", "context_length_exceeded"),
        ({"prompt": ["a"] * 33}, "prompt", None),
        ({"prompt": ["a"] * 65}, "prompt", None),
        ({"temperature": "hot"}, "temperature", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", None),
        ({"temperature": -1}, "temperature", None),
        ({"top_p": 0}, "top_p", None),
        ({"top_k": -1}, "top_k", None),
        ({"n": 0}, "n", None),
        ({"n": 200}, "n", None),
        ({"logprobs": 99}, "logprobs", None),
        ({"stop": [1]}, "stop", None),
        ({"echo": True}, "echo", "unsupported_parameter"),
        ({"stream_options": 5}, "stream_options", None),
    ],
)
def test_an_error_names_its_param(base: str, body: dict[str, Any], param: str, code: str | None) -> None:
    reply = httpx.post(f"{base}/v1/completions", json={"model": "m", "prompt": "x", **body})
    told = reply.json()["error"]
    assert reply.status_code in (400, 404)
    assert (told["param"], told["code"]) == (param, code), told


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"temperature": "hot"}, 'temperature is "hot": wanted a number'),
        ({"temperature": [1]}, "temperature is [1]: wanted a number"),
        ({"n": 1.5}, "n is 1.5: wanted a whole number"),
        ({"stream": "yes"}, 'stream is "yes": wanted true or false'),
        ({"user": 5}, "user is 5: wanted a text"),
        ({"user": "u" * 300}, "user has 300 characters: this server takes at most 256; shorten it"),
        ({"model": None}, "model is null: wanted a text"),
        ({"stop": ["a"] * 5}, "stop: wanted a text, or at most 4 of them"),
        ({"max_tokens": 0}, "max_tokens is 0: this server gives 1..4,096 tokens; change it"),
        ({"max_tokens": 5000}, "max_tokens is 5,000: this server gives 1..4,096 tokens; change it"),
        ({"prompt": ["a"] * 33}, "prompt is a list of 33: this server takes at most 32 requests at once; send fewer"),
        ({"prompt": ["a"] * 65}, "prompt has 65 prompts: this server takes at most 64; shorten it"),
        ({"prompt": "a" * 1_500_000},
         "prompt has 1,500,000 characters: this server takes at most 1,048,576; shorten it"),
        ({"stream_options": {}}, "stream_options is only allowed with stream: true"),
        ({"stream_options": {}, "stream": False}, "stream_options is only allowed with stream: true"),
    ],
)  # fmt: skip
def test_a_refusal_is_told_in_plain_words(base: str, body: dict[str, Any], says: str) -> None:
    reply = httpx.post(f"{base}/v1/completions", json={"model": "m", "prompt": "x", **body}, timeout=60)
    assert (reply.status_code, reply.json()["error"]["message"], reply.headers.get("retry-after")) == (400, says, None)


def test_a_long_message_is_told_as_what_it_is(base: str) -> None:
    for content in ("a" * 1_100_000, [{"type": "text", "text": "a" * 1_100_000}]):
        asked = {"model": "m", "messages": [{"role": "user", "content": content}]}
        told = httpx.post(f"{base}/v1/chat/completions", json=asked, timeout=60).json()["error"]
        assert (told["code"], told["param"]) == ("context_length_exceeded", "messages")
        assert "1,100,000 characters" in told["message"]


def test_a_conversation_names_the_field_that_was_sent() -> None:
    for more in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": -1}, {"top_logprobs": 3}):
        asked = ChatRequest(model="m", messages=[Message(role="user", content="x")], **more)
        with pytest.raises(BadField) as told:
            asked.wanted_logprobs()
        assert told.value.param == "top_logprobs"
    with pytest.raises(BadField) as told:
        limited("max_completion_tokens", 0, 4096)
    assert told.value.param == "max_completion_tokens"


def test_the_schema_says_what_the_server_does(base: str) -> None:
    told = httpx.get(f"{base}/openapi.json").json()
    operations = [operation for path in told["paths"].values() for operation in path.values()]
    assert not any("422" in operation["responses"] for operation in operations)
    assert told["paths"]["/v1/completions"]["post"]["responses"]["400"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Error"
    }
    wrong = httpx.post(f"{base}/v1/completions", json={}).json()
    jsonschema.validate(wrong, told["components"]["schemas"]["Error"])
    assert "ValidationError" not in json.dumps(told)


@pytest.mark.parametrize(("path", "allow"), [("/v1/completions", "POST"), ("/healthz", "GET, HEAD")])
def test_a_wrong_method_is_told_the_right_one(base: str, path: str, allow: str) -> None:
    reply = httpx.put(f"{base}{path}")
    assert (reply.status_code, reply.headers["allow"], reply.json()["error"]["param"]) == (405, allow, None)


def test_an_error_of_a_conversation_names_its_messages(base: str) -> None:
    told = httpx.post(f"{base}/v1/chat/completions", json={"model": "m", "messages": []}).json()["error"]
    assert told["param"] == "messages"


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_leads_to_its_run_and_request(base: str, folder: Path, stream: bool) -> None:
    body = {"model": "m", "prompt": ["a", "b"], "max_tokens": 2, "stream": stream}
    reply = httpx.post(f"{base}/v1/completions", json=body, timeout=60)
    trace = open_trace(folder)
    first, numbers = int(reply.headers["x-kvscope-seq"]), reply.headers["x-kvscope-request"].split(",")
    assert reply.headers["x-kvscope-run"] == httpx.get(f"{base}/debug/kv/run").json()["run"]
    assert len(numbers) == 2
    submits = [seq for seq in trace.seqs.tolist() if trace.events["kind"][seq] == Kind.SUBMIT and seq >= first]
    told = [str((trace.detail(seq) or (-1,))[0]) for seq in submits]
    assert [number for number in told if number in numbers] == numbers


@pytest.mark.parametrize(
    "path", ["/healthz", "/metrics", "/v1/models", "/v1/models/m", "/debug/kv/state", "/debug/kv/live", "/openapi.json"]
)
def test_head_is_get_without_a_body(base: str, path: str) -> None:
    reply = httpx.head(f"{base}{path}", timeout=60)
    assert (reply.status_code, reply.content) == (200, b"")


def test_head_where_nothing_is_to_be_got(base: str) -> None:
    assert httpx.head(f"{base}/nowhere").status_code == 404
    assert httpx.head(f"{base}/v1/completions").status_code == 405


def serve_until_stopped(loaded: LoadedModel, folder: Path, told: list[Any]) -> None:
    """A server that forgets copies, and a client that makes it; what came of both is told."""
    config = EngineConfig(num_blocks=64, block_size=8)
    with recorder(folder, "sanitize", config, loaded, on_finding="raise") as sink, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        engine = Engine(loaded, config, sink=sink, manager_factory=FAULTS["missing-copy"].manager())
        serving = Serving(engine, folder, "m", max_requests=8, debug_routes=False, aliases="none", otel=None)
        body = {"model": "m", "prompt": "the cat sat on", "n": 3, "max_tokens": 40, "ignore_eos": True}
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
        client = threading.Thread(target=lambda: told.append(httpx.post(address, json=body, timeout=120)))
        client.start()
        serving.run(listener, ServerConfig(grace_s=0))  # returns by itself
        client.join()
        told.append(serving)


def test_a_finding_stops_the_server_with_the_report(
    loaded: LoadedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    with pytest.raises(typer.Exit):  # exit code 1: there are findings
        serve_until_stopped(loaded, tmp_path / "bad.kvtrace", told)
    serving = told[1]
    assert isinstance(serving.failed, Sanitized)
    assert told[0].status_code == 503
    assert "KV006" in told[0].json()["error"]["message"]
    said = capsys.readouterr().err
    assert "KV006" in said
    assert "write-while-shared" in said
    trace = open_trace(tmp_path / "bad.kvtrace")
    assert trace.clean
    assert [f["run"] for f in trace.facts if f["type"] == "server"] == [serving.run_id]


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--on-finding", "raise"], "--record sanitize"), (["--on-finding", "stop"], "log or raise"),
     (["--metrics-aliases", "sglang"], "none or vllm")],
)  # fmt: skip
def test_odd_options_are_one_line(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert cli.run(["serve", str(tiny_folder), *options]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), says in said) == (1, True)


def test_a_step_that_breaks_tells_everybody(loaded: LoadedModel) -> None:
    """Also where it breaks between steps, while a request is given up."""
    import asyncio

    from kvscope.engine.sequence import SamplingParams
    from kvscope.errors import EngineFailed

    engine, failed = Engine(loaded, EngineConfig(num_blocks=64, block_size=8)), threading.Event()
    loop = EngineLoop(engine, on_failed=lambda _: failed.set()).start()

    async def run() -> None:
        stream = await loop.submit([1, 2, 3], SamplingParams(400, ignore_eos=True))
        other = await loop.submit([1, 2, 3], SamplingParams(400, ignore_eos=True))
        engine.abort = None  # type: ignore[assignment, method-assign]
        loop.release(stream)
        with pytest.raises(EngineFailed):
            async for _ in other:
                pass

    asyncio.run(run())
    assert failed.wait(60)
    del engine.abort
    loop.stop(0)


def test_durations_fall_into_their_buckets() -> None:
    spread = Spread((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        spread.add(seconds)
    spread.add(0.2, 3)
    assert spread.cumulative() == [("0.1", 2), ("1", 6), ("+Inf", 7)]
    assert spread.total_s == pytest.approx(8.25)
