"""The dashboard in a real browser: its numbers, moving through time, picking a block, findings, a live trace."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from kvscope.dashboard import launch
from kvscope.dashboard.numbers import factor_text, ratio_text
from kvscope.inspector.biography import biography
from kvscope.inspector.findings import check
from kvscope.inspector.measures import summary
from kvscope.inspector.state import state_at
from kvscope.traces import PoolFacts, Recorder, open_trace

pytestmark = pytest.mark.browser

SHOTS = Path(__file__).resolve().parents[2] / "test-results"
PAGES = (
    ("live", "Live and replay"), ("blocks", "Block map"), ("biography", "Block biography"), ("requests", "Requests"),
    ("waste", "Waste"), ("sharing", "Sharing"), ("events", "Events"), ("findings", "Findings"), ("compare", "Compare"),
    ("whatif", "What if"), ("doctor", "Doctor"), ("runs", "Property runs"), ("overhead", "Recording overhead"),
)  # fmt: skip
REACHES = """low => [...document.querySelectorAll("*")].some(
  e => e.shadowRoot?.querySelector(".map canvas")?.getBoundingClientRect().bottom > low)"""
SIZES = ((1366, 768), (2560, 1440))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of traces that the server shows; what a test writes there is in the list at the next look."""
    return tmp_path_factory.mktemp("shown")


@pytest.fixture(scope="module")
def port(served: Callable[..., Any], toy_traces: dict[str, Path], shown: Path) -> Iterator[int]:
    with served(toy_traces["missing-copy"], toy_traces["clean"], shown) as found:
        yield found


@pytest.fixture
def watched(look: Callable[..., Any], port: int) -> Any:
    return look(port)


def _pixels(canvas: Locator) -> str:
    return str(canvas.evaluate("c => c.toDataURL()"))


def _click_block(canvas: Locator, block: int) -> None:
    """Click the middle of a block's cell, found from the map's own grid."""
    grid = canvas.evaluate("c => { const g = c.closest('.map').kvGrid; return [g.size, g.columns, devicePixelRatio]; }")
    size, columns, ratio = grid
    x, y = (block % columns + 0.5) * size / ratio, (block // columns + 0.5) * size / ratio
    canvas.click(position={"x": x, "y": y})


def test_stat_row_shows_what_the_inspector_computed(watched: Any, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["missing-copy"])
    facts, result = summary(trace), check(trace)
    watched.open()
    assert watched.stat("Pool") == str(facts["geometry"]["num_blocks"])
    assert watched.stat("Peak held") == str(facts["held_blocks"]["peak"])
    assert watched.stat("Utilization") == ratio_text(facts["utilization"]["mean"])
    assert watched.stat("Sharing") == factor_text(facts["sharing_factor"]["mean"])
    assert watched.stat("Prefix hits") == ratio_text(facts["prefix_hit_rate"])
    assert watched.stat("COW copies") == str(facts["cow_copies"])
    assert watched.stat("Preemptions") == str(facts["preemptions"])
    assert watched.stat("Findings") == str(len(result.findings))
    expect(watched.page.locator(".js-plotly-plot")).to_have_count(4)
    watched.shot("overview")


def test_moving_through_time_changes_the_map(watched: Any, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["missing-copy"])
    seqs, steps = trace.seqs, trace.events["step"]
    first, second, third = (int(n) for n in seqs[steps == steps[len(steps) // 20]][:3])
    watched.open(page="blocks", seq=first)
    before = _pixels(watched.map_at(first))
    watched.page.locator(".st-key-event_on button:visible").click()
    watched.map_at(second)
    watched.page.keyboard.press("k")
    watched.map_at(third)
    watched.page.keyboard.press("j")
    watched.map_at(second)
    watched.page.locator(".st-key-step_on button:visible").click()
    following = steps[steps > steps[seqs == second]].min()
    watched.map_at(int(seqs[steps == following].max()))
    later, next_one = (int(n) for n in seqs[len(seqs) * 2 // 3 :][:2])
    box = watched.page.locator(".st-key-seq_box input")
    box.fill(str(later))
    box.press("Enter")
    after = _pixels(watched.map_at(later))
    assert before != after
    watched.at(seq=later)
    counts = state_at(trace, later).counts
    legend = watched.page.locator(".legend").inner_text().split()
    assert int(legend[legend.index("shared") + 1].replace(",", "")) == counts["shared"]
    slider = watched.page.locator(".st-key-seq_slide").get_by_role("slider")
    slider.press("ArrowRight")
    watched.map_at(next_one)


def test_what_a_link_or_a_visitor_asks_for_beyond_the_trace_is_answered(
    watched: Any, toy_traces: dict[str, Path]
) -> None:
    last = int(open_trace(toy_traces["clean"]).seqs[-1])
    said = watched.page.locator("[data-testid=stAlert]")
    watched.open(page="blocks", trace="clean", seq=5)
    watched.page.goto(watched.page.url.replace("seq=5", "seq=5&seq=7&colour=BAD"))
    watched.map_at(7)
    expect(said).to_contain_text(["seq=5, seq=7: the last one is followed", "Colour by 'BAD' was asked for"])
    watched.at(seq=7)
    assert watched.page.url.count("seq=") == 1
    box = watched.page.locator(".st-key-seq_box input")
    box.fill("99999999")
    box.press("Enter")
    watched.map_at(last)
    expect(said).to_contain_text(["Event 99,999,999 was asked for"])
    expect(box).to_have_value(str(last))
    watched.page.locator(".st-key-event_back button:visible").click()
    watched.map_at(last - 1)
    expect(said.filter(has_text="asked for")).to_have_count(0)


def test_no_press_of_a_key_is_lost(watched: Any, toy_traces: dict[str, Path]) -> None:
    """However fast they come, and while the page is still being drawn."""
    seqs = open_trace(toy_traces["clean"]).seqs
    start = int(seqs[len(seqs) // 2])
    watched.open(page="blocks", trace="clean", seq=start)
    watched.map_at(start)
    for _ in range(25):
        watched.page.keyboard.press("k")
    watched.map_at(start + 25)
    for _ in range(40):
        watched.page.keyboard.press("j")
        watched.page.wait_for_timeout(25)
    watched.map_at(start - 15)
    watched.at(seq=start - 15)
    box = watched.page.locator(".st-key-seq_box input")
    start += 200
    box.fill(str(start))
    box.press("j")  # in a field it is a letter
    box.fill(str(start))
    box.press("Enter")
    watched.map_at(start)
    steps = open_trace(toy_traces["clean"]).events["step"]
    box.blur()
    for _ in range(3):
        watched.page.keyboard.press("Shift+K")
    ahead = int(steps[seqs == start][0])
    for _ in range(3):
        ahead = int(steps[steps > ahead].min())
    watched.map_at(int(seqs[steps == ahead].max()))


def test_click_on_a_block_leads_to_its_biography(watched: Any, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["missing-copy"])
    found = [f for f in check(trace).findings if f.block == check(trace).findings[0].block][-1]
    seq, block, told = found.seq, found.block, biography(trace, found.block, found.seq)[-1].events
    state = state_at(trace, seq)
    shared = next(event for event in told if event.kind == "share")
    wrote = next(event for event in told if event.kind == "write" and event.seq > shared.seq)
    watched.open(page="blocks", seq=seq)
    canvas = watched.map_at(seq)
    canvas.hover(position={"x": 5, "y": 5})
    expect(watched.page.locator(".tip")).to_contain_text(f"b0#{state.gen[0]}")
    _click_block(canvas, block)
    card = watched.page.locator(".kv-head")
    expect(card).to_contain_text(f"b{block}#{state.gen[block]}")
    expect(card).to_contain_text(f"ref {state.ref[block]}")
    watched.at(block=block)
    watched.settle()
    watched.shot("block-map")
    watched.page.locator(".st-key-to_biography button:visible").click()
    watched.page.wait_for_url("**/biography**")
    expect(watched.page.locator(".rows tbody")).to_contain_text(wrote.text)
    watched.settle()
    current = watched.page.locator(".rows tr.current").bounding_box()
    assert current["y"] + current["height"] < 800  # the guilty row is seen before anybody scrolls
    watched.shot("biography")
    watched.page.locator(".rows tr", has_text=shared.text).first.click()
    now = watched.page.locator(".kv-now b")
    expect(now).to_contain_text(f"b{block}#{trace.events['gen'][trace.seqs == shared.seq][0]}")
    expect(now).to_contain_text(f"shared by {shared.who}")
    watched.at(seq=shared.seq, block=block)


def test_block_can_be_picked_with_the_keyboard(watched: Any, toy_traces: dict[str, Path]) -> None:
    seq = int(check(open_trace(toy_traces["missing-copy"])).findings[-1].seq)
    watched.open(page="blocks", seq=seq, block=2)
    canvas = watched.map_at(seq)
    columns = int(canvas.evaluate("c => c.closest('.map').kvGrid.columns"))
    canvas.focus()
    for key in ("ArrowRight", "ArrowDown", "Enter"):
        canvas.press(key)
    expect(watched.page.locator(".kv-head b")).to_contain_text(f"b{2 + 1 + columns}")


def test_findings_lead_to_the_event_and_back_to_the_pages_before(watched: Any, toy_traces: dict[str, Path]) -> None:
    """Back takes one press for each page, whichever way led there, and shows each at its own place."""
    first = check(open_trace(toy_traces["missing-copy"])).findings[0]
    watched.open(seq=first.seq, block=first.block)
    watched.turn_to("Findings", "findings")
    expect(watched.page.locator("[data-testid=stCode]").first).to_contain_text(first.code)
    watched.shot("findings")
    watched.page.locator(".st-key-jump_0 button:visible").click()
    watched.page.wait_for_url("**/blocks**")
    watched.map_at(first.seq)
    watched.at(seq=first.seq, block=first.block)
    expect(watched.page.locator(".kv-head")).to_contain_text(f"b{first.block}#{first.gen}")
    watched.turn_to("Compare", "compare")
    expect(watched.page.locator(".st-key-other_box").get_by_role("combobox")).to_have_value("clean")
    assert "other=" not in watched.page.url  # nobody has chosen it
    watched.turn_to("Sharing", "sharing")
    watched.back("Compare", "compare")
    watched.back("Block map", "blocks")
    watched.at(seq=first.seq, block=first.block)
    watched.map_at(first.seq)
    watched.back("Findings", "findings")
    watched.back("Overview", "")
    watched.at(seq=first.seq, block=first.block)


def test_a_finding_in_lanes_leads_to_each_of_its_events(watched: Any, toy_traces: dict[str, Path]) -> None:
    first = check(open_trace(toy_traces["missing-copy"])).findings[0]
    watched.open(page="findings", trace="missing-copy")
    lanes = watched.page.locator(".lanes").first
    expect(lanes.locator(".head")).to_have_count(3)
    expect(lanes.locator(".card.guilty")).to_have_attribute("data-seq", str(first.seq))
    expect(lanes.locator(".card.missing")).to_contain_text("copy-on-write")
    watched.shot("lanes")
    other = lanes.locator("button.card:not(.guilty):not(.missing)").first
    seq = int(other.get_attribute("data-seq") or -1)
    other.press("Enter")
    watched.map_at(seq)
    watched.at(seq=seq, block=first.block)
    watched.back("Findings", "findings")
    watched.page.locator(".lanes .card.guilty").first.click()
    watched.map_at(first.seq)


def test_newcomer_reaches_the_guilty_write_of_the_planted_race(watched: Any, shown: Path) -> None:
    """Open the sample, *Show it*, *Whole biography*: the write stands there, marked."""
    sample = Path(__file__).parents[2] / "traces" / "samples" / "garbled-race.kvpack"
    shutil.copy(sample, shown / sample.name)
    first = check(open_trace(sample)).findings[0]
    watched.open(trace="garbled-race")
    watched.page.locator(".st-key-show_first button:visible").click()
    watched.map_at(first.seq)
    watched.shot("race")
    watched.page.locator(".st-key-to_biography button:visible").click()
    guilty = watched.page.locator(".rows tr.current")
    expect(guilty).to_contain_text("write slots")
    watched.at(seq=first.seq, block=first.block)


WRITTEN = """([box, words]) => [...document.querySelectorAll(box + " text")].some(e =>
  e.textContent.includes(words) && e.getBoundingClientRect().bottom < innerHeight)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_samples_make_their_point_before_anybody_scrolls(
    look: Callable[..., Any], served: Callable[..., Any], scheme: str
) -> None:
    samples = Path(__file__).parents[2] / "traces" / "samples"
    points = {"leak": (".st-key-tall_occupancy", "24 blocks held by nobody"),
              "reserved": (".st-key-tall_pair_bars", "empty"),
              "paged": (".st-key-tall_pair_bars", "up to 21 at once"),
              "prefix-sharing": (".st-key-tall_sharing_bars", "1,417"),
              "fragmentation": (".st-key-strip", "15")}  # fmt: skip
    with served(*(samples / f"{name}.kvpack" for name in points)) as port:
        for size in ((1280, 800), (1920, 1080)):
            watched = look(port, scheme, size)
            for name, (box, words) in points.items():
                watched.open(trace=name)
                watched.page.wait_for_function(WRITTEN, arg=[box, words])
                watched.shot(f"sample-{name}-{scheme}-{size[0]}")
            watched.page.close()  # before the server ends


def test_an_empty_folder_waits_and_offers_what_appears_in_it(
    look: Callable[..., Any], served: Callable[..., Any], tmp_path: Path
) -> None:
    samples = Path(__file__).parents[2] / "traces" / "samples"
    with served(tmp_path) as port:
        watched = look(port)
        watched.page.goto(launch.url(port=port))
        expect(watched.page.locator(".st-key-waiting")).to_contain_text(f"No trace yet in {tmp_path}")
        watched.settle()
        watched.shot("no-trace-yet")
        shutil.copy(samples / "healthy.kvpack", tmp_path)
        expect(watched.page.locator('[data-stat="Pool"]')).to_contain_text("160")
        shutil.copy(samples / "prefix-sharing.kvpack", tmp_path)
        expect(watched.page.locator("[data-testid=stToast]")).to_contain_text("prefix-sharing is a new trace")
        watched.page.locator(".st-key-trace_box input").click()
        watched.page.get_by_role("option", name="prefix-sharing").click()
        expect(watched.page.locator('[data-stat="Pool"]')).to_contain_text("256")
        watched.settle()
        watched.page.close()  # before the server ends


def test_newcomer_reaches_the_guilty_write_while_the_engine_runs(
    watched: Any, toy_engine: ModuleType, shown: Path
) -> None:
    """The same in the live view: the check beside the run finds it; *Show it*, *Whole biography*."""
    path, page = shown / "racing.kvtrace", watched.page
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16, faulty=True)
        toy_engine.workload(engine)
        for _ in range(12):
            engine.step()
        first = check(open_trace(path)).findings[0]
        watched.open(trace="racing")
        page.wait_for_url("**/live**")
        page.locator(".st-key-show_first button:visible").click()
        watched.map_at(first.seq)
        engine.step()  # the run goes on
        page.locator(".st-key-to_biography button:visible").click()
        expect(page.locator(".rows tr.current")).to_contain_text("write slots")
        watched.at(seq=first.seq, block=first.block)


def test_the_picture_of_the_readme(look: Callable[..., Any], port: int, shown: Path) -> None:
    """`docs/img/dashboard.png` is this one: the pool of a shared prompt, by block and over time."""
    sample = Path(__file__).parents[2] / "traces" / "samples" / "prefix-sharing.kvpack"
    shutil.copy(sample, shown / sample.name)
    watched = look(port, "light", (1360, 860))
    watched.open(page="live", trace="prefix-sharing", seq=12_000)
    watched.map_at(12_000)
    expect(watched.page.locator(".curves")).to_have_attribute("data-seq", str(open_trace(sample).seqs[-1]))
    watched.shot("readme")


def test_a_page_is_saved_as_one_file(watched: Any, toy_traces: dict[str, Path], tmp_path: Path) -> None:
    """As HTML it shows the same in a browser that may ask nobody; as a PNG it is a picture of it."""
    first = check(open_trace(toy_traces["missing-copy"])).findings[0]
    watched.open(page="blocks", seq=first.seq, block=first.block)
    watched.map_at(first.seq)
    page, said = watched.page, watched.page.locator(".kv-head").inner_text()
    files = {}
    for kind in ("html", "png"):
        with page.expect_download() as download:
            page.locator(f".keep button[data-kind={kind}]").click()
        assert download.value.suggested_filename == f"kvscope-missing-copy-blocks-{first.seq}.{kind}"
        files[kind] = tmp_path / f"saved.{kind}"
        download.value.save_as(files[kind])
    shutil.copy(files["png"], SHOTS / "dashboard-saved.png")
    with Image.open(files["png"]) as image:
        assert image.width > 600
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(files["html"].as_uri())
    assert page.locator(".kv-head").inner_text() == said
    assert page.locator("h1").first.inner_text() == "Block map · missing-copy · KVScope"
    assert page.locator("script, button").count() == 0  # nothing that would do nothing
    assert page.locator("img[alt^='Map of']").evaluate("i => i.naturalWidth") > 100
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_a_link_reproduces_the_view(watched: Any) -> None:
    watched.open(page="biography", trace="clean", seq=700, block=3)
    link, said = watched.page.url, watched.page.locator(".kv-head").inner_text()
    assert "/biography?" in link
    watched.page.go_back()  # one entry: the link that names the page in words is no place of its own
    watched.page.wait_for_url("about:blank")
    watched.page.goto(link)
    watched.page.wait_for_selector(".kv-head")
    watched.settle()
    assert watched.page.locator(".kv-head").inner_text() == said
    assert watched.page.url == link


def test_choices_are_in_the_address_and_outlive_a_reload(watched: Any) -> None:
    watched.open(page="blocks", trace="clean", seq=600)
    watched.page.locator(".st-key-map_mode").get_by_text("Owner").click()
    watched.page.wait_for_url("**colour=owner**")
    watched.settle()
    watched.page.locator(".st-key-map_mode").get_by_text("Age").click()
    watched.page.wait_for_url("**colour=age**")
    watched.settle()
    watched.page.go_back()
    expect(watched.page.locator(".st-key-map_mode [aria-checked=true]")).to_have_text("Owner")
    watched.at(colour="owner")
    watched.page.locator(".st-key-axis").get_by_text("step", exact=True).click()
    watched.page.wait_for_url("**axis=step**")
    slider = watched.page.locator(".st-key-step_slide").get_by_role("slider")
    before = int(slider.input_value())
    slider.press("ArrowRight")
    watched.page.wait_for_url(lambda url: "seq=600" not in url)
    expect(slider).to_have_value(str(before + 1))
    watched.page.locator(".st-key-axis").get_by_text("time", exact=True).click()
    watched.page.wait_for_url("**axis=time**")
    slider = watched.page.locator(".st-key-time_slide").get_by_role("slider")
    for _ in range(3):
        watched.settle()
        before_s, before = float(slider.input_value()), watched.page.url
        slider.press("ArrowRight")
        watched.page.wait_for_url(lambda url, before=before: url != before)
        assert float(slider.input_value()) >= before_s
    watched.settle()
    there = watched.page.url
    watched.page.reload()
    watched.settle()
    assert watched.page.url == there
    expect(watched.page.locator(".st-key-map_mode [aria-checked=true]")).to_have_text("Owner")
    expect(watched.page.locator(".st-key-axis [aria-checked=true]")).to_have_text("time")
    watched.shot("choices")


def test_a_link_cannot_open_other_folders(watched: Any) -> None:
    watched.page.goto(launch.url(port=watched.port, trace="/etc"))
    expect(watched.page.locator("[data-testid=stAlert]")).to_contain_text("is not shown here")


def test_a_mistyped_page_leads_to_the_overview_and_says_so(watched: Any) -> None:
    """Without a complaint of the browser: see `Watched`."""
    watched.page.goto(f"http://127.0.0.1:{watched.port}/nopage?trace=clean&seq=700")
    expect(watched.page.locator("[data-testid=stAlert]").first).to_contain_text("There is no page 'nopage'")
    watched.at(seq=700, trace="clean")
    watched.settle()
    watched.shot("no-such-page")
    watched.turn_to("Block map", "blocks")
    expect(watched.page.get_by_text("There is no page")).to_have_count(0)


def test_every_page_fits_a_laptop_and_a_wall(look: Callable[..., Any], port: int) -> None:
    """One visit to all pages, each at both sizes: nothing is wider than the window, nothing fails."""
    watched = look(port, "dark")
    page = watched.page
    watched.open(seq=700, block=6)
    for path, title in PAGES:
        watched.turn_to(title, path)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            # Pictures follow the window a moment later.
            page.wait_for_function("[document.documentElement, document.querySelector('.stMain')]"
                                   ".every(e => e.scrollWidth <= e.clientWidth)")  # fmt: skip
            if path in ("live", "blocks"):  # the big picture takes what room there is
                page.wait_for_function(REACHES, arg=0.6 * height)
            watched.shot(f"{path}-dark-{width}")
        assert "This page failed" not in page.locator(".stMain").inner_text()


def test_live_page_follows_pauses_and_survives_a_restart(watched: Any, toy_engine: ModuleType, shown: Path) -> None:
    """Map and curves stay the same nodes through refreshes; a pause; the run's end; another run in the same folder."""
    path, page = shown / "live.kvtrace", watched.page

    def begun(sink: Recorder) -> Any:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
        toy_engine.workload(engine)
        engine.step()
        return engine

    def newest() -> int:
        return len(open_trace(path).events) - 1

    curves = page.locator(".curves")
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = begun(sink)
        watched.open(trace="live")
        page.wait_for_url("**/live**")  # a trace being written opens there
        canvas = watched.map_at(newest())
        for node in (canvas, curves):
            node.evaluate("n => { n.dataset.mine = 'yes'; }")
        for _ in range(5):
            engine.step()
            watched.map_at(newest())
            expect(curves).to_have_attribute("data-seq", str(newest()))
        assert canvas.get_attribute("data-mine") == curves.get_attribute("data-mine") == "yes"
        page.locator(".st-key-play button:visible").click()
        expect(page.locator(".kv-pill")).to_contain_text("paused")
        stopped = int(page.locator(".map").get_attribute("data-seq") or -1)
        watched.at(seq=stopped)
        engine.step()
        last = newest()
        expect(curves).to_have_attribute("data-seq", str(last))  # they go on
        curves.locator("canvas").click(position={"x": 56, "y": 60})  # back to the beginning
        expect(page.locator(".map")).not_to_have_attribute("data-seq", str(stopped))
        assert int(page.locator(".map").get_attribute("data-seq") or -1) < stopped
        page.locator(".st-key-play button:visible").click()
        watched.map_at(last)
        watched.shot("live")
    expect(page.locator(".kv-pill")).to_contain_text(f"event {last:,}")
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES), overwrite=True) as sink:
        engine = begun(sink)
        watched.open(trace="live")
        watched.map_at(newest())
        engine.step()
        watched.map_at(newest())
        expect(page.locator(".kv-pill")).to_contain_text("live:")
        expect(curves).to_have_attribute("data-seq", str(newest()))
        assert curves.evaluate("c => c.kvData.x.some(Number.isNaN)")  # the gap between the two
        watched.turn_to("Overview", "")
        expect(page.get_by_text("One run was here before")).to_be_visible()
        watched.turn_to("Live and replay", "live")
        expect(page.locator(".curves")).to_have_attribute("data-cuts", "1")
        drawn = page.locator(".curves").evaluate("c => c.kvView.pieces.map(p => [!!p.gap, p.q - p.p, p.b - p.a])")
        (_, first, _), (gap, width, seconds), (_, second, _) = drawn
        assert gap
        assert seconds > 0
        assert width < first + second  # however long nobody ran, the runs have the most of the room
        watched.shot("live-restarted")


def test_a_large_live_pool_is_drawn_in_small_frames_and_zooms_into_single_blocks(watched: Any, shown: Path) -> None:
    from kvscope.engine.block_manager import BlockManager

    path, page, sizes = shown / "large.kvtrace", watched.page, list[int]()
    page.on("websocket", lambda ws: ws.on("framereceived", lambda data: sizes.append(len(data))))
    with Recorder(path, pool=PoolFacts(1 << 18, 16, 1 << 20)) as sink:
        manager = BlockManager(1 << 18, 16, sink=sink)
        manager.admit(0, list(range(100_000)))
        watched.open(page="live", trace="large")
        canvas = watched.map_at(len(open_trace(path).events) - 1)
        sizes.clear()
        for number in range(1, 4):
            manager.admit(number, list(range(number * 1000, number * 1000 + 500)))
            watched.map_at(len(open_trace(path).events) - 1)
        assert 100_000 < max(sizes) < 300_000
        canvas.hover(position={"x": 20, "y": 20})
        expect(page.locator(".area .tip")).to_contain_text("zoom in for more")
        for _ in range(12):
            page.mouse.wheel(0, -120)
        expect(page.locator(".map")).not_to_have_attribute("data-zoom", "1")
        expect(page.locator(".map")).to_have_attribute("data-near", "true")  # single blocks came
        canvas.hover(position={"x": 24, "y": 24})
        expect(page.locator(".area .tip")).to_contain_text(re.compile(r"b\d+(#1|, never)"))
        watched.shot("zoomed")
        canvas.click(position={"x": 24, "y": 24})
        expect(page.locator(".kv-head b")).to_contain_text(re.compile(r"b\d+"))


def test_serving_ends_cleanly_on_interrupt(toy_traces: dict[str, Path]) -> None:
    """`serve` says where it is, and Ctrl-C ends it and its server with exit status 0."""
    import signal
    import sys

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    code = (
        "import sys; from pathlib import Path; from kvscope.dashboard.launch import serve;"
        "sys.exit(serve(Path(sys.argv[1]), port=int(sys.argv[2]), on_ready=lambda link: print(link, flush=True)))"
    )
    argv = [sys.executable, "-c", code, str(toy_traces["clean"]), str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("http"):
        assert process.poll() is None, line
    assert line.strip() == launch.url(port=port)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.1)
    pytest.fail("the server is still listening")


def test_server_ends_with_a_command_that_is_killed(toy_traces: dict[str, Path]) -> None:
    """SIGKILL of `kvscope dashboard` leaves no server behind."""
    import sys

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [sys.executable, "-m", "kvscope", "dashboard", str(toy_traces["clean"]), "--port", str(port)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "http" not in (line := process.stderr.readline()):
        assert process.poll() is None, line
    process.kill()
    process.wait(30)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.1)
    pytest.fail("the server is still listening")
