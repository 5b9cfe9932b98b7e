"""Clients that vanish, hang, send garbage or far too much: others are served, and the pool is whole afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.benchmarks.http_client import connect, request, stream
from kvscope.benchmarks.serve import plan
from kvscope.benchmarks.serve_soak import soak
from kvscope.benchmarks.served import serving
from kvscope.benchmarks.tiny import CONTEXT, tiny_model
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.server.connections import patient_for
from kvscope.inspector.findings import check
from kvscope.traces import Kind, open_trace


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "run.kvtrace"


@pytest.fixture(scope="module")
def served(served_engine: ModuleType, loaded: LoadedModel, folder: Path) -> Iterator[tuple[str, Any]]:
    with served_engine.serving(loaded, folder) as (base, loop, _):
        yield base, loop


@pytest.fixture
def base(served_engine: ModuleType, served: tuple[str, Any], folder: Path) -> Iterator[str]:
    """The server; after the test everybody else must still be served, and every block be back."""
    address, loop = served
    yield address
    served_engine.until(lambda: loop.live == 0)
    assert served_engine.ask(address, prompt="the cat", max_tokens=4).status_code == 200
    served_engine.until(lambda: loop.live == 0 and not loop.call(lambda engine: engine.has_work))
    state = served_engine.get(address, "/state").json()
    assert (state["sequences"], state["requests"], state["table_entries"]) == ({}, [], 0)
    assert state["blocks"]["free"] + state["blocks"]["cached"] == served_engine.BLOCKS
    assert not check(open_trace(folder)).findings


LONG = {"model": "m", "prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}


def test_clients_that_vanish_mid_stream(base: str) -> None:
    async def vanish(lines: int) -> None:
        reader, writer = await connect(base)
        writer.write(request("/v1/completions", LONG))
        for _ in range(lines):
            await reader.readline()
        if lines % 2:
            writer.transport.abort()  # a reset, not a goodbye
        writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(vanish(lines) for lines in range(12)))

    asyncio.run(all_of_them())


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00" * 40,
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 5000,
        b"A" * 100_000,
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_garbage(base: str, data: bytes) -> None:
    port = int(base.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw, contextlib.suppress(OSError):
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)
        answer = raw.recv(1 << 16)
        assert not answer or answer.startswith(b"HTTP/1.1 4")


def test_clients_that_hang_hold_nobody_up(served_engine: ModuleType, base: str) -> None:
    port = int(base.rsplit(":", 1)[1])
    body = request("/v1/completions", {**LONG, "max_tokens": 30})
    hanging = [socket.create_connection(("127.0.0.1", port)) for _ in range(30)]
    try:
        for number, one in enumerate(hanging):
            one.sendall((b"POST /v1/comp", body[: len(body) - 3], b"", body)[number % 4])  # the last read no answer
        for _ in range(3):
            assert served_engine.ask(base, prompt="a page", max_tokens=3).status_code in (200, 429)
    finally:
        for one in hanging:
            one.close()


def test_a_gigabyte_is_refused_before_it_is_read(base: str) -> None:
    port, sent = int(base.rsplit(":", 1)[1]), 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        with contextlib.suppress(OSError):
            while sent < 1 << 30:
                raw.sendall(piece)
                sent += 0x100000
    assert sent < 64 << 20  # the limit is 4 MiB; what lies in sockets between comes on top
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n")
        assert b" 413 " in raw.recv(4096)


def test_heads_that_trickle_in_are_not_waited_for(served_engine: ModuleType, loaded: LoadedModel) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n" + b"x-pad: y\r\n" * 100_000
    with served_engine.serving(loaded, None, http=patient_for(1.0, 100)) as (base, loop, _):
        port = int(base.rsplit(":", 1)[1])
        slow = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]  # one says nothing at all
        answers = [b""] * len(slow)
        end = time.monotonic() + 60
        for at in range(len(head)):
            waiting = [i for i, answer in enumerate(answers) if not answer]
            if not waiting:
                break
            assert time.monotonic() < end
            for i in waiting:
                with contextlib.suppress(OSError):  # closed: the answer tells
                    if i:
                        slow[i].sendall(head[at : at + 1])
            for i, one in enumerate(slow):
                if i in waiting and select.select([one], [], [], 0)[0]:
                    try:
                        answers[i] = one.recv(4096) or b"closed"
                    except OSError:  # closed, with our last byte on its way
                        answers[i] = b"closed"
            time.sleep(0.02)
        assert answers[0].startswith(b"HTTP/1.1 408 ")
        assert b'"timeout"' in answers[0]
        for one in slow:
            one.close()
        with httpx.Client(base_url=base, timeout=60) as client:  # one that asks again and again is not hurried
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert client.get("/healthz").status_code == 200
                time.sleep(0.2)
        assert served_engine.ask(base, prompt="the cat", max_tokens=120).status_code == 200
        assert loop.live == 0


def test_connections_beyond_the_last_place_are_turned_away(served_engine: ModuleType, loaded: LoadedModel) -> None:
    with served_engine.serving(loaded, None, http=patient_for(60.0, 30)) as (base, *_):
        port = int(base.rsplit(":", 1)[1])
        many = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(50)]
        said = [one for one in many[30:] if one.recv(4096).startswith(b"HTTP/1.1 503 ")]
        assert len(said) == 20
        for one in many:
            one.close()

        def answered() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return bool(served_engine.ask(base, prompt="the cat", max_tokens=4).status_code == 200)
            return False

        served_engine.until(answered)


def operations(base: str) -> list[Any]:
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
    found = [operation.ok() for operation in schema.get_all_operations()]
    return [operation for operation in found if operation.path != "/debug/kv/live"]  # it never ends


def fuzz(base: str, operation: Any) -> set[int]:
    """The statuses of answers to generated requests; every one is an answer, in OpenAI's shape where it is an error."""
    seen: set[int] = set()
    posts = operation.method.upper() == "POST"

    @settings(max_examples=12 if posts else 3, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(case=operation.as_strategy(), steered=st.booleans(), few=st.integers(0, 20))
    def ask(case: Any, steered: bool, few: int) -> None:
        if steered and isinstance(case.body, dict):  # past the first check, which is the model's name
            case.body["model"] = "m"
            case.body["max_tokens"] = few
        reply = case.call(base_url=base, timeout=60)
        seen.add(reply.status_code)
        assert reply.status_code < 500, (operation.path, reply.text)
        if reply.status_code >= 400 and operation.path.startswith("/v1"):
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

    ask()
    return seen


def test_whatever_fits_the_schema_is_answered(base: str) -> None:
    every = operations(base)
    assert {"/v1/completions", "/v1/chat/completions", "/debug/kv/events", "/metrics"} <= {o.path for o in every}
    seen = set().union(*(fuzz(base, operation) for operation in every))
    assert {200, 400, 404} <= seen


def test_a_killed_server_leaves_its_trace_and_is_started_anew(tiny_folder: Path, tmp_path: Path) -> None:
    trace = tmp_path / "live.kvtrace"
    options = ["--name", "m", "--num-blocks", 64, "--threads", 1, "--device", "cpu", "--trace", trace]
    with serving(tiny_folder, *options) as server:

        async def load() -> None:
            asked = [asyncio.create_task(stream(server.base, LONG)) for _ in range(6)]
            reader, writer = await connect(server.base)
            writer.write(request("/v1/completions", LONG))
            for _ in range(12):
                await reader.readline()
            os.killpg(server.process.pid, signal.SIGKILL)
            answers = await asyncio.gather(*asked)
            assert not any(answer.done and not answer.text for answer in answers)
            writer.close()

        asyncio.run(load())
    assert not open_trace(trace).clean
    killed = len(open_trace(trace).events)
    with serving(tiny_folder, *options, "--rotate") as server:
        reply = httpx.post(f"{server.base}/v1/completions", json={**LONG, "stream": False, "max_tokens": 5}, timeout=60)
        assert reply.status_code == 200
        server.idle()
    before, after = open_trace(tmp_path / "live-1.kvtrace"), open_trace(trace)
    assert (len(before.events), after.clean) == (killed, True)
    assert not check(before).findings
    assert not check(after).findings
    assert (after.events["kind"] == Kind.FINISH).sum() == 2


def test_a_crowd_gets_its_own_replies() -> None:
    result = soak(24, 1, 6)
    assert (result["problems"], result["complete"]) == ([], 24)


@pytest.mark.parametrize("arrivals", ["poisson", "azure", "mooncake"])
def test_a_load_is_planned_as_it_was_asked_for(tmp_path: Path, arrivals: str) -> None:
    azure = tmp_path / "azure.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:15:{i:02}.0,{300 + 100 * i},{10 + i}\n" for i in range(20)))  # fmt: skip
    mooncake = tmp_path / "mooncake.jsonl"
    mooncake.write_text("".join(
        f'{{"timestamp": {i * 500}, "input_length": 1024, "output_length": 9, "hash_ids": [0, {i + 1}]}}\n'
        for i in range(20)))  # fmt: skip
    source = {"poisson": "poisson", "azure": str(azure), "mooncake": str(mooncake)}[arrivals]
    planned, note = plan(source, 20, 50.0, 40, 6, seed=1)
    assert len(planned) == 20
    assert [p.at_s for p in planned] == sorted(p.at_s for p in planned)
    assert 0.1 < planned[-1].at_s < 1.5  # twenty at fifty per second
    assert all(len(p.prompt) > 0 and len(p.prompt) + p.output < CONTEXT for p in planned)
    assert bool(note) == (arrivals != "poisson")
    if arrivals != "azure":  # they share how they begin
        assert len({tuple(p.prompt[:16]) for p in planned}) == 1
        assert len({tuple(p.prompt) for p in planned}) == 20


def test_the_tiny_model_loads(tmp_path: Path) -> None:
    assert load_model(tiny_model(tmp_path / "tiny")).config.max_model_len == CONTEXT
