"""Every query of docs/monitoring gives a number on a real scrape, and each alert fires when its fault is there."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from kvscope.engine.model import LoadedModel, load_model
from kvscope.inspector.faults.counting import LeakOnAbort
from kvscope.inspector.faults.sharing import MissingCopy

DOCS = Path(__file__).parents[2] / "docs" / "monitoring"
SECONDS = 90
BOARD = [
    target["expr"].replace("$instance", ".*").replace("$__rate_interval", "5m")
    for panel in json.loads((DOCS / "grafana.json").read_text())["panels"] for target in panel.get("targets", [])
]  # fmt: skip
ALERTS = dict(re.findall(r"- alert: (\w+)\n +expr: (.+)\n", (DOCS / "alerts.yaml").read_text()))


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


class Server:
    """Scrapes of a server, and what they say to the queries."""

    def __init__(self, promql: ModuleType, base: str, loop: Any, watch: Any) -> None:
        self.promql, self.base, self.loop, self.watch = promql, base, loop, watch
        self.scrapes: list[Any] = [self.scrape()]

    def scrape(self) -> Any:
        return self.promql.Scrape.of(httpx.get(f"{self.base}/metrics", timeout=60).text, time.monotonic())

    def says(self, query: str) -> Any:
        return self.promql.evaluate(query, self.scrapes)

    def until(self, true: Callable[[], bool], what: Callable[[], object]) -> None:
        """Keep the first scrape and the newest one until something is so."""
        end = time.monotonic() + SECONDS
        while True:
            self.scrapes = [self.scrapes[0], self.scrape()]
            if true():
                return
            assert time.monotonic() < end, what()
            time.sleep(0.1)


@contextmanager
def asked_for_much(base: str) -> Iterator[None]:
    """More than 24 blocks of 8 slots hold: shared prefixes, samples, short and long ones, until the block is left."""
    over = threading.Event()
    words = "the cat sat on the mat and the dog sat on the cat and"

    def client(number: int) -> None:
        count = 0
        while not over.is_set():
            count += 1
            prompt = f"{words} {number}" if number % 2 else f"{count} {number} {words}"
            body = {"model": "m", "prompt": prompt, "max_tokens": 40, "n": 2, "temperature": 0, "ignore_eos": True}
            httpx.post(f"{base}/v1/completions", json=body, timeout=SECONDS)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(SECONDS)


def finite(result: Any) -> bool:
    return bool(result) and all(math.isfinite(value) for value in result.values())


def test_under_load_every_query_gives_a_number(
    promql: ModuleType, served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path
) -> None:
    with served_engine.serving(loaded, tmp_path / "run.kvtrace", sanitize=True, blocks=24) as (base, loop, watch):
        server = Server(promql, base, loop, watch)
        quiet = [name for name, query in ALERTS.items() if server.says(query)]
        assert quiet == []
        seen: set[str] = set()
        firing: set[str] = set()

        def all_seen() -> bool:  # what is at one moment need not be at the next: a queue, a held block
            seen.update(query for query in BOARD if finite(server.says(query)))
            firing.update(name for name, query in ALERTS.items() if server.says(query))
            age = ALERTS["KVScopeCacheThrash"].removesuffix(" < 1")  # how fast the cache turns over is the machine's
            return len(seen) == len(set(BOARD)) and "KVScopePoolFull" in firing and finite(server.says(age))

        with asked_for_much(base):
            server.until(all_seen, lambda: (set(BOARD) - seen, set(ALERTS) - firing))
        assert len(seen) > 30
        assert firing.isdisjoint({"KVScopeDown", "KVScopeFinding", "KVScopeDroppedEvents", "KVScopeLeak"})


def test_more_than_the_pool_holds_to_its_end_is_thrashing(
    promql: ModuleType, served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path
) -> None:
    with served_engine.serving(loaded, tmp_path / "run.kvtrace", blocks=12) as (base, loop, watch):
        server = Server(promql, base, loop, watch)
        served_engine.ask(base, prompt="a", max_tokens=56, n=2)  # both start, and only one has room to end
        server.until(lambda: bool(server.says(ALERTS["KVScopeThrash"])), lambda: watch.frame())


def test_blocks_evicted_at_once_are_a_cache_too_small(promql: ModuleType) -> None:
    text = "# TYPE {0} histogram\n" + "".join(f'{{0}}_bucket{{{{le="{le}"}}}} {{1}}\n' for le in ("0.5", "1.0", "+Inf"))
    name = "kvscope_block_idle_before_evict_seconds"
    scrapes = [promql.Scrape.of(text.format(name, count), at) for count, at in ((1, 0.0), (9, 5.0))]
    assert finite(promql.evaluate(ALERTS["KVScopeCacheThrash"], scrapes))


def test_short_sequences_are_waste(
    promql: ModuleType, served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path
) -> None:
    with served_engine.serving(loaded, tmp_path / "run.kvtrace") as (base, loop, watch):
        server = Server(promql, base, loop, watch)
        over = threading.Event()

        def client() -> None:
            while not over.is_set():
                served_engine.ask(base, prompt="a", max_tokens=3)

        threads = [threading.Thread(target=client) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            server.until(lambda: bool(server.says(ALERTS["KVScopeWaste"])), lambda: "tail waste never told")
        finally:
            over.set()
            for thread in threads:
                thread.join(SECONDS)


def test_blocks_that_nobody_gives_back_are_a_leak(
    promql: ModuleType, served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path
) -> None:
    with served_engine.serving(loaded, tmp_path / "run.kvtrace", manager=LeakOnAbort) as (base, loop, watch):
        server = Server(promql, base, loop, watch)
        body = {"model": "m", "prompt": "the cat", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{base}/v1/completions", json=body, timeout=SECONDS) as answer:
            next(answer.iter_lines())  # and the client is gone
        server.until(lambda: bool(server.says(ALERTS["KVScopeLeak"])), lambda: loop.live)
        assert all(value > 0 for value in server.says(ALERTS["KVScopeLeak"]).values())


def test_a_missing_copy_is_a_finding_by_its_code(
    promql: ModuleType, served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path
) -> None:
    with served_engine.serving(loaded, tmp_path / "run.kvtrace", sanitize=True, manager=MissingCopy) as (
        base, loop, watch,
    ):  # fmt: skip
        server = Server(promql, base, loop, watch)
        served_engine.ask(base, prompt="the cat sat on", n=3, max_tokens=8)
        loop.call(lambda _: watch.sanitizer.check())
        server.until(lambda: bool(server.says(ALERTS["KVScopeFinding"])), lambda: watch.sanitizer.findings)
        assert any(("code", "KV006") in labels for labels in server.says(ALERTS["KVScopeFinding"]))


def test_a_failed_step_is_down_and_lost_events_are_holes(
    promql: ModuleType, served_engine: ModuleType, loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_engine.serving(loaded, tmp_path / "run.kvtrace") as (base, loop, watch):
        server = Server(promql, base, loop, watch)
        with monkeypatch.context() as patch:
            counted = watch._count
            patch.setattr(watch, "_count", lambda: (counted()[0], 7))
            server.until(lambda: bool(server.says(ALERTS["KVScopeDroppedEvents"])), lambda: watch.look().dropped)
        loop.call(lambda engine: setattr(engine, "step", lambda: 1 / 0))
        served_engine.ask(base)
        server.until(lambda: bool(server.says(ALERTS["KVScopeDown"])), lambda: loop.failed)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("sum(up) / 4", {(): 1.5}), ("sum by (a) (up)", {(("a", "x"),): 5.0, (("a", "y"),): 1.0}), ("up > 3", 1),
        ('up{a=~"x|z",b!="2"} * 2 + 1', 1), ("2 * 3 + 4", 10.0), ("sum(increase(n_total[1m]))", {(): 30.0}),
        ("sum(rate(n_total[1m])) and sum(up) == 6", {(): 3.0}), ("histogram_quantile(0.5, h_bucket)", {(): 1.5}),
        ("sum(up) and sum(up) > 6", {}), ("sum(avg_over_time(up[1m]))", {(): 6.0}),
    ],
)  # fmt: skip
def test_the_evaluator_itself(promql: ModuleType, query: str, wanted: Any) -> None:
    text = (
        '# TYPE up gauge\nup{{a="x",b="1"}} 4\nup{{a="x",b="2"}} 1\nup{{a="y"}} 1\n# TYPE n counter\nn_total {n}\n'
        '# TYPE h histogram\nh_bucket{{le="1"}} 2\nh_bucket{{le="2"}} 4\nh_bucket{{le="+Inf"}} 6\nh_count 6\nh_sum 9\n'
    )
    scrapes = [
        promql.Scrape.of(text.format(n=n), at) for n, at in ((5, 0.0), (25, 5.0), (10, 10.0))
    ]  # 20, then a reset
    result = promql.evaluate(query, scrapes)
    if isinstance(wanted, int):
        assert len(result) == wanted
    elif isinstance(wanted, float):
        assert result == wanted
    else:
        bare = {tuple(sorted(p for p in labels if p[0] != "instance")): value for labels, value in result.items()}
        assert bare == wanted


@pytest.mark.parametrize("query", ["sum(up", "up )", "deriv(up[5m])", "up[5m]", "sum(up) ? 1"])
def test_the_evaluator_refuses_what_is_no_query(promql: ModuleType, query: str) -> None:
    with pytest.raises(SyntaxError):
        promql.evaluate(query, [promql.Scrape.of("up 1\n", 0.0)])
