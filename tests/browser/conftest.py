"""What the browser tests share: a Chromium, the real server, and a page that notes everything that must not happen."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from kvscope.dashboard import launch

SHOTS = Path(__file__).resolve().parents[2] / "test-results"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
PATIENCE_MS = 60_000.0
expect.set_options(timeout=PATIENCE_MS)  # a machine may be as slow as it likes
Serving = Callable[..., AbstractContextManager[int]]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, else Playwright's own; without either the tests fail."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        if path is None and not (own and os.path.exists(own)):
            pytest.fail("no Chromium for the browser tests: `python tests/browser/ensure.py` tells how to get one")
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What all pages share: Streamlit's scripts are fetched and compiled once."""
    shared = browser.new_context()
    yield shared
    shared.close()


@contextmanager
def _served(*traces: Path, **options: Any) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    SHOTS.mkdir(exist_ok=True)
    argv = launch.command(traces[0] if traces else None, port=port, others=traces[1:], **options)
    with open(SHOTS / "dashboard-server.log", "ab") as log:
        process = subprocess.Popen(argv, start_new_session=True, stdout=log, stderr=log)
        try:
            launch.wait_until_healthy(process, "127.0.0.1", port)
            yield port
        finally:
            launch.stop(process)


@pytest.fixture(scope="session")
def served() -> Serving:
    """The real server on a free port, with these traces: a context manager."""
    return _served


class Watched:
    """A page and everything that must not happen on it."""

    def __init__(self, page: Page, port: int) -> None:
        self.page, self.port = page, port
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._console)
        page.on("pageerror", lambda e: self.complaints.append(f"script: {e}"))
        page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text} ({message.location['url']})")

    def _request(self, request: Any) -> None:
        address = urlparse(request.url)
        if address.scheme in ("http", "https", "ws") and address.hostname != "127.0.0.1":
            self.complaints.append(f"asked {address.hostname}")

    def open(self, **place: Any) -> None:
        """Open a link and wait until the page has settled."""
        self.page.goto(launch.url(port=self.port, **place))
        self.page.wait_for_selector(".st-key-timebar, .kv-stats")
        self.settle()

    def turn_to(self, title: str, path: str) -> None:
        """Go to another page by the sidebar, as a visitor does, and wait until it has settled."""
        self.page.get_by_role("link", name=title, exact=True).click()
        self.on(title, path)

    def back(self, title: str, path: str) -> None:
        """One press of the browser's Back, which leads to that page."""
        self.page.go_back()
        self.on(title, path)

    def on(self, title: str, path: str) -> None:
        """Wait until this page is the one that stands there, and has settled."""
        self.page.wait_for_function("path => location.pathname === path", arg=f"/{path}")
        expect(self.page.locator(".kv-here")).to_have_text(title)
        self.settle()

    def settle(self) -> None:
        """Wait until no script runs and no placeholder is left."""
        ready = (
            "document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"
            " && !document.querySelector('[data-testid=stSkeleton]')"
        )
        self.page.wait_for_function(ready)

    def at(self, **wanted: object) -> None:
        """Wait until the address says this: it follows at the end of the run that drew the page."""
        said = "wanted => wanted.every(([k, v]) => new URLSearchParams(location.search).get(k) === v)"
        self.page.wait_for_function(said, arg=[[name, str(value)] for name, value in wanted.items()])

    def stat(self, label: str) -> str:
        """A number of the stat row."""
        return self.page.locator(f'[data-stat="{label}"] dd span').inner_text()

    def map_at(self, seq: int) -> Locator:
        """The block map once it shows event `seq`."""
        expect(self.page.locator(".map")).to_have_attribute("data-seq", str(seq), timeout=PATIENCE_MS)
        return self.page.locator(".map canvas")

    def shot(self, name: str) -> None:
        """Keep a picture."""
        self.page.screenshot(path=SHOTS / f"dashboard-{name}.png", timeout=PATIENCE_MS)


@pytest.fixture
def look(context: BrowserContext) -> Iterator[Callable[..., Watched]]:
    """Opens a page on the server at a port; after the test nobody may have complained."""
    opened: list[Watched] = []

    def opening(port: int, scheme: str = "light", size: tuple[int, int] = (1280, 800)) -> Watched:
        page = context.new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        opened.append(Watched(page, port))
        return opened[-1]

    yield opening
    for watched in opened:
        watched.page.close()
        assert watched.complaints == []
