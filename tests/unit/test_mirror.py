"""A server's trace kept up with in a local folder: the same events, another run, clear words when it is gone."""

from __future__ import annotations

import socket
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvscope.dashboard.tail import Tail
from kvscope.engine.model import LoadedModel, load_model
from kvscope.errors import TraceError
from kvscope.inspector.mirror import Mirror
from kvscope.inspector.remote import Server
from kvscope.inspector.state import state_at
from kvscope.traces import open_trace

PROMPT = "the cat sat on the mat and the dog"


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


def drained(mirror: Mirror) -> None:
    while mirror.pull():
        pass


def test_a_mirror_is_the_servers_trace(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.kvtrace", tmp_path / "ours.kvtrace"
    with served_engine.serving(loaded, theirs) as (base, _, _):
        mirror = Mirror(Server(base), ours)
        drained(mirror)
        for count in (1, 3):
            served_engine.ask(base, prompt=PROMPT, n=count, max_tokens=9)
            drained(mirror)
        a, b = open_trace(theirs), open_trace(ours)
        assert len(a.events)
        assert (a.events == b.events).all()
        assert (a.seqs == b.seqs).all()
        assert list(a.sites) == list(b.sites)
        assert list(a.actors) == list(b.actors)
        assert a.facts == b.facts
        assert all(a.detail(int(seq)) == b.detail(int(seq)) for seq in a.seqs)
        assert (b.num_blocks, b.block_size, b.block_bytes) == (a.num_blocks, a.block_size, a.block_bytes)
        assert mirror.contact.connected
        assert (mirror.contact.behind, mirror.contact.events) == (0, len(a.events))
        mirror.close()
    assert not open_trace(ours).clean


@pytest.mark.parametrize("when", ["before the first look", "between two looks"])
def test_events_that_were_let_go_are_in_the_pool_and_said(
    served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path, when: str
) -> None:
    """A server that keeps the newest events shows the same pool by its address as by its folder."""
    theirs, ours = tmp_path / "theirs.kvtrace", tmp_path / "ours.kvtrace"
    limits = {"max_bytes": 1 << 16, "hot_rows": 512, "seal_rows": 250, "sealing": "inline"}
    with served_engine.serving(loaded, theirs, limits=limits) as (base, _, _):
        mirror = Mirror(Server(base), ours)
        tail = None
        if when == "between two looks":
            served_engine.ask(base, prompt=PROMPT, max_tokens=9)
            drained(mirror)
            tail = Tail("served", ours, mirror)
            assert tail.follow().moment.seq > 0
        known = mirror.contact.events
        for turn in range(40):
            served_engine.ask(base, prompt=f"{turn} {PROMPT}", n=3, max_tokens=60)
            if open_trace(theirs).let_go > known:
                break
        drained(mirror)
        a, b = open_trace(theirs), open_trace(ours)
        assert b.let_go > known
        assert int(b.seqs[-1]) == int(a.seqs[-1])
        assert b.gaps == [(0, b.let_go)]
        last = int(a.seqs[-1])
        for seq in (max(a.let_go, b.let_go), last):
            assert (state_at(a, seq).state == state_at(b, seq).state).all()
        assert any(f"events 0 to {b.let_go - 1} were let go" in line for line in b.warnings)
        tail = tail or Tail("served", ours, mirror)
        now, view = tail.follow(), tail.look()
        assert (now.moment.seq, view.last_seq) == (last, last)
        assert (now.moment.pool.state == state_at(a, last).state).all()
        assert any("were let go" in line for line in view.warnings)
        assert not view.damage
        assert now.moment.restarts == 0
        past = now.moment.past
        assert not np.isnan(past["run"][~np.isnan(past["seq"])]).any()
        assert np.isnan(past["seq"]).any() == (when == "between two looks")  # what nobody saw is a gap
        mirror.close()


def test_another_run_takes_the_folder(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    ours = tmp_path / "ours.kvtrace"
    with served_engine.serving(loaded, tmp_path / "one.kvtrace") as (base, _, watch):
        served_engine.ask(base, prompt=PROMPT, max_tokens=9)
        mirror = Mirror(Server(base), ours)
        drained(mirror)
        before = open_trace(ours).manifest["clock"]
        watch.run_id = "another"  # as a server that was started anew calls itself
        drained(mirror)
        assert mirror.contact.run == "another"
        assert len(open_trace(ours).events) == len(open_trace(tmp_path / "one.kvtrace").events)
        assert open_trace(ours).manifest["clock"] == before
        mirror.close()


def test_a_server_that_is_gone_is_said(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    with served_engine.serving(loaded, tmp_path / "one.kvtrace") as (base, _, _):
        served_engine.ask(base, prompt=PROMPT, max_tokens=9)
        mirror = Mirror(Server(base, timeout_s=5), tmp_path / "ours.kvtrace").start()
        served_engine.until(lambda: mirror.contact.connected and mirror.contact.events)
    served_engine.until(lambda: not mirror.contact.connected)
    assert "cannot reach" in mirror.contact.said
    assert len(open_trace(tmp_path / "ours.kvtrace").events)  # what came is there
    mirror.close()


def test_nobody_there_and_nothing_recorded(served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        mirror = Mirror(Server(f"http://127.0.0.1:{free.getsockname()[1]}"), tmp_path / "a.kvtrace")
        with pytest.raises(TraceError, match="is the server running"):
            mirror.pull()
    with served_engine.serving(loaded, None) as (base, _, _), pytest.raises(TraceError, match="--trace"):
        Mirror(Server(base), tmp_path / "b.kvtrace").pull()
    assert not (tmp_path / "b.kvtrace").exists()
