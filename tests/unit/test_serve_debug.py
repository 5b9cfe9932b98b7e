"""The debug routes of a server in this process: what is told over HTTP is what the engine and its trace hold."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.server import EngineLoop
from kvscope.errors import TraceError, UsageError
from kvscope.inspector.biography import biography
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.findings import check
from kvscope.inspector.measures import summary
from kvscope.inspector.remote import Server
from kvscope.inspector.state import state_at
from kvscope.inspector.telemetry.watch import Watch
from kvscope.traces import open_trace

BLOCKS, SLOTS = 64, 8


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("debug") / "run.kvtrace"


@pytest.fixture(scope="module")
def served(served_engine: ModuleType, loaded: LoadedModel, folder: Path) -> Iterator[tuple[str, EngineLoop, Watch]]:
    with served_engine.serving(loaded, folder) as found:
        yield found


@pytest.fixture(scope="module")
def base(served_engine: ModuleType, served: tuple[str, EngineLoop, Watch]) -> str:
    """Some requests have been answered: two samples of one prompt, and the same prompt again."""
    for _ in range(2):
        served_engine.ask(served[0], prompt="the cat sat on the mat and the dog", n=2, max_tokens=12)
    served_engine.until(lambda: httpx.get(f"{served[0]}/healthz").json()["requests"] == 0)
    return served[0]


def frames(base: str, count: int, **headers: str) -> Iterator[dict[str, Any]]:
    """Server-sent events as (id, data)."""
    with httpx.stream("GET", f"{base}/debug/kv/live?interval=0.1&frames={count}", headers=headers, timeout=60) as reply:
        number = ""
        for line in reply.iter_lines():
            if line.startswith("id: "):
                number = line[4:]
            elif line.startswith("data: "):
                yield {"id": number, **json.loads(line[6:])}


def test_the_run_and_the_state(served_engine: ModuleType, base: str, folder: Path) -> None:
    run, state = served_engine.get(base, "/run").json(), served_engine.get(base, "/state").json()
    assert (run["run"], run["model"], run["num_blocks"], run["block_size"]) == ("abc", "m", BLOCKS, SLOTS)
    assert run["manifest"] == open_trace(folder).manifest
    assert sum(state["blocks"].values()) == BLOCKS
    assert (state["running"], state["waiting"], state["sequences"], state["requests"]) == (0, 0, {}, [])
    assert state["tail_waste"] is None  # nothing is held
    assert state["seq"] == len(open_trace(folder).events) - 1


def test_the_pool_is_the_pool_of_the_trace(base: str, folder: Path) -> None:
    now, then = Server(base).pool(), state_at(open_trace(folder), 1 << 60)
    assert now.seq == len(open_trace(folder).events) - 1
    for name in ("state", "gen", "entries", "leases", "fill", "published", "writing"):
        assert getattr(now, name).tolist() == getattr(then, name).tolist(), name


@pytest.mark.parametrize("limit", [1, 7, 65_536])
def test_events_resume_by_seq(served_engine: ModuleType, base: str, folder: Path, limit: int) -> None:
    trace, seen, at = open_trace(folder), [], 0
    for _ in range(len(trace.events) if limit > 7 else 12):
        reply = served_engine.get(base, f"/events?from_seq={at}&limit={limit}")
        seen.append(pa.ipc.open_stream(io.BytesIO(reply.content)).read_all())
        at = int(reply.headers["x-kvscope-next"])
        assert int(reply.headers["x-kvscope-end"]) == len(trace.events)
        if at == len(trace.events):
            break
    table = pa.concat_tables(seen)
    assert table["seq"].to_pylist() == list(range(at))
    for name in trace.events.dtype.names or ():
        assert np.array_equal(table[name].to_numpy(), trace.events[name][:at]), name
    for seq, values in enumerate(table["detail"].to_pylist()):
        assert (None if values is None else tuple(values)) == trace.detail(seq)


def test_beyond_the_end_there_is_nothing_yet(served_engine: ModuleType, base: str, folder: Path) -> None:
    reply = served_engine.get(base, "/events?from_seq=1000000000")
    assert pa.ipc.open_stream(io.BytesIO(reply.content)).read_all().num_rows == 0
    assert int(reply.headers["x-kvscope-next"]) == len(open_trace(folder).events)


def test_facts_and_names(served_engine: ModuleType, base: str, folder: Path) -> None:
    trace, facts = open_trace(folder), served_engine.get(base, "/facts").json()
    assert facts["facts"] == trace.facts
    assert served_engine.get(base, f"/facts?from_byte={facts['next']}").json() == {"facts": [], "next": facts["next"]}
    names = served_engine.get(base, "/names").json()
    assert {a["name"] for a in names["actors"]} == set(trace.actors[1:])
    assert {tuple(map(str, s["frames"][0])) for s in names["sites"]} == {
        tuple(map(str, (s.file, s.line, s.function))) for s in trace.sites[1:]
    }


def test_blocks_and_findings(served_engine: ModuleType, base: str, folder: Path) -> None:
    trace = open_trace(folder)
    block = int(trace.events["block"].max())
    lives = served_engine.get(base, f"/blocks/{block}").json()
    assert [len(life["events"]) for life in lives] == [len(life.events) for life in biography(trace, block)]
    assert served_engine.get(base, "/findings").json() == {"by": "check", "events": len(trace.events), "findings": []}
    assert not check(trace).findings
    refused = served_engine.get(base, f"/blocks/{BLOCKS}")
    assert (refused.status_code, "does not exist" in refused.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    "path",
    ["/blocks/-1", f"/blocks/{10**40}", "/events?from_seq=-1", "/events?limit=0", "/live?interval=0",
     "/events?from_seq=x", f"/events?from_seq={1 << 70}", "/facts?from_byte=-1"],
)  # fmt: skip
def test_odd_questions_are_refused(served_engine: ModuleType, base: str, path: str) -> None:
    reply = served_engine.get(base, path)
    assert (reply.status_code, set(reply.json()["error"])) == (400, {"message", "type", "param", "code"})


def test_frames_say_what_the_measures_say(base: str, folder: Path) -> None:
    trace = open_trace(folder)
    measured, (frame,) = summary(trace), frames(base, 1)
    assert frame["id"] == str(len(trace.events) - 1) == str(frame["pool"]["seq"])
    for name in ("cow_copies", "preemptions", "refusals", "evictions", "prefix_hit_tokens", "prefix_query_tokens"):
        assert frame["totals"][name] == measured[name], name
    assert frame["totals"]["events"] == len(trace.events)
    assert frame["totals"]["cow_copies"] > 0
    assert (frame["up"], frame["findings"], frame["model"]) == (True, None, "m")
    assert frame["generated_tokens"] == 48


def test_a_listener_hears_of_changes_and_resumes(served_engine: ModuleType, base: str) -> None:
    (first,) = frames(base, 1)
    heard: list[dict[str, Any]] = []

    def listen() -> None:
        heard.extend(frames(base, 1, **{"last-event-id": first["id"]}))

    thread = threading.Thread(target=listen)
    thread.start()
    served_engine.ask(base, prompt="a page", max_tokens=3)
    thread.join(60)
    assert not thread.is_alive()
    assert int(heard[0]["id"]) > int(first["id"])


def test_too_many_listeners_and_a_listener_that_leaves(served_engine: ModuleType, base: str) -> None:
    from kvscope.inspector.telemetry.debug import MAX_LISTENERS

    with httpx.Client(limits=httpx.Limits(max_connections=100), timeout=60) as client:
        streams = [client.stream("GET", f"{base}/debug/kv/live") for _ in range(MAX_LISTENERS)]
        heard = [stream.__enter__().iter_lines() for stream in streams]  # kept: one that is dropped hangs up
        assert {next(lines) for lines in heard} == {"retry: 1000"}
        assert served_engine.get(base, "/live?frames=1").status_code == 429
        for stream in streams:
            stream.__exit__(None, None, None)
    served_engine.until(lambda: served_engine.get(base, "/live?frames=1").status_code == 200)


def test_a_state_under_load(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    with served_engine.serving(loaded, tmp_path / "load.kvtrace") as (base, _, _):
        body = {"model": "m", "prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2}
        with httpx.stream("POST", f"{base}/v1/completions", json=body, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            state = served_engine.get(base, "/state").json()
            if state["requests"]:  # it may have ended meanwhile, on a slow machine
                assert {s["status"] for s in state["requests"][0]["sequences"]} <= {"queued", "prefill", "decode"}
                assert state["requests"][0]["max_tokens"] == 400
        served_engine.until(lambda: served_engine.get(base, "/state").json()["table_entries"] == 0)


def test_without_a_trace_the_pool_is_told_and_the_rest_refused(served_engine: ModuleType, loaded: LoadedModel) -> None:
    with served_engine.serving(loaded, None) as (base, _, _):
        assert served_engine.get(base, "/state").json()["seq"] is None
        assert served_engine.get(base, "/pool").status_code == 200
        for path in ("/events", "/findings", "/blocks/0", "/facts", "/names"):
            reply = served_engine.get(base, path)
            assert (reply.status_code, "--trace" in reply.json()["error"]["message"]) == (400, True)
        assert next(frames(base, 1))["totals"] is None


def test_findings_of_the_sanitizer(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    fault = FAULTS["missing-copy"].manager()
    with served_engine.serving(loaded, tmp_path / "bad.kvtrace", sanitize=True, manager=fault) as (base, loop, watch):
        served_engine.ask(base, prompt="the cat sat on", n=3, max_tokens=20)
        loop.call(lambda _: watch.sanitizer.check() if watch.sanitizer else None)
        found = served_engine.get(base, "/findings").json()
        assert found["by"] == "sanitizer"
        assert found["findings"]
        frame = next(frames(base, 1))
        assert frame["findings"]["count"] == len(found["findings"]) == sum(frame["findings"]["codes"].values())


def test_no_server_and_no_url_are_one_line() -> None:
    with pytest.raises(UsageError, match="no URL"):
        Server("localhost:8000")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(TraceError, match="cannot reach"):
            Server(f"http://127.0.0.1:{free.getsockname()[1]}").json("/run")
