"""A server in this process, over a real engine, its real trace, and a real socket; loaded by conftest as a fixture."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.server import EngineLoop, ServerConfig, create_app
from kvscope.inspector.online import OnlineSanitizer
from kvscope.inspector.telemetry.aliases import vllm
from kvscope.inspector.telemetry.cost import RecordingCost
from kvscope.inspector.telemetry.debug import debug_router
from kvscope.inspector.telemetry.routes import metrics_router
from kvscope.inspector.telemetry.watch import Watch
from kvscope.traces import PoolFacts, Recorder, open_trace

BLOCKS, SLOTS = 64, 8


def until(true: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.01)


@contextmanager
def serving(loaded: LoadedModel, folder: Path | None, *, sanitize: bool = False, manager: Any = BlockManager,
            blocks: int = BLOCKS, reaction: Any = "log", http: Any = "auto", port: int = 0, token: str | None = None,
            run_id: str = "abc", limits: dict[str, Any] | None = None,
            ) -> Iterator[tuple[str, EngineLoop, Watch]]:  # fmt: skip
    """A server on a free port (or `port`), in a thread: its address, its engine loop, and what watches it.

    Args:
        limits: options of its recorder.
    """
    facts = PoolFacts(blocks, SLOTS, SLOTS * loaded.config.bytes_per_token(4))
    recorder = None if folder is None else Recorder(folder, pool=facts, **(limits or {}))
    sink: Any = recorder
    if sanitize and recorder is not None:
        sink = OnlineSanitizer(recorder, num_blocks=blocks, block_size=SLOTS, reaction=reaction,
                               trace=lambda: open_trace(recorder.path))  # fmt: skip
    config = EngineConfig(num_blocks=blocks, block_size=SLOTS, scheduler=SchedulerConfig(max_seqs=8))
    cost = None if sink is None else RecordingCost(sink, every=4)
    loop = EngineLoop(
        Engine(loaded, config, sink=sink, manager_factory=manager), max_requests=32,
        before_step=None if cost is None else cost.before_step, on_step=None if cost is None else cost.after_step,
    ).start()  # fmt: skip
    watch = Watch(loop, folder, run_id=run_id, model="m", sanitizer=sink if sanitize else None, cost=cost)
    routers = [metrics_router(watch, vllm), debug_router(watch)]
    app = create_app(loop, model="m", config=ServerConfig(grace_s=0, token=token), routers=routers, run_id=run_id)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        server = uvicorn.Server(uvicorn.Config(app, http=http, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", loop, watch
        finally:
            loop.stop(0)
            server.should_exit = True
            thread.join(60)
    if recorder is not None:
        recorder.close()


def ask(base: str, *, token: str = "", **body: Any) -> httpx.Response:
    asked = {"model": "m", "prompt": "a", "temperature": 0, "ignore_eos": True, **body}
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.post(f"{base}/v1/completions", json=asked, timeout=60, headers=headers)


def get(base: str, path: str) -> httpx.Response:
    return httpx.get(f"{base}/debug/kv{path}", timeout=60)
