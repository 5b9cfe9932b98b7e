"""`kvscope serve` as clients meet it: the official client over real HTTP, odd clients, a pool that is whole after."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.sequence import SamplingParams
from kvscope.inspector.findings import check
from kvscope.traces import Kind, open_trace

MODEL = "tiny-llama"
POOL = ["--num-blocks", "64", "--block-size", "8", "--max-seqs", "16", "--max-requests", "24", "--threads", "1",
        "--device", "cpu", "--max-body", "64KiB", "--grace", "2"]  # fmt: skip


@contextmanager
def serving(folder: Path, *options: object, cwd: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The real command on a free port; its address and process."""
    start = [sys.executable, "-c", "from kvscope.inspector.cli import main; main()", "serve", folder, "--port", 0]
    process = subprocess.Popen(
        [str(word) for word in (*start, *POOL, *options)], cwd=cwd, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("loading"), line + process.stderr.read()
        line = process.stderr.readline()
        assert "http://127.0.0.1:" in line, line + process.stderr.read()
        base = line.split(" on ")[1].split("/v1")[0]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        for _ in range(600):
            try:
                if httpx.get(f"{base}/healthz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.05)
        yield base, process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(120)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def base(tiny_folder: Path, place: Path) -> Iterator[str]:
    with serving(tiny_folder, "--trace", "live.kvtrace", "--debug-routes", cwd=place) as (address, _):
        yield address


@pytest.fixture(scope="module")
def client(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


def alone(loaded: LoadedModel, prompt: list[int], count: int) -> str:
    """What the engine says to a prompt by itself, greedy."""
    engine = Engine(loaded, EngineConfig(num_blocks=64, block_size=8))
    engine.submit(prompt, SamplingParams(count))
    return loaded.tokenizer.decode([token.token for token in engine.run()])


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for a condition."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def settled(base: str) -> dict[str, Any]:
    """The pool's state once nothing runs."""
    for _ in range(200):
        state: dict[str, Any] = httpx.get(f"{base}/debug/kv/state").json()
        if not state["running"] and not state["waiting"] and httpx.get(f"{base}/healthz").json()["requests"] == 0:
            return state
        time.sleep(0.05)
    raise AssertionError(state)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "kvscope"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_completion_is_what_the_engine_says(client: openai.OpenAI, loaded: LoadedModel) -> None:
    prompt = loaded.tokenizer.encode("the cat", add_special=True)
    reply = client.completions.create(model=MODEL, prompt="the cat", max_tokens=12, temperature=0)
    assert reply.choices[0].text == alone(loaded, prompt, 12)
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens <= 12) == (len(prompt), True)


def test_a_stream_joins_to_the_same_text(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="a page, a", max_tokens=20, temperature=0)
    pieces, used = [], None
    for chunk in client.completions.create(
        model=MODEL, prompt="a page, a", max_tokens=20, temperature=0, stream=True,
        stream_options={"include_usage": True},
    ):  # fmt: skip
        pieces += [choice.text for choice in chunk.choices]
        used = chunk.usage or used
    assert "".join(pieces) == whole.choices[0].text
    assert used is not None
    assert whole.usage is not None
    assert used.completion_tokens == whole.usage.completion_tokens


def test_samples_seeds_stops_and_several_prompts(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> list[str]:
        options = {"prompt": "the dog", "max_tokens": 16, "temperature": 1.0, **more}
        return [c.text for c in client.completions.create(model=MODEL, **options).choices]

    assert ask(n=3, seed=5) == ask(n=3, seed=5)
    assert len(set(ask(n=3, seed=5))) > 1
    assert ask(prompt=["the dog", "the cat"], temperature=0) == ask(temperature=0) + ask(
        prompt="the cat", temperature=0
    )
    whole = ask(temperature=0)[0]
    stop = whole[3:5]
    assert ask(temperature=0, stop=stop) == [whole[: whole.find(stop)]]


def test_log_probabilities(client: openai.OpenAI) -> None:
    reply = client.completions.create(model=MODEL, prompt="the cat", max_tokens=5, temperature=0, logprobs=2)
    known = reply.choices[0].logprobs
    assert known is not None
    assert known.token_logprobs is not None
    assert known.top_logprobs is not None
    assert len(known.token_logprobs) == len(known.top_logprobs)
    assert all(value <= 0 for value in known.token_logprobs)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "other", "prompt": "x"}, 404, "is not served here"),
        ({"model": MODEL, "prompt": ""}, 400, "the prompt is empty"),
        ({"model": MODEL, "prompt": []}, 400, "prompt"),
        ({"model": MODEL}, 400, "prompt"),
        ({"model": MODEL, "prompt": "x", "max_tokens": 0}, 400, "max_tokens is 0"),
        ({"model": MODEL, "prompt": "x", "max_tokens": 100_000}, 400, "gives 1..4,096 tokens"),
        ({"model": MODEL, "prompt": "x", "temperature": -1}, 400, "temperature is -1"),
        ({"model": MODEL, "prompt": "x", "n": 0}, 400, "n is 0"),
        ({"model": MODEL, "prompt": "x", "n": "three"}, 400, 'n is "three": wanted a whole number'),
        ({"model": MODEL, "prompt": "x", "echo": True}, 400, "echo is not supported"),
        ({"model": MODEL, "prompt": [999_999]}, 400, "not in the vocabulary"),
        ({"model": MODEL, "prompt": [1] * 600}, 400, "the model's context is 512"),
        ({"model": MODEL, "prompt": "x", "stop": list("abcde")}, 400, "stop: wanted a text, or at most 4"),
        ({"model": MODEL, "prompt": ["a", 5]}, 400, "prompt: wanted a text"),
        ([1], 400, "not a JSON object"),
    ],
)
def test_bad_requests_are_told_why(base: str, body: Any, status: int, says: str) -> None:
    reply = httpx.post(f"{base}/v1/completions", json=body)
    told = reply.json()["error"]
    assert (reply.status_code, set(told)) == (status, {"message", "type", "param", "code"})
    assert says in told["message"]
    assert "\n" not in told["message"]


def test_garbage_and_large_bodies(base: str) -> None:
    assert httpx.post(f"{base}/v1/completions", content=b"\xff\x00{").status_code == 400
    assert httpx.post(f"{base}/v1/completions", content=b"[" * 50_000).status_code == 400
    assert httpx.post(f"{base}/v1/completions", content=b"x" * 100_000).status_code == 413
    with socket.create_connection(("127.0.0.1", int(base.rsplit(":", 1)[1]))) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
        assert b" 413 " in raw.recv(4096)
    assert httpx.get(f"{base}/nowhere").status_code == 404
    plain = httpx.post(
        f"{base}/v1/completions", content=b'{"model": "m", "prompt": "x"}', headers={"content-type": "text/plain"}
    )
    assert "application/json" in plain.json()["error"]["message"]


def test_a_client_that_leaves_frees_its_blocks(base: str) -> None:
    body = {"model": MODEL, "prompt": "the cat", "max_tokens": 300, "ignore_eos": True}
    with httpx.stream("POST", f"{base}/v1/completions", json={**body, "stream": True}) as reply:
        next(reply.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{base}/v1/completions", json=body, timeout=0.05)
    assert settled(base)["sequences"] == {}


def test_many_streams_at_once_are_never_mixed(base: str, loaded: LoadedModel) -> None:
    prompts = [f"a page {n} and" for n in range(20)]
    wanted = [alone(loaded, loaded.tokenizer.encode(p, add_special=True), 24) for p in prompts]
    got: dict[int, str] = {}

    def ask(number: int) -> None:
        body = {"model": MODEL, "prompt": prompts[number], "max_tokens": 24, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{base}/v1/completions", json=body, timeout=60) as reply:
            lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        got[number] = "".join(choice["text"] for line in lines[:-1] for choice in json.loads(line)["choices"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got.get(number) for number in range(len(prompts))] == wanted
    settled(base)


def test_too_many_requests_get_429(base: str) -> None:
    """What is too much only now is told so; what always is, is a mistake."""
    asked, url = (
        {"model": MODEL, "prompt": ["the cat"] * 20, "max_tokens": 60, "ignore_eos": True},
        f"{base}/v1/completions",
    )
    for _ in range(50):  # the first one may have ended by the time that the second one comes
        with httpx.stream("POST", url, json={**asked, "stream": True}, timeout=60) as first:
            reply = httpx.post(url, json={**asked, "max_tokens": 1}, timeout=60)
            assert first.status_code == 200
        if reply.status_code != 200:
            break
    assert (reply.status_code, reply.json()["error"]["type"]) == (429, "rate_limit_error")
    assert reply.headers["retry-after"] == "1"
    never = httpx.post(url, json={**asked, "prompt": ["the cat"] * 30})
    assert (never.status_code, "at most 24 requests" in never.json()["error"]["message"]) == (400, True)
    assert settled(base)["table_entries"] == 0


def test_metrics_parse_and_add_up(base: str) -> None:
    settled(base)
    families = {f.name: f for f in text_string_to_metric_families(httpx.get(f"{base}/metrics").text)}
    blocks = {s.labels["state"]: s.value for s in families["kvscope_blocks"].samples}
    assert sum(blocks.values()) == families["kvscope_pool_blocks"].samples[0].value == 64
    assert families["kvscope_up"].samples[0].value == 1
    kinds = {s.labels["kind"]: s.value for s in families["kvscope_block_events"].samples}
    assert kinds["alloc"] > 0
    assert kinds["finish"] + kinds["abort"] > 0
    lifetimes = {s.name: s.value for s in families["kvscope_block_lifetime_seconds"].samples if s.name[-1] == "t"}
    assert lifetimes["kvscope_block_lifetime_seconds_count"] > 0
    assert not any(":" in name for name in families)


def test_a_reply_leads_to_its_events(base: str, place: Path) -> None:
    reply = httpx.post(f"{base}/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 2, "user": "ann"})
    trace = open_trace(place / "live.kvtrace")
    names = [fact["name"] for fact in trace.facts if fact["type"] == "request"]
    assert names[-1] == "user ann"
    assert int(reply.headers["x-kvscope-seq"]) < len(trace.events)


def test_debug_routes_are_off_and_a_token_is_asked_for(tiny_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    with serving(tiny_folder, "--token-file", "token", cwd=tmp_path) as (base, _):
        assert httpx.get(f"{base}/v1/models").status_code == 401
        allowed = httpx.Client(headers={"authorization": "Bearer s3cret"})
        assert allowed.get(f"{base}/v1/models").status_code == 200
        assert allowed.get(f"{base}/debug/kv/state").status_code == 404
        assert "kvscope_block_events" not in allowed.get(f"{base}/metrics").text  # nothing is recorded


def test_shutdown_under_load_leaves_a_clean_trace(tiny_folder: Path, tmp_path: Path) -> None:
    with serving(tiny_folder, "--trace", "down.kvtrace", cwd=tmp_path) as (base, process):
        body = {"model": MODEL, "prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "stream": True}

        told: list[Any] = []

        def ask(number: int) -> None:
            asked = {**body, "stream": number % 2 == 0, "n": 2}
            reply = httpx.post(f"{base}/v1/completions", json=asked, timeout=60)
            told.append((reply.status_code, reply.text))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: httpx.get(f"{base}/healthz").json()["requests"] + len(told) >= 6)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
        for thread in threads:
            thread.join()
    assert len(told) == 6
    for status, text in told:  # finished within the grace, or told so in the usual shape
        assert status in (200, 429, 503), text
        assert "choices" in text or "shut" in text
        assert "Traceback" not in text
    trace = open_trace(tmp_path / "down.kvtrace")
    assert trace.clean
    assert not check(trace).findings


def test_kill_under_load_leaves_a_readable_trace(tiny_folder: Path, tmp_path: Path) -> None:
    with serving(tiny_folder, "--trace", "killed.kvtrace", cwd=tmp_path) as (base, process):
        body = {"model": MODEL, "prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{base}/v1/completions", json=body) as reply:
            lines = (line for line in reply.iter_lines() if line)
            told = [next(lines) for _ in range(12)]
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
    trace = open_trace(tmp_path / "killed.kvtrace")
    # What was told had been computed, and what was computed had been recorded: a token is committed in a step.
    assert np.count_nonzero(trace.events["kind"] == Kind.COMMIT) >= len(told)
    assert not trace.clean


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--port", "99999"], "port is 99999"), (["--grace", "nan"], "grace is nan"), (["--grace", "-1"], "grace is -1"),
     (["--policy", "priority"], "have no priority"), (["--record", "sanitize"], "give --trace as well"),
     (["--host", "no.such.host.invalid"], "cannot listen on"),
     (["--max-requests", "0"], "max-requests is 0"), (["--token-file", "/dev/null"], "holds no token"),
     (["--max-body", "1B"], "max_body is 1"), (["--num-blocks", "0"], "num_blocks is 0")],
)  # fmt: skip
def test_bad_options_are_one_line(
    capsys: pytest.CaptureFixture[str], tiny_folder: Path, options: list[str], says: str
) -> None:
    from kvscope.inspector import cli

    assert cli.run(["serve", str(tiny_folder), *options]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str], tiny_folder: Path) -> None:
    from kvscope.inspector import cli

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert cli.run(["serve", str(tiny_folder), "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on" in capsys.readouterr().err
