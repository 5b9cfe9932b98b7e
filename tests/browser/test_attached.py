"""A real `kvscope serve` of a tiny random model, looked at by its URL: live, gone, and started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PATIENCE_MS = 60_000.0
TOKEN = "a secret of these two"


class Served:
    """`kvscope serve`, which can be ended and begun again on the same port."""

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url, self.token = f"http://127.0.0.1:{self.port}", folder / "token"
        self.token.write_text(TOKEN)
        self._argv = [sys.executable, "-m", "kvscope", "serve", str(model), "--port", str(self.port), "--overwrite",
                      "--num-blocks", "64", "--trace", str(folder / "served.kvtrace"), "--debug-routes",
                      "--token-file", str(self.token)]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            self._argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        end = time.monotonic() + 60
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        pytest.fail("kvscope serve did not come up")

    def ask(self) -> None:
        body = {"model": "tiny-llama", "prompt": "the cat sat on the mat", "max_tokens": 12, "n": 2, "ignore_eos": True}
        reply = httpx.post(
            f"{self.url}/v1/completions", json=body, timeout=60, headers={"authorization": f"Bearer {TOKEN}"}
        )
        assert reply.status_code == 200

    def end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(60)
            self._process = None

    def newest(self) -> int:
        headers = {"authorization": f"Bearer {TOKEN}"}
        return (
            int(httpx.get(f"{self.url}/debug/kv/events?limit=1", headers=headers, timeout=60).headers["x-kvscope-end"])
            - 1
        )


@pytest.fixture
def engine(tiny_folder: Path, tmp_path: Path) -> Iterator[Served]:
    found = Served(tiny_folder, tmp_path)
    yield found
    found.end()


def test_a_running_server_is_followed_by_its_url(
    look: Callable[..., Any], served: Callable[..., Any], engine: Served
) -> None:
    with served(servers=[engine.url], token_file=engine.token) as port:
        watched = look(port)
        page = watched.page
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator(".st-key-waiting")).to_contain_text("cannot reach", timeout=PATIENCE_MS)  # no traceback
        watched.shot("server-awaited")
        engine.begin()
        engine.ask()
        page.wait_for_url("**/live**")
        expect(page.locator("[data-testid=stToast]")).to_have_count(0)  # what was waited for is no news
        watched.map_at(engine.newest())
        expect(page.locator(".kv-pill")).to_contain_text("live:")
        canvas, curves = page.locator(".map canvas"), page.locator(".curves")
        canvas.evaluate("n => { n.dataset.mine = 'yes'; }")
        engine.ask()
        watched.map_at(engine.newest())
        expect(curves).to_have_attribute("data-seq", str(engine.newest()), timeout=PATIENCE_MS)
        assert canvas.get_attribute("data-mine") == "yes"
        watched.shot("server")
        engine.end()
        expect(page.locator(".kv-pill")).to_contain_text("does not answer", timeout=PATIENCE_MS)
        assert watched.stat("Speed") == "–"  # nobody computes
        watched.shot("server-gone")
        engine.begin()
        engine.ask()
        expect(page.locator(".kv-pill")).to_contain_text("live:", timeout=PATIENCE_MS)
        watched.map_at(engine.newest())
        expect(curves).to_have_attribute("data-seq", str(engine.newest()), timeout=PATIENCE_MS)
        assert curves.evaluate("c => c.kvData.x.some(Number.isNaN)")  # the gap between the two runs
        watched.shot("server-restarted")
        for name in ("Block map", "Findings", "Requests"):
            page.get_by_role("link", name=name).click()
            page.wait_for_url(f"**/{ {'Block map': 'blocks'}.get(name, name.lower()) }**")
            watched.settle()
            expect(page.locator("[data-testid=stException]")).to_have_count(0)
        page.close()  # before the server that it speaks to
