"""A server with a real engine, looked at by its URL: live, gone, and started again."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from kvscope.engine.model import load_model

pytestmark = pytest.mark.browser

TOKEN = "a secret of these two"


class Served:
    """A server of a tiny random model, with its debug routes, which can be ended and begun again on the same port."""

    def __init__(self, served_engine: ModuleType, model: Path, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url, self.token = f"http://127.0.0.1:{self.port}", folder / "token"
        self.token.write_text(TOKEN)
        self._how, self._loaded, self._folder = served_engine, load_model(model), folder
        self._runs, self._running = 0, ExitStack()

    def begin(self) -> None:
        self._runs += 1
        folder, run = self._folder / f"run-{self._runs}.kvtrace", f"run-{self._runs}"
        serving = self._how.serving(self._loaded, folder, port=self.port, token=TOKEN, run_id=run)
        self._running.enter_context(serving)

    def ask(self) -> None:
        assert self._how.ask(self.url, token=TOKEN, prompt="the cat sat on the mat", max_tokens=12, n=2).is_success

    def end(self) -> None:
        self._running.close()

    def newest(self) -> int:
        headers = {"authorization": f"Bearer {TOKEN}"}
        reply = httpx.get(f"{self.url}/debug/kv/events?limit=1", headers=headers, timeout=60)
        return int(reply.headers["x-kvscope-end"]) - 1


@pytest.fixture
def engine(served_engine: ModuleType, tiny_folder: Path, tmp_path: Path) -> Iterator[Served]:
    found = Served(served_engine, tiny_folder, tmp_path)
    yield found
    found.end()


def test_a_running_server_is_followed_by_its_url(
    look: Callable[..., Any], served: Callable[..., Any], engine: Served
) -> None:
    with served(servers=[engine.url], token_file=engine.token) as port:
        watched = look(port)
        page = watched.page
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator(".st-key-waiting")).to_contain_text("cannot reach")  # no traceback
        watched.shot("server-awaited")
        engine.begin()
        engine.ask()
        page.wait_for_url("**/live**")
        watched.map_at(engine.newest())
        expect(page.locator(".kv-pill")).to_contain_text("live:")
        canvas, curves = page.locator(".map canvas"), page.locator(".curves")
        canvas.evaluate("n => { n.dataset.mine = 'yes'; }")
        engine.ask()
        watched.map_at(engine.newest())
        expect(curves).to_have_attribute("data-seq", str(engine.newest()))
        assert canvas.get_attribute("data-mine") == "yes"
        watched.shot("server")
        engine.end()
        expect(page.locator(".kv-pill")).to_contain_text("does not answer")
        watched.shot("server-gone")
        engine.begin()
        engine.ask()
        expect(page.locator(".kv-pill")).to_contain_text("live:")
        watched.map_at(engine.newest())
        expect(curves).to_have_attribute("data-seq", str(engine.newest()))
        assert curves.evaluate("c => c.kvData.x.some(Number.isNaN)")  # the gap between the two runs
        watched.shot("server-restarted")
        for title, path in (("Block map", "blocks"), ("Findings", "findings"), ("Requests", "requests")):
            watched.turn_to(title, path)
            expect(page.locator("[data-testid=stException]")).to_have_count(0)
        page.close()  # before the server that it speaks to
