"""Every page of the dashboard on a real trace, without a browser: Streamlit's own test runner."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from kvscope.dashboard.launch import APP
from kvscope.dashboard.numbers import factor_text, ratio_text
from kvscope.inspector.findings import check
from kvscope.inspector.measures import series, summary
from kvscope.inspector.state import state_at, tables_at
from kvscope.traces import PoolFacts, Recorder, open_trace

PAGES = ("overview", "blocks", "biography", "requests", "sharing", "events", "findings")

Open = Callable[..., AppTest]


@pytest.fixture
def open_app(monkeypatch: pytest.MonkeyPatch) -> Open:
    """Run the app once, started with these traces and opened at this link."""

    def run(*traces: Path, start: tuple[str, ...] = (), **link: str) -> AppTest:
        arguments = [part for path in traces for part in ("--trace", str(path))]
        monkeypatch.setattr(sys, "argv", [str(APP), *arguments, *start])
        app = AppTest.from_file(str(APP), default_timeout=120)
        for name, value in link.items():
            app.query_params[name] = value
        return app.run()

    return run


def _link(app: AppTest, name: str) -> str:
    """A value of the app's link (some versions of Streamlit give it as a list)."""
    value = app.query_params[name]
    return value if isinstance(value, str) else value[-1]


def _figure(app: AppTest, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(app.get("plotly_chart")[number].proto.spec)
    return found


def _array(value: Any) -> np.ndarray:
    """A Plotly array as it travels: a list, or base64 with its type."""
    if isinstance(value, dict):
        import base64

        return np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
    return np.asarray(value)


def _html(app: AppTest) -> str:
    return "\n".join(str(element.proto.body) for element in app.get("html"))


def _stat(app: AppTest, label: str) -> str:
    text = _html(app)
    return text.split(f'data-stat="{label}"')[1].split("<dd><span>")[1].split("</span>")[0]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", ["clean", "missing-copy"])
def test_every_page_renders(open_app: Open, toy_traces: dict[str, Path], page: str, name: str) -> None:
    app = open_app(toy_traces[name], page=page, seq="600", block="6")
    assert not app.exception
    assert not [e.value for e in app.error if "failed" in e.value]
    assert "event 600 of" in _html(app)


def test_stat_row_is_the_summary(open_app: Open, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["clean"])
    facts = summary(trace)
    app = open_app(toy_traces["clean"])
    assert _stat(app, "Pool") == "32"
    assert _stat(app, "Peak held") == str(facts["held_blocks"]["peak"])
    assert _stat(app, "Utilization") == ratio_text(facts["utilization"]["mean"])
    assert _stat(app, "Sharing") == factor_text(facts["sharing_factor"]["mean"])
    assert _stat(app, "Prefix hits") == ratio_text(facts["prefix_hit_rate"])
    assert _stat(app, "COW copies") == str(facts["cow_copies"]) == "2"
    assert _stat(app, "Preemptions") == str(facts["preemptions"])
    assert _stat(app, "Findings") == "0"


def test_occupancy_figure_is_the_series(open_app: Open, toy_traces: dict[str, Path]) -> None:
    measured = series(open_trace(toy_traces["clean"]))
    by_name = {t.get("name"): t for t in _figure(open_app(toy_traces["clean"]))["data"]}
    assert np.array_equal(_array(by_name["private"]["y"]), measured.private)
    assert np.array_equal(_array(by_name["free"]["y"]), measured.free)
    assert len(_array(by_name["evict"]["x"])) == int(measured.evictions[-1])


def test_findings_page_tells_the_report(open_app: Open, toy_traces: dict[str, Path]) -> None:
    result = check(open_trace(toy_traces["missing-copy"]))
    first = result.findings[0]
    app = open_app(toy_traces["missing-copy"], page="findings")
    assert f"{len(result.findings)} findings" in app.markdown[0].value
    report = app.code[0].value
    assert first.code in report
    assert first.title in report
    app.button(key="jump_0").click().run()
    assert not app.exception
    assert _link(app, "seq") == str(first.seq)
    assert _link(app, "block") == str(first.block)


def test_clean_trace_has_a_clean_findings_page(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["clean"], page="findings")
    assert "No rule is broken" in app.success[0].value
    assert "1,493 events" in app.success[0].value


def test_moving_through_time(open_app: Open, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["clean"])
    app = open_app(toy_traces["clean"], page="sharing", seq="600")
    app.button(key="event_on").click().run()
    assert _link(app, "seq") == "601"
    app.button(key="event_back").click().run()
    app.button(key="event_back").click().run()
    assert _link(app, "seq") == "599"
    app.button(key="step_on").click().run()
    seq = _link(app, "seq")
    steps = trace.events["step"]
    assert steps[int(seq)] == steps[599] + 1
    assert steps[int(seq) + 1] == steps[599] + 2  # the end of that step
    app.number_input(key="seq_box").set_value(700).run()
    assert app.slider(key="seq_slide").value == 700
    entries = sum(len(row) for row in tables_at(trace, 700).values())
    assert _stat(app, "Table entries") == str(entries)


def test_ends_of_time(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["clean"], seq="0")
    assert app.button(key="event_back").disabled
    assert app.button(key="step_back").disabled
    app = open_app(toy_traces["clean"], seq="999999")
    assert _link(app, "seq") == "1492"
    assert app.button(key="event_on").disabled


def test_launcher_says_where_to_open(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["clean"], start=("--seq", "44", "--block", "9"))
    assert (_link(app, "seq"), _link(app, "block")) == ("44", "9")


def test_biography_names_holders_and_slots(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["missing-copy"], page="biography", seq="600", block="6")
    said = "\n".join(m.value for m in app.markdown)
    assert "Held by lighthouse as its block 3" in said
    assert "more than one sequence: slots 2-15" in app.warning[0].value
    app.number_input(key="block_box").set_value(31).run()
    assert _link(app, "block") == "31"


def test_event_page_counts_the_pool(open_app: Open, toy_traces: dict[str, Path]) -> None:
    counts = state_at(open_trace(toy_traces["clean"]), 700).counts
    app = open_app(toy_traces["clean"], page="events", seq="700")
    assert {name: int(_stat(app, name.replace("_", " "))) for name in counts} == counts


def test_sites_and_places_of_a_bad_link_are_ignored(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["clean"], page="nowhere", seq="x", block="5000")
    assert not app.exception
    assert _link(app, "seq") == "1492"
    assert "block" not in app.query_params


class TestWhichTrace:
    def test_choice_between_two(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(*toy_traces.values(), seq="100")
        assert app.selectbox(key="trace_box").options == ["clean", "missing-copy"]
        app.selectbox(key="trace_box").set_value("missing-copy").run()
        assert _link(app, "trace") == "missing-copy"
        assert _stat(app, "COW copies") == "0"

    def test_link_names_one(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(*toy_traces.values(), trace="missing-copy")
        assert _stat(app, "COW copies") == "0"

    @pytest.mark.parametrize("name", ["/etc", "../secret", "other"])
    def test_link_cannot_name_what_was_not_given(self, open_app: Open, toy_traces: dict[str, Path], name: str) -> None:
        app = open_app(toy_traces["clean"], trace=name)
        assert "is not shown here" in app.error[0].value
        assert "data-stat" not in _html(app)

    def test_full_path_in_a_link_is_no_way_in(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(toy_traces["clean"], trace=str(toy_traces["missing-copy"]))
        assert "is not shown here" in app.error[0].value

    def test_folder_of_traces(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(toy_traces["clean"].parent)
        assert app.selectbox(key="trace_box").options == ["clean", "missing-copy"]

    def test_no_trace_at_all(self, open_app: Open, tmp_path: Path) -> None:
        app = open_app(tmp_path)
        assert not app.exception
        assert "no trace to show" in app.error[0].value


class TestPoorTraces:
    def test_not_a_trace_is_one_line(self, open_app: Open, tmp_path: Path) -> None:
        (tmp_path / "x.kvtrace").mkdir()
        (tmp_path / "x.kvtrace" / "manifest.json").write_text("no json")
        app = open_app(tmp_path / "x.kvtrace")
        assert not app.exception
        assert len(app.error) == 1
        assert "\n" not in app.error[0].value

    def test_missing_folder_is_one_line(self, open_app: Open, tmp_path: Path) -> None:
        app = open_app(tmp_path / "gone.kvtrace")
        assert not app.exception
        assert len(app.error) == 1

    @pytest.mark.parametrize("page", PAGES)
    def test_empty_trace(self, open_app: Open, tmp_path: Path, page: str) -> None:
        with Recorder(tmp_path / "empty.kvtrace", pool=PoolFacts(8, 4, 64)):
            pass
        app = open_app(tmp_path / "empty.kvtrace", page=page)
        assert not app.exception
        assert not app.error
        assert "no event yet" in app.info[0].value

    def test_torn_trace_shows_what_is_left_and_says_so(
        self, open_app: Open, toy_traces: dict[str, Path], tmp_path: Path
    ) -> None:
        torn = tmp_path / "torn.kvtrace"
        shutil.copytree(toy_traces["clean"], torn)
        (segment,) = torn.glob("*.arrows")
        segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])
        app = open_app(torn)
        assert not app.exception
        assert len(app.warning) >= 1

    @pytest.mark.parametrize("page", PAGES)
    def test_bare_pool_without_requests(self, open_app: Open, tmp_path: Path, page: str) -> None:
        from kvscope.engine.block_manager import BlockManager

        with Recorder(tmp_path / "bare.kvtrace", pool=PoolFacts(8, 4)) as sink:
            manager = BlockManager(8, 4, sink=sink)
            manager.admit(0, list(range(6)))
            manager.write(0, 0, 6)
            manager.free(0)
        app = open_app(tmp_path / "bare.kvtrace", page=page, block="0")
        assert not app.exception
        assert not app.error


def test_overwritten_trace_is_read_anew(open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
    path = toy_engine.record(tmp_path, num_blocks=32)
    app = open_app(path)
    assert _stat(app, "Pool") == "32"
    shutil.rmtree(path)
    toy_engine.record(tmp_path, num_blocks=48)
    app.run()
    assert _stat(app, "Pool") == "48"


def test_live_trace_can_be_followed(open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "live.kvtrace"
    with Recorder(path, pool=PoolFacts(32, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=32, block_size=16)
        toy_engine.workload(engine)
        for _ in range(5):
            engine.step()
        app = open_app(path)
        before = int(_link(app, "seq"))
        app.toggle(key="follow").set_value(True).run()
        assert not app.exception
        assert len(app.get("plotly_chart")) == 0  # it would be built anew at each refresh
        for _ in range(5):
            engine.step()
        app.run()
        said = next(c.value for c in app.caption if "events so far" in c.value)
        assert int(said.split(": ")[1].split(" ")[0].replace(",", "")) > before + 1
        engine.run()
    app.run()
    assert not app.exception
    assert not any(t.key == "follow" for t in app.toggle)
    assert _stat(app, "Findings") == "0"


def test_forks_stand_below_the_sequence_they_came_from(open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
    with Recorder(tmp_path / "forks.kvtrace", pool=PoolFacts(32, 16)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=32, block_size=16)
        for name, samples in (("first", 1), ("forked", 3), ("last", 1)):
            engine.submit(name, list(range(20)), max_tokens=4, n=samples)
        engine.run()
    figure = _figure(open_app(tmp_path / "forks.kvtrace", page="requests"))
    assert figure["layout"]["yaxis"]["ticktext"] == ["first", "forked", "forked/1", "forked/2", "last"]
    (arrow,) = [a for a in figure["layout"]["annotations"] if a.get("showarrow")]
    assert (round(arrow["ay"]), round(arrow["y"])) == (1, 2)


def test_long_traces_do_not_wait_for_the_check(
    open_app: Open, toy_traces: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvscope.dashboard import answers

    monkeypatch.setattr(answers, "QUICK_CHECK", 10)
    monkeypatch.setattr(answers, "_CHECKED", set())
    app = open_app(toy_traces["missing-copy"], page="blocks")
    assert not answers._CHECKED
    assert not app.exception
    app = open_app(toy_traces["missing-copy"])  # the overview runs it after everything else is drawn
    assert _stat(app, "Findings") == str(len(check(open_trace(toy_traces["missing-copy"])).findings))


class TestAddress:
    """The address and the session: a link is followed, a late address of the browser is not."""

    def test_a_move_is_not_undone_by_the_address_the_browser_still_has(
        self, open_app: Open, toy_traces: dict[str, Path]
    ) -> None:
        app = open_app(toy_traces["clean"], page="sharing", seq="600")
        app.query_params["seq"] = "600"
        app.button(key="event_on").click().run()
        app.query_params["seq"] = "600"  # the next message left before the browser heard of 601
        app.number_input(key="seq_box").set_value(900).run()
        assert _link(app, "seq") == "900"
        app.query_params["seq"] = "601"
        app.run()  # something else on the page was touched
        assert _link(app, "seq") == "900"

    def test_a_link_in_the_same_tab_is_followed(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(toy_traces["clean"], page="sharing", seq="600")
        app.query_params["seq"] = "44"
        app.run()
        assert app.number_input(key="seq_box").value == 44

    def test_link_to_a_place_in_another_trace(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(*toy_traces.values(), trace="clean", seq="600", block="3")
        app.query_params["trace"], app.query_params["seq"] = "missing-copy", "44"
        app.run()
        assert (_link(app, "trace"), _link(app, "seq")) == ("missing-copy", "44")

    def test_choosing_another_trace_forgets_the_place(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(*toy_traces.values(), trace="clean", seq="600", block="3")
        app.selectbox(key="trace_box").set_value("missing-copy").run()
        assert _link(app, "seq") == "1467"
        assert "block" not in app.query_params
