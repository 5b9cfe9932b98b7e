"""The HTML report in a real browser, opened from a file: it draws everything, complains of nothing, asks nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from kvscope.inspector.cli import run
from kvscope.inspector.findings import check
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace

pytestmark = pytest.mark.browser

SHOTS = Path(__file__).resolve().parents[2] / "test-results"
SECRET = "the prompt of </script><script>alert(1)</script> nobody else"


def report_of(trace: Path, folder: Path, *options: str) -> Path:
    out = folder / "report.html"
    assert run(["export", str(trace), "--to", "html", "--out", str(out), "--overwrite", *options]) == 0
    return out


def test_a_report_draws_itself(browser: Browser, toy_traces: dict[str, Path], tmp_path: Path) -> None:
    trace = toy_traces["missing-copy"]
    out = report_of(trace, tmp_path)
    findings = check(open_trace(trace)).findings
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("request", lambda r: complaints.append(r.url) if r.url.startswith(("http", "ws")) else None)
    page.goto(out.as_uri())
    for name in ("occupancy", "sharing_factor", "saved_blocks", "tail_waste", "lanes"):
        page.wait_for_selector(f"#{name} .main-svg")
    assert page.locator('[data-stat="Findings"] dd span').inner_text() == str(len(findings))
    assert findings[0].code in page.locator("details pre").first.inner_text()
    page.locator("#map").hover(position={"x": 3, "y": 3})
    assert page.locator("#said").inner_text().startswith("b0: ")
    colours = page.evaluate(
        "() => new Set(Array.from(document.getElementById('map').getContext('2d')"
        ".getImageData(0, 0, 200, 1).data).filter((_, i) => i % 4 !== 3)).size"
    )
    assert colours > 2
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=str(SHOTS / "report.png"), full_page=True)
    page.close()
    assert complaints == []


@pytest.mark.parametrize("options", [(), ("--with-text",)])
def test_texts_are_in_it_only_when_asked_for(tmp_path: Path, options: tuple[str, ...]) -> None:
    trace = tmp_path / "a.kvtrace"
    with Recorder(trace, pool=PoolFacts(8, 4), sealing="inline") as sink:
        sink.fact({"type": "request", "request": 0, "name": "r</script>0", "seq_ids": [0], "text": SECRET})
        sink.fact({"type": "output", "request": 0, "seq_id": 0, "tokens": 2, "text": SECRET})
        sink.begin()
        sink.emit(Kind.SUBMIT, seq_id=0, aux=4)
        sink.emit(Kind.ALLOC, block=1, gen=1, ref_before=0, ref_after=1, seq_id=0, lblock=0)
    text = report_of(trace, tmp_path, *options).read_text()
    assert ("nobody else" in text) is bool(options)
    assert "<script>alert" not in text
    body = text.split("const figures = ")[1].split(";\n")[0]
    assert "r</script>0" not in body
    assert json.loads(body)


def test_a_part_of_a_trace_is_refused(toy_traces: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "part.html"
    trace = str(toy_traces["clean"])
    assert run(["export", trace, "--to", "html", "--out", str(out), "--seq-range", "1:9"]) == 2
    assert run(["export", trace, "--to", "csv", "--out", str(out), "--with-text"]) == 2
    assert not out.exists()
