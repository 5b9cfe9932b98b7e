"""Every page of the dashboard on a real trace, without a browser: Streamlit's own test runner."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from kvscope.dashboard.launch import APP
from kvscope.dashboard.markup import plain, ranges
from kvscope.dashboard.numbers import count_text, factor_text, ratio_text
from kvscope.dashboard.sidebar import GONE
from kvscope.engine.block_manager import BlockManager
from kvscope.inspector import cli
from kvscope.inspector.biography import biography
from kvscope.inspector.findings import check, group
from kvscope.inspector.measures import series, summary
from kvscope.inspector.source import Names
from kvscope.inspector.state import BlockState, holders, state_at, tables_at
from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace
from kvscope.traces import reader as trace_reader

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"

PAGES = (
    "overview",
    "live",
    "waste",
    "compare",
    "whatif",
    "doctor",
    "blocks",
    "biography",
    "requests",
    "sharing",
    "events",
    "findings",
    "runs",
    "overhead",
)

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


def _middle(trace: TraceReader) -> int:
    """An event in the middle of the trace with events and steps on both sides."""
    return int(trace.seqs[len(trace.seqs) // 2])


def _last(path: Path) -> int:
    return int(open_trace(path).seqs[-1])


def _fullest(path: Path) -> int:
    held = series(open_trace(path)).held_blocks
    return int(open_trace(path).seqs[int(np.argmax(held))])


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("name", ["clean", "missing-copy"])
def test_every_page_renders(open_app: Open, toy_traces: dict[str, Path], page: str, name: str) -> None:
    seq = _middle(open_trace(toy_traces[name]))
    app = open_app(toy_traces[name], page=page, seq=str(seq), block="6")
    assert not app.exception
    assert not [e.value for e in app.error if "failed" in e.value]
    whole_run = page in ("compare", "whatif", "doctor", "runs", "overhead")  # no event is chosen there
    assert (f"event {count_text(seq)} of" in _html(app)) is not whole_run


def test_every_page_renders_while_the_run_goes_on(open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
    """Sequences have no end yet, some wait, and nothing says how much they will say."""
    path = tmp_path / "going-on.kvtrace"
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
        toy_engine.workload(engine)
        for _ in range(6):
            engine.step()
        app = open_app(path)
        for page in PAGES:
            app.query_params["page"] = page
            app.run()
            assert not app.exception, page
            assert not [e.value for e in app.error], page


def test_stat_row_is_the_summary(open_app: Open, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["clean"])
    facts = summary(trace)
    app = open_app(toy_traces["clean"])
    assert _stat(app, "Pool") == str(trace.num_blocks)
    assert _stat(app, "Peak held") == str(facts["held_blocks"]["peak"])
    assert _stat(app, "Utilization") == ratio_text(facts["utilization"]["mean"])
    assert _stat(app, "Sharing") == factor_text(facts["sharing_factor"]["mean"])
    assert _stat(app, "Prefix hits") == ratio_text(facts["prefix_hit_rate"])
    assert _stat(app, "COW copies") == str(facts["cow_copies"])
    assert facts["cow_copies"] > 0  # the trace has something to show
    assert _stat(app, "Preemptions") == str(facts["preemptions"])
    assert _stat(app, "Findings") == str(len(check(trace).findings)) == "0"


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
    assert _stat(app, "Findings") == str(len(result.findings))
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
    result = check(open_trace(toy_traces["clean"]))
    assert _stat(app, "Events") == count_text(result.events)


def test_moving_through_time(open_app: Open, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["clean"])
    begin = _middle(trace)
    before, _, after = (int(n) for n in trace.seqs[len(trace.seqs) // 2 - 1 :][:3])
    app = open_app(toy_traces["clean"], page="sharing", seq=str(begin))
    app.button(key="event_on").click().run()
    assert _link(app, "seq") == str(after)
    app.button(key="event_back").click().run()
    app.button(key="event_back").click().run()
    assert _link(app, "seq") == str(before)
    app.button(key="step_on").click().run()
    steps = trace.events["step"]
    following = steps[steps > steps[trace.seqs == before]].min()
    assert _link(app, "seq") == str(trace.seqs[steps == following].max())  # the end of that step
    later = int(trace.seqs[len(trace.seqs) * 2 // 3])
    app.number_input(key="seq_box").set_value(later).run()
    assert app.slider(key="seq_slide").value == later
    entries = sum(len(row) for row in tables_at(trace, later).values())
    assert _stat(app, "Table entries") == str(entries)


def test_ends_of_time(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["clean"], seq="0")
    assert app.button(key="event_back").disabled
    assert app.button(key="step_back").disabled
    app = open_app(toy_traces["clean"], seq="999999")
    assert _link(app, "seq") == str(_last(toy_traces["clean"]))
    assert app.button(key="event_on").disabled


def test_launcher_says_where_to_open(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["clean"], start=("--seq", "44", "--block", "9"))
    assert (_link(app, "seq"), _link(app, "block")) == ("44", "9")


def test_biography_names_holders_and_slots(open_app: Open, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["missing-copy"])
    found = [f for f in check(trace).findings if f.block == check(trace).findings[0].block][-1]
    app = open_app(toy_traces["missing-copy"], page="biography", seq=str(found.seq), block=str(found.block))
    said = "\n".join(m.value for m in app.markdown)
    holder = holders(trace, found.block, found.seq)[0]
    assert f"Held by {Names(trace.facts)(holder.seq_id)} as its block {holder.lblock}" in said
    torn = [s.slot for s in biography(trace, found.block, found.seq)[-1].slots if len(s.writers) > 1]
    assert torn
    assert f"more than one sequence: slots {ranges(torn)}" in app.warning[0].value
    app.number_input(key="block_box").set_value(trace.num_blocks - 1).run()
    assert _link(app, "block") == str(trace.num_blocks - 1)


def _strip(app: AppTest) -> tuple[str, list[str]]:
    """The title of the slot strip, and what hovering over each slot says."""
    (title,) = [m.value for m in app.markdown if m.value.startswith("**Who wrote which slot**")]
    return title, [str(said) for said in _figure(app)["data"][0]["customdata"]]


class TestSlotStrip:
    """The strip shows the slots just after the chosen event, whatever is written later."""

    @pytest.mark.parametrize("page", ["biography", "blocks"])
    @pytest.mark.parametrize("name", ["clean", "missing-copy"])
    def test_is_as_full_as_the_block(self, open_app: Open, toy_traces: dict[str, Path], page: str, name: str) -> None:
        trace = open_trace(toy_traces[name])
        names = Names(trace.facts)
        whole = next(life for life in biography(trace, 6) if len(life.slots) == trace.block_size)
        writes = [event.seq for event in whole.events if event.kind == "write"]
        counts = []
        for seq in (writes[0], writes[len(writes) // 2], writes[-1]):
            app = open_app(toy_traces[name], page=page, seq=str(seq), block="6")
            title, said = _strip(app)
            assert title.endswith(f"b6#{whole.gen}, just after event {seq:,}")
            filled = int(state_at(trace, seq).fill[6])
            assert f"{filled} of {trace.block_size} slots filled" in _html(app)
            assert [slot for slot, text in enumerate(said) if text != "empty"] == list(range(filled))
            for slot in biography(trace, 6, until=seq)[-1].slots:
                assert said[slot.slot].startswith(f"{names(slot.seq_id)}, written at event {slot.seq:,}")
            counts.append(filled)
        assert counts[0] < counts[1] < counts[2] == trace.block_size

    @pytest.mark.parametrize("page", ["biography", "blocks"])
    def test_life_that_has_ended_says_when(self, open_app: Open, toy_traces: dict[str, Path], page: str) -> None:
        trace = open_trace(toy_traces["clean"])
        last_lives = [lives[-1] for block in range(trace.num_blocks) if (lives := biography(trace, block))]
        life = next(life for life in last_lives if life.end and life.slots)
        app = open_app(toy_traces["clean"], page=page, seq=str(trace.seqs[-1]), block=str(life.block))
        title, said = _strip(app)
        assert title.endswith(f"as it was when this life ended at event {life.last_seq:,}")
        assert sum(text != "empty" for text in said) == len(life.slots)

    def test_life_that_has_not_begun_is_empty(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        life = biography(open_trace(toy_traces["clean"]), 6)[0]
        seq = life.first_seq - 1
        title, said = _strip(open_app(toy_traces["clean"], page="biography", seq=str(seq), block="6"))
        assert title.endswith(f"just after event {seq:,}: this life begins at event {life.first_seq:,}")
        assert set(said) == {"empty"}


def test_event_page_counts_the_pool(open_app: Open, toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["clean"])
    counts = state_at(trace, _middle(trace)).counts
    app = open_app(toy_traces["clean"], page="events", seq=str(_middle(trace)))
    assert counts.pop("lost") == 0
    assert {name: int(_stat(app, name.replace("_", " ").capitalize())) for name in counts} == counts
    assert 'data-stat="Lost"' not in _html(app)  # where nothing is


def _said(app: AppTest) -> str:
    return "\n".join(warning.value.replace("\\", "") for warning in app.warning)


def test_a_bad_link_is_corrected_and_says_so(open_app: Open, toy_traces: dict[str, Path]) -> None:
    path, trace = toy_traces["clean"], open_trace(toy_traces["clean"])
    app = open_app(path, page="nowhere", seq="x", block="5000")
    assert not app.exception
    assert _link(app, "seq") == str(_fullest(path))
    assert "block" not in app.query_params
    assert "There is no page 'nowhere': the overview is shown." in _said(app)
    assert "Event 'x' was asked for, which is no number" in _said(app)
    assert f"Block 5,000 was asked for: the pool has blocks 0 to {trace.num_blocks - 1}" in _said(app)
    app = open_app(path, page="blocks", seq="99999999", block="y")
    assert f"clean ends at event {_last(path):,}, which is shown" in _said(app)
    assert "Block 'y' was asked for, which is no number: the link is followed without it" in _said(app)
    assert app.run().warning  # until somebody moves
    app.button(key="event_back").click().run()
    assert not app.warning
    app = open_app(path, page="blocks", seq="-5")
    assert "begins with event 0" in _said(app)
    assert not open_app(path, page="blocks", seq="5", block="1").warning
    app = open_app(*toy_traces.values(), page="compare", other="nobody")
    assert "'nobody' was asked for to compare with" in _said(app)


def test_a_trace_opens_where_it_has_something_to_show(open_app: Open, toy_traces: dict[str, Path]) -> None:
    app = open_app(toy_traces["clean"], page="blocks")
    assert _link(app, "seq") == str(_fullest(toy_traces["clean"]))
    first = check(open_trace(toy_traces["missing-copy"])).findings[0]
    app = open_app(toy_traces["missing-copy"], page="blocks")
    assert (_link(app, "seq"), _link(app, "block")) == (str(first.seq), str(first.block))


def test_a_trace_that_cannot_be_read_is_told_beside_the_one_that_can(
    open_app: Open, toy_traces: dict[str, Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.kvtrace"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}")
    app = open_app(toy_traces["clean"], broken, page="compare")
    assert not app.exception
    assert "is not a trace" in app.error[0].value


def test_regions_tell_their_largest_hole(open_app: Open) -> None:
    trace = open_trace(SAMPLES / "fragmentation.kvpack")
    pieces = summary(trace)["holes"]
    first = pieces["first"]
    app = open_app(SAMPLES / "fragmentation.kvpack")
    assert _link(app, "seq") == str(first["seq"])  # where it is opened: at what it is about
    assert _stat(app, "Fragmentation").startswith(ratio_text(pieces["mean"]))
    assert (int(_stat(app, "Largest hole")), first["free"], first["needed"]) == (15, 20, 20)
    assert "needs 20 blocks side by side, 20 are free, the largest hole has 15" in _html(app)
    state = state_at(trace, first["seq"])
    app = open_app(SAMPLES / "fragmentation.kvpack", page="waste", seq=str(first["seq"]))
    runs = "".join("F" if code == BlockState.FREE else "-" for code in state.state).split("-")
    assert int(_stat(app, "Largest hole")) == max(map(len, runs))
    assert state.counts["free"] > 0


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
        newest = sorted(toy_traces, key=lambda name: -open_trace(toy_traces[name]).manifest["clock"]["wall_ns"])
        assert app.selectbox(key="trace_box").options == newest
        assert app.selectbox(key="trace_box").label == "Trace, newest first"
        assert app.selectbox(key="trace_box").value == newest[0]
        app = open_app(*toy_traces.values())
        assert app.selectbox(key="trace_box").label == "Trace, in the order given"

    def test_a_folder_without_a_trace_waits_for_one(self, open_app: Open, tmp_path: Path) -> None:
        app = open_app(tmp_path)
        assert not app.exception
        assert not app.error
        assert f"No trace yet in {plain(str(tmp_path))}" in app.markdown[-1].value
        assert str(tmp_path / "run.kvtrace") in app.code[0].value
        (tmp_path / "begun.kvtrace").mkdir()  # the first thing that a recorder does
        assert "No trace yet" in app.run().markdown[-1].value
        shutil.copy(SAMPLES / "healthy.kvpack", tmp_path)
        app.run()
        assert _stat(app, "Pool") == "160"

    def test_a_trace_that_appears_is_offered_and_takes_no_ones_place(self, open_app: Open, tmp_path: Path) -> None:
        shutil.copy(SAMPLES / "healthy.kvpack", tmp_path)
        app = open_app(tmp_path)
        assert not app.toast
        shutil.copy(SAMPLES / "prefix-sharing.kvpack", tmp_path)  # begun later: at the top of the list
        app.run()
        assert "prefix" in app.toast[0].value
        assert _stat(app, "Pool") == "160"
        assert app.selectbox(key="trace_box").options == ["prefix-sharing", "healthy"]
        assert app.selectbox(key="trace_box").value == "healthy"
        assert not app.run().toast


class TestResults:
    """Property runs beside a trace, and alone."""

    def test_the_counterexample_is_shown(self, open_app: Open, toy_traces: dict[str, Path], tmp_path: Path) -> None:
        found = {"code": "KV006", "name": "write-while-shared", "why": "held by two", "program": "def test(): ..."}
        run = {"schema": "kvscope-fuzz/1", "target": "a:b", "verdict": "finding", "examples": 8, "finding": found}
        (tmp_path / "fuzz.json").write_text(json.dumps(run))
        (tmp_path / "torn.json").write_text("{")
        app = open_app(toy_traces["clean"], start=("--results", str(tmp_path)), page="runs")
        assert not app.exception
        assert app.code[0].value == "def test(): ..."
        assert "neither JSON nor XML" in app.warning[0].value
        assert _stat(app, "With a finding") == "1"
        alone = open_app(tmp_path)  # no trace at all: it opens at the runs
        assert not alone.exception
        assert alone.code[0].value == "def test(): ..."


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
        assert ("No property run" if page == "runs" else "no event yet") in app.info[0].value

    def test_torn_trace_shows_what_is_left_and_says_so(
        self, open_app: Open, toy_traces: dict[str, Path], tmp_path: Path
    ) -> None:
        torn = tmp_path / "torn.kvtrace"
        shutil.copytree(toy_traces["clean"], torn)
        events = len(open_trace(torn).events)
        app = open_app(torn)
        assert not app.error
        (segment,) = torn.glob("*.arrows")
        segment.write_bytes(segment.read_bytes()[: segment.stat().st_size // 2])
        app.run()  # it is cut while it is looked at
        assert not app.exception
        assert len(app.warning) >= 1
        lost = events - len(open_trace(torn).events)
        assert 0 < lost <= events
        some = "all" if lost == events else f"{lost:,} of"
        assert f"Damaged: {some}" in app.error[0].value.replace("\\", "")
        assert f"{lost:,}" in app.error[0].value.replace("\\", "")

    @pytest.mark.parametrize("page", ["overview", "requests", "waste", "findings", "whatif"])
    @pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
    def test_broken_facts_are_said_in_red(
        self, open_app: Open, toy_traces: dict[str, Path], tmp_path: Path, how: str, page: str
    ) -> None:
        broken = tmp_path / "broken.kvtrace"
        shutil.copytree(toy_traces["clean"], broken)
        facts = broken / "facts.jsonl"
        told = facts.read_bytes()
        if how == "gone":
            facts.unlink()
        else:
            facts.write_bytes(told[: len(told) // 2] if how == "cut" else told[:40] + b"#" + told[41:])
        app = open_app(broken, page=page)
        assert not app.exception
        (said,) = [e.value.replace("\\", "") for e in app.error if "Damaged" in e.value.replace("\\", "")]
        said_of = {"gone": "is missing", "cut": "the last record is torn", "flipped": "1 damaged record is left out"}
        assert f"Damaged: facts.jsonl{' ' if how == 'gone' else ': '}{said_of[how]}." in said

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

    @pytest.mark.parametrize("how", ["lost", "let go", "let go, going on", "let go, long"])
    def test_the_first_events_are_gone(
        self, open_app: Open, toy_engine: Any, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every page, of a trace that was damaged and of one whose recorder keeps the newest events."""
        path, limit = tmp_path / "rest.kvtrace", None if how == "lost" else 1 << 16
        sink = Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES), sealing="inline", hot_rows=512,
                        seal_rows=250, max_batches=4, max_bytes=limit)  # fmt: skip
        with sink:
            engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
            for _ in range(12):
                toy_engine.workload(engine)
                engine.run()
            if how == "let go, going on":
                self._all_pages(open_app(path), path, said="were let go")
        if how == "lost":
            for gone in path.glob("events-00000.*"):
                gone.unlink()
        if how == "let go, long":
            monkeypatch.setattr(trace_reader, "SETTLED_ROWS", 100)
        self._all_pages(open_app(path), path, said="missing" if how == "lost" else "were let go")

    def _all_pages(self, app: AppTest, path: Path, said: str) -> None:
        assert open_trace(path).gaps[0][0] == 0
        for page in PAGES:
            app.query_params["page"] = page
            app.run()
            assert not app.exception, page
            assert said in _said(app) + " ".join(e.value for e in app.error), page


def test_overwritten_trace_is_read_anew(open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
    path = toy_engine.record(tmp_path, num_blocks=32)
    app = open_app(path)
    assert _stat(app, "Pool") == "32"
    shutil.rmtree(path)
    toy_engine.record(tmp_path, num_blocks=48)
    app.run()
    assert _stat(app, "Pool") == "48"


def test_a_place_in_a_run_that_was_written_over_is_gone_and_said_to_be(
    open_app: Open, toy_engine: Any, tmp_path: Path
) -> None:
    path = toy_engine.record(tmp_path, num_blocks=32)
    app = open_app(path, page="events", seq="393", block="5")
    assert not app.warning
    app.run()
    assert not app.warning
    shutil.rmtree(path)
    toy_engine.record(tmp_path, num_blocks=48)
    app.run()
    assert "Another run has been written over" in app.warning[0].value
    assert _link(app, "seq") != "393"
    app.run()
    linked = open_app(path, page="events", seq="393", block="5")
    assert (_link(linked, "seq"), _link(linked, "block"), len(linked.warning)) == ("393", "5", 0)


class TestLive:
    """A trace being written is followed, with a pause; one that is complete is played."""

    def test_opens_at_the_live_page_and_follows(self, open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
        path = tmp_path / "live.kvtrace"
        with Recorder(path, pool=PoolFacts(32, 16, toy_engine.BLOCK_BYTES)) as sink:
            engine = toy_engine.ToyEngine(sink, num_blocks=32, block_size=16)
            toy_engine.workload(engine)
            for _ in range(5):
                engine.step()
            app = open_app(path)
            assert f"live: {count_text(open_trace(path).rows)} events" in _html(app)
            assert "<dt>duration</dt>" not in _html(app)  # the sidebar is drawn once: it tells nothing that grows
            assert "seq" not in app.query_params
            assert len(app.get("plotly_chart")) == 0  # it would be built anew at each refresh
            for _ in range(5):
                engine.step()
            app.run()
            reader = open_trace(path)
            assert f"live: {count_text(reader.rows)} events" in _html(app)
            state = state_at(reader, int(reader.seqs[-1]))
            assert _stat(app, "Free") == str(state.num_free)
            assert _stat(app, "Held") == str(state.num_private + state.num_shared + state.num_in_transit)
            app.button(key="play").click().run()
            held_at = _link(app, "seq")
            assert held_at == str(_last(path))
            engine.step()
            engine.step()
            app.button(key="event_on").click().run()  # there was none when the page was drawn
            assert _link(app, "seq") == str(int(held_at) + 1)
            app.button(key="event_back").click().run()
            assert _link(app, "seq") == held_at
            measures = series(open_trace(path))
            assert measures.step[int(held_at)] < measures.step[-1]
            assert _stat(app, "Step") == str(measures.step[int(held_at)])  # of the event that map and bar are of
            assert _stat(app, "Saved") == str(measures.saved_blocks[int(held_at)])
            assert f"paused, {count_text(open_trace(path).rows)} events" in _html(app)
            app.button(key="play").click().run()
            assert "live:" in _html(app)
            engine.run()
        app.run()
        assert not app.exception
        assert _link(app, "seq") == str(_last(path))

    def test_link_to_an_event_is_not_played_over(self, open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
        path = tmp_path / "live.kvtrace"
        with Recorder(path, pool=PoolFacts(32, 16, toy_engine.BLOCK_BYTES)) as sink:
            engine = toy_engine.ToyEngine(sink, num_blocks=32, block_size=16)
            toy_engine.workload(engine)
            engine.step()
            app = open_app(path, page="live", seq="7")
            assert _link(app, "seq") == "7"
            assert "paused" in _html(app)
            engine.run()

    def test_the_link_to_a_page_that_follows_names_no_event(
        self, open_app: Open, toy_engine: Any, tmp_path: Path
    ) -> None:
        """With one, the page would change the address at once: Back would lead to it and not to the page before."""

        def link(app: AppTest) -> dict[str, str]:
            (found,) = (e.proto for e in app.get("page_link") if e.proto.page.strip("/") == "live")
            return dict(parse_qsl(found.query_string))

        path = tmp_path / "live.kvtrace"
        with Recorder(path, pool=PoolFacts(32, 16, toy_engine.BLOCK_BYTES)) as sink:
            engine = toy_engine.ToyEngine(sink, num_blocks=32, block_size=16)
            toy_engine.workload(engine)
            engine.step()
            app = open_app(path, page="events", seq="7")
            assert "seq" not in link(app)
            app.query_params["page"] = "live"
            app.run()
            app.button(key="play").click().run()
            assert "paused" in _html(app)
            at = link(app)["seq"]
            app.query_params["page"] = "events"
            app.run()
            assert link(app)["seq"] == at
            engine.run()

    def test_another_run_in_the_same_folder_is_taken_up(self, open_app: Open, toy_engine: Any, tmp_path: Path) -> None:
        path = tmp_path / "live.kvtrace"
        counts, app = [], None
        for blocks in (32, 48):
            with Recorder(path, pool=PoolFacts(blocks, 16, toy_engine.BLOCK_BYTES), overwrite=True) as sink:
                engine = toy_engine.ToyEngine(sink, num_blocks=blocks, block_size=16)
                toy_engine.workload(engine)
                engine.step()
                app = open_app(path) if app is None else app.run()
                assert not app.exception
                counts.append(int(_html(app).split("of ")[1].split(",")[0]))
        assert counts == [32, 48]

    def test_recorded_trace_is_played_to_its_end(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(toy_traces["clean"], page="live", seq="0")
        assert "<dt>duration</dt>" in _html(app)
        assert "event 0" in _html(app)
        app.selectbox(key="speed").set_value(100_000).run()
        app.button(key="play").click().run()
        for _ in range(600):
            if "seq" in app.query_params and _link(app, "seq") == str(_last(toy_traces["clean"])):
                break
            app.run()
        assert _link(app, "seq") == str(_last(toy_traces["clean"]))
        assert not app.exception
        assert app.button(key="play").label == "Play"

    def test_numbers_are_those_of_the_event(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        trace = open_trace(toy_traces["clean"])
        seq = _middle(trace)
        app = open_app(toy_traces["clean"], page="live", seq=str(seq))
        measured = series(trace)
        assert _stat(app, "Saved") == str(measured.saved_blocks[seq])
        assert _stat(app, "Tail waste") == ratio_text(float(measured.tail_waste[seq]))
        assert _stat(app, "Step") == str(measured.step[seq])


def _areas(figure: dict[str, Any]) -> dict[str, np.ndarray]:
    return {t["name"]: _array(t["y"]) for t in figure["data"] if t.get("stackgroup") == "pool"}


@pytest.mark.parametrize("name", ["leak", "reserved", "paged", "fragmentation", "prefix-sharing"])
def test_the_first_picture_of_a_sample_makes_its_point(open_app: Open, name: str) -> None:
    """What is lost, empty or in holes is a hatched layer with words on it; the stack adds up to the pool."""
    app = open_app(SAMPLES, trace=name)
    shown = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
    picture = next(figure for figure in shown if _areas(figure))
    areas = _areas(picture)
    trace = open_trace(SAMPLES / f"{name}.kvpack")
    measured = series(trace)
    np.testing.assert_allclose(sum(areas.values()), trace.num_blocks)
    hatched = [t["name"] for t in picture["data"] if t.get("fillpattern", {}).get("shape")]
    words = " ".join(note["text"] for note in picture["layout"].get("annotations", ()))
    bars = [figure for figure in shown if figure["layout"].get("barmode") == "stack"]
    if name == "leak":
        assert hatched == ["lost"]
        assert areas[hatched[0]][-1] == measured.lost_blocks[-1] == 24
        assert "24 blocks held by nobody" in words
    elif name == "prefix-sharing":
        (pair,) = bars
        with_it, without = (sum(_array(t["y"])[i] for t in pair["data"]) for i in (0, 1))
        assert without - with_it == measured.saved_blocks.max()
        assert with_it <= trace.num_blocks < without
        assert any("saves up to 5.5 times the pool" in m.value for m in app.markdown if "pool over time" in m.value)
        assert not hatched
        return
    elif name == "fragmentation":
        assert hatched == ["free, in smaller holes"]
        assert hatched[0] in words
        strip = next(figure for figure in shown if "the largest hole" in [t.get("name") for t in figure["data"][:3]])
        pieces = {t["name"]: _array(t["x"]) for t in strip["data"]}
        assert sum(int(n.sum()) for n in pieces.values()) == trace.num_blocks
        assert pieces["the largest hole"].tolist() == [15]  # as the event's words say: needs 20, 20 are free
        assert int(pieces["free, in smaller holes"].sum()) == 5
    else:
        (pair,) = bars
        used = dict(zip(pair["data"][0]["x"], _array(pair["data"][0]["y"]).tolist(), strict=True))
        for run, share in used.items():
            assert share == pytest.approx(summary(open_trace(SAMPLES / f"{run}.kvpack"))["utilization"]["mean"])
        assert used["reserved"] < 0.25 < 0.9 < used["paged"]
        below = dict(zip(pair["layout"]["xaxis"]["tickvals"], pair["layout"]["xaxis"]["ticktext"], strict=True))
        assert below == {"paged": "paged<br>up to 21 at once", "reserved": "reserved<br>up to 8 at once"}
        assert hatched == (["reserved and empty"] if name == "reserved" else [])
    assert len(bars) == (name in ("reserved", "paged"))


def test_the_doctor_says_one_median_everywhere(open_app: Open) -> None:
    app = open_app(SAMPLES / "healthy.kvpack", page="doctor")
    lengths = summary(open_trace(SAMPLES / "healthy.kvpack"))["requests"]["length_tokens"]
    assert _stat(app, "P50 length") == f"{lengths['p50']:,.0f}" == "198"  # of 197.5
    assert "P50 length 198, block 16 slots" in _html(app)


def test_what_is_greyed_out_says_why(open_app: Open) -> None:
    app = open_app(SAMPLES / "healthy.kvpack", page="whatif")
    assert app.toggle(key="sharing").disabled
    assert app.selectbox(key="policy").disabled
    (why,) = [c.value for c in app.caption if "makes no difference here" in c.value]
    assert "each request has one sample" in why
    assert "the same priority" in why


def test_what_if_draws_what_tells_the_rows_apart(open_app: Open) -> None:
    """Equal bars of how many run at once say nothing; what is empty of the memory they hold does."""
    roomy = open_app(SAMPLES / "garbled-race.kvpack", page="whatif", reserving="off")
    assert [trace["name"] for trace in _figure(roomy)["data"]] == ["holds tokens", "empty"]
    assert any("As many sequences run at once" in c.value for c in roomy.caption)
    short = open_app(SAMPLES / "paged.kvpack", page="whatif", pool="0.25")
    assert [trace["name"] for trace in _figure(short)["data"]] == ["peak", "mean"]


def test_what_if_says_what_the_run_itself_did_and_what_of_it_is_left_out(open_app: Open) -> None:
    app = open_app(SAMPLES / "prefix-sharing.kvpack", page="whatif")
    (said,) = [c.value for c in app.caption if c.value.startswith("The run itself")]
    assert said.startswith("The run itself took 1.36 s, with 5 preemptions and at most 44 sequences at once; ")
    assert "of the memory in use held tokens; 90.2 % of" in said
    assert "prefix cache, which is left out here" in said


@pytest.mark.parametrize(("event", "chosen"), [({}, "44"), ({"seq": "x"}, "44"), ({"seq": "1600"}, None)])
def test_a_block_that_is_no_number_is_not_said_to_leave_none_chosen(
    open_app: Open, event: dict[str, str], chosen: str | None
) -> None:
    app = open_app(SAMPLES / "leak.kvpack", page="blocks", block="abc", **event)
    shown = _link(app, "block") if "block" in app.query_params else None
    assert shown == chosen  # the first finding's where the trace is opened there, as without a block in the link
    assert "no block is chosen" not in _said(app)
    assert "Block 'abc' was asked for, which is no number: the link is followed without it" in _said(app)


def test_the_row_of_numbers_stands_on_property_runs_that_are_none(open_app: Open) -> None:
    app = open_app(SAMPLES / "healthy.kvpack", page="runs")
    assert (_stat(app, "Runs"), _stat(app, "Tried"), _stat(app, "Time taken")) == ("0", "0", "–")


def test_a_run_without_a_partner_is_compared_with_one_of_as_large_a_pool(open_app: Open, tmp_path: Path) -> None:
    same = tmp_path / "zebra.kvpack"
    shutil.copy(SAMPLES / "leak.kvpack", same)
    app = open_app(SAMPLES / "leak.kvpack", SAMPLES / "healthy.kvpack", same, trace="leak", page="compare")
    assert app.selectbox(key="other_box").value == "zebra"


def test_a_leak_is_seen_as_such_on_every_page(open_app: Open) -> None:
    """Lost blocks are neither private nor held by whoever took them: they stand out, with their number."""
    leak, seq = SAMPLES / "leak.kvpack", 14000
    trace = open_trace(leak)
    state, lost = state_at(trace, seq), int(series(trace).lost_blocks[seq])
    for page in ("blocks", "live", "waste", "events"):
        app = open_app(leak, page=page, seq=str(seq))
        assert _stat(app, "Lost") == str(lost) == str(state.num_lost)
        assert 'class="kv-alarm" title' in _html(app).split('data-stat="Lost"')[0].rsplit("<div", 1)[1]
    app = open_app(leak, page="waste", seq=str(seq))
    assert {t["name"] for t in _figure(app)["data"]} == {"lost", "filled", "empty"}
    assert app.dataframe[0].value["sequence"][0] == "nobody: lost, counted apart above"
    assert int(app.dataframe[0].value["blocks"][0]) == lost
    block = int(np.flatnonzero(state.state == BlockState.LOST)[0])
    app = open_app(leak, page="blocks", seq=str(seq), block=str(block))
    assert ">lost</i>" in _html(app)
    assert any(m.value.startswith("Held by nobody any more: taken by ") for m in app.markdown)


def test_a_leak_is_no_sharing(open_app: Open) -> None:
    """What a sequence left behind when it was preempted stands in no table, and saves nothing."""
    for seq in (1532, 9000, 15609):  # the block is hit once more by who left it; among many; when all have ended
        app = open_app(SAMPLES / "leak.kvpack", page="sharing", seq=str(seq))
        measured = series(open_trace(SAMPLES / "leak.kvpack"))
        assert _stat(app, "Blocks saved") == "0" == str(measured.saved_blocks[seq])
        assert _stat(app, "Table entries") == str(measured.table_entries[seq])
    app = open_app(SAMPLES / "leak.kvpack", page="live", seq="15609")
    assert _stat(app, "Saved") == "0"


def test_the_numbers_of_sharing_are_those_of_the_event_on_every_page(open_app: Open) -> None:
    """Also in the middle of a copy, where a sequence holds the old block and the new one."""
    path = SAMPLES / "prefix-sharing.kvpack"
    measured = series(open_trace(path))
    for seq in range(13200, 13206):
        app = open_app(path, page="sharing", seq=str(seq))
        told = {name: _stat(app, name) for name in ("Sharing factor", "Blocks saved")}
        app = open_app(path, page="live", seq=str(seq))
        assert told == {"Sharing factor": _stat(app, "Sharing"), "Blocks saved": _stat(app, "Saved")}
        assert told["Blocks saved"] == count_text(int(measured.saved_blocks[seq]))


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


class TestWriter:
    """Who writes a trace is asked of its lock, which ends with the process."""

    @pytest.mark.parametrize("end", ["killed", "closed"])
    def test_one_that_has_ended_is_said_at_once(self, open_app: Open, tmp_path: Path, end: str) -> None:
        path = tmp_path / "live.kvtrace"
        code = (
            "import sys; from kvscope.traces import Kind, PoolFacts, Recorder\n"
            "with Recorder(sys.argv[1], pool=PoolFacts(4, 4)) as sink:\n"
            "    sink.emit(Kind.POOL, aux=4); print(flush=True); sys.stdin.readline()"
        )
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            app = open_app(path, page="overview", seq="0")
            assert [i.value for i in app.sidebar.info] == ["Being written right now"]
            if end == "killed":
                writer.kill()
                writer.wait(60)
            else:
                writer.communicate("\n", timeout=60)
            told = AppTest.from_function(_the_writer, kwargs={"path": str(path)}).run()
            assert [*(w.value for w in told.warning), *(i.value for i in told.info)] == [
                GONE if end == "killed" else "Its writer has closed it"
            ]
        finally:
            writer.kill()
            writer.wait(60)

    def test_a_trace_that_is_shown_is_not_announced(
        self, open_app: Open, toy_traces: dict[str, Path], tmp_path: Path
    ) -> None:
        """Neither the one that is waited for nor one that is written anew."""
        path = tmp_path / "run.kvtrace"
        shutil.copytree(toy_traces["clean"], path)
        shutil.copy(SAMPLES / "healthy.kvpack", tmp_path)
        app = open_app(tmp_path, trace="run")
        (path / "manifest.json").rename(tmp_path / "aside")
        app.run()
        (tmp_path / "aside").rename(path / "manifest.json")
        assert not app.run().toast
        assert app.selectbox(key="trace_box").value == "run"


def _the_writer(path: str) -> None:
    """What the sidebar says of it at its next refresh."""
    from pathlib import Path
    from types import SimpleNamespace

    from kvscope.dashboard.sidebar import _live

    _live(SimpleNamespace(path=Path(path)))  # type: ignore[arg-type]


CHOICES = (  # page, parameter, a value, the widget that it sets, what that then is
    ("blocks", "colour", "owner", ("button_group", "map_mode"), "owner"),
    ("live", "colour", "age", ("button_group", "live_mode"), "age"),
    ("live", "speed", "500", ("selectbox", "speed"), 500),
    ("overview", "axis", "time", ("button_group", "axis"), "time"),
    ("waste", "axis", "step", ("button_group", "axis"), "step"),
    ("events", "kinds", "hit,write", ("multiselect", "event_kinds"), ["hit", "write"]),
    ("whatif", "sizes", "8,32", ("button_group", "sizes"), [8, 32]),
    ("whatif", "sizes", "none", ("button_group", "sizes"), []),
    ("whatif", "pool", "0.5", ("select_slider", "pool_times"), 0.5),
    ("whatif", "reserving", "off", ("toggle", "reserving"), False),
    ("whatif", "sharing", "off", ("toggle", "sharing"), False),
)  # fmt: skip


class TestChoices:
    """What is chosen on a page is in its address, and an address makes that choice."""

    @pytest.mark.parametrize(("page", "name", "said", "widget", "value"), CHOICES)
    def test_a_link_reproduces_what_is_chosen(
        self, open_app: Open, toy_traces: dict[str, Path], page: str, name: str, said: str, widget: Any, value: Any
    ) -> None:
        kind, key = widget
        app = open_app(toy_traces["clean"], page=page)
        assert name not in app.query_params  # the default is left out
        usual = getattr(app, kind)(key=key).value
        getattr(app, kind)(key=key).set_value(value).run()
        assert _link(app, name) == said
        again = open_app(toy_traces["clean"], page=page, **{name: said})
        assert getattr(again, kind)(key=key).value == value
        assert _link(again, name) == said
        assert not again.warning
        getattr(again, kind)(key=key).set_value(usual).run()
        assert name not in again.query_params

    @pytest.mark.parametrize(("page", "name"), sorted({(page, name) for page, name, *_ in CHOICES}))
    def test_what_a_page_does_not_have_is_said_in_a_line(
        self, open_app: Open, toy_traces: dict[str, Path], page: str, name: str
    ) -> None:
        app = open_app(toy_traces["clean"], page=page, **{name: "no such *thing*"})
        (said,) = [w.value for w in app.warning if "was asked for, which is not one of" in w.value]
        assert plain("'no such *thing*'") in said
        assert "\n" not in said
        assert name not in app.query_params
        assert not app.exception
        app.run()
        assert name not in app.query_params

    def test_it_stays_when_the_visitor_goes_elsewhere_and_comes_back(
        self, open_app: Open, toy_traces: dict[str, Path]
    ) -> None:
        app = open_app(toy_traces["clean"], page="blocks", colour="owner", seq="600")
        app.query_params["page"] = "live"
        app.run()
        assert "colour" not in app.query_params  # a refresh cannot ask for every owner
        assert not app.warning
        app.query_params["page"] = "blocks"
        app.run()
        assert _link(app, "colour") == "owner"
        assert app.button_group(key="map_mode").value == "owner"

    def test_an_address_that_is_late_undoes_no_choice(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        app = open_app(toy_traces["clean"], page="blocks", colour="owner")
        app.query_params["colour"] = "owner"
        app.button_group(key="map_mode").set_value("age").run()
        assert _link(app, "colour") == "age"
        app.query_params["colour"] = "owner"  # the next message left before the browser heard of it
        app.run()
        assert _link(app, "colour") == "age"

    def test_a_part_of_many_lanes_and_one_of_several_runs(self, open_app: Open, tmp_path: Path) -> None:
        app = open_app(SAMPLES, page="requests", trace="leak", part="7")
        assert "part" not in app.query_params  # it has one
        for name in ("a", "b"):
            suite = f'<testsuite name="{name}" tests="1"><testcase name="t"/></testsuite>'
            (tmp_path / f"{name}.xml").write_text(suite)
        app = open_app(SAMPLES, page="runs", start=("--results", str(tmp_path)))
        first, second = app.selectbox(key="property_run").options
        app.selectbox(key="property_run").select_index(1).run()
        again = open_app(SAMPLES, page="runs", start=("--results", str(tmp_path)), run=_link(app, "run"))
        assert again.selectbox(key="property_run").index == 1
        assert first != second


class TestSlider:
    """Time goes by events, steps or seconds: the slider and the pictures alike."""

    def test_by_step(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        trace = open_trace(toy_traces["clean"])
        steps, seq = trace.events["step"], _middle(trace)
        app = open_app(toy_traces["clean"], page="overview", seq=str(seq), axis="step")
        slider = app.slider(key="step_slide")
        assert (slider.min, slider.max, slider.value) == (0, steps.max(), steps[trace.seqs == seq][0])
        assert _figure(app)["layout"]["xaxis"]["title"]["text"] == "step"
        slider.set_value(3).run()
        assert _link(app, "seq") == str(trace.seqs[steps == 3].max())
        assert _link(app, "axis") == "step"

    def test_by_time(self, open_app: Open, toy_traces: dict[str, Path]) -> None:
        trace = open_trace(toy_traces["clean"])
        t_s = (trace.events["t_ns"] - trace.events["t_ns"][0]) * 1e-9
        app = open_app(toy_traces["clean"], page="waste", seq=str(_middle(trace)), axis="time")
        slider = app.slider(key="time_slide")
        assert slider.max == pytest.approx(t_s[-1])
        wanted = float(t_s[-1] * 0.3)
        slider.set_value(wanted).run()
        there = int(_link(app, "seq"))
        assert there == int(trace.seqs[t_s <= wanted][-1])
        now = app.slider(key="time_slide").value
        app.slider(key="time_slide").set_value(now + 1e-9).run()  # however far the next event is, it moves on
        assert int(_link(app, "seq")) > there

    def test_a_long_trace_goes_by_steps_and_time_too(
        self, open_app: Open, toy_traces: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trace_reader, "SETTLED_ROWS", 0)
        trace = open_trace(toy_traces["clean"])
        steps = open_trace(toy_traces["clean"]).columns(("step",))["step"]
        for name, page in (("step", "blocks"), ("time", "events")):
            app = open_app(toy_traces["clean"], page=page, seq="0", axis=name)
            slider = app.slider(key=f"{name}_slide")
            slider.set_value(3 if name == "step" else slider.max).run()
            assert _link(app, "seq") == str(int(np.flatnonzero(steps == 3)[-1]) if name == "step" else trace.rows - 1)


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
        first = check(open_trace(toy_traces["missing-copy"])).findings[0]
        assert (_link(app, "seq"), _link(app, "block")) == (str(first.seq), str(first.block))


class TestSamples:
    """Each sample makes its point on the first screen, and its broken rule is a click away."""

    @pytest.mark.parametrize(
        ("name", "code"), [("healthy", ""), ("garbled-race", "KV006"), ("leak", "KV005"), ("fragmentation", "")]
    )
    def test_first_screen_says_what_is_broken(self, open_app: Open, name: str, code: str) -> None:
        app = open_app(SAMPLES / f"{name}.kvpack")
        assert not app.exception
        assert not [e.value for e in app.error if "failed" in e.value]
        said = "\n".join(e.value for e in app.error)
        assert (code in said) if code else not said
        leak = "Is it a leak" in said or any("Is it a leak" in c.value for c in app.caption)
        assert leak
        if name == "leak":
            assert "will never come back" in said

    def test_the_guilty_write_of_the_race_is_two_clicks_away(self, open_app: Open) -> None:
        path = SAMPLES / "garbled-race.kvpack"
        first = check(open_trace(path)).findings[0]
        app = open_app(path)
        app.button(key="show_first").click().run()
        assert (_link(app, "seq"), _link(app, "block")) == (str(first.seq), str(first.block))
        app.button(key="to_biography").click().run()
        assert not app.exception
        assert f"b{first.block}#{first.gen}: write slots" in _html(app)

    def test_reserving_is_empty_where_paging_is_not(self, open_app: Open) -> None:
        shares = []
        for name in ("reserved", "paged"):
            app = open_app(SAMPLES / f"{name}.kvpack")
            shares.append(float(_stat(app, "Utilization").split(" ")[0]))
        assert shares[0] < 50 < 90 < shares[1]

    def test_what_if_speaks_of_the_own_block_size_and_turns_sharing_off(self, open_app: Open) -> None:
        app = open_app(SAMPLES / "prefix-sharing.kvpack", page="whatif")
        assert not app.exception
        assert _stat(app, "Row") == "paged, 16 slots"
        row = app.dataframe[0].value.set_index("block (slots)").loc["16"]
        own = row if row.ndim == 1 else row.iloc[0]
        assert _stat(app, "At once, mean").startswith(str(own["at once (mean)"]))
        assert f"peak {own['at once (peak)']}" in _html(app)
        used = _stat(app, "Used")
        app.toggle(key="sharing").set_value(False).run()
        assert _stat(app, "Used") != used  # two samples of each prompt: it is kept twice

    def test_a_leak_says_which_release_is_missing(self, open_app: Open) -> None:
        app = open_app(SAMPLES / "leak.kvpack")
        assert "the release of b44#1 by r6 when it was preempted (seq 443)" in app.error[0].value.replace("\\", "")

    def test_runs_of_other_requests_are_not_judged(self, open_app: Open) -> None:
        for other, judged in (("reserved", True), ("healthy", False)):
            app = open_app(
                SAMPLES / "paged.kvpack", SAMPLES / f"{other}.kvpack", trace="paged", other=other, page="compare"
            )
            said = set(app.dataframe[0].value[f"{other} is"])
            assert bool(said & {"better", "worse"}) == judged
            assert any("different requests" in c.value for c in app.caption) != judged

    def test_what_is_reserved_and_empty_has_one_name(self, open_app: Open) -> None:
        for page in ("overview", "waste"):
            app = open_app(SAMPLES / "reserved.kvpack", page=page)
            said = "\n".join(element.value for element in app.markdown) + _html(app)
            assert "Reservation waste" in said, page
            assert "Tail waste" not in said, page

    def test_two_of_them_are_compared(self, open_app: Open) -> None:
        app = open_app(
            SAMPLES / "paged.kvpack", SAMPLES / "reserved.kvpack", trace="reserved", other="paged", page="compare"
        )
        assert not app.exception
        assert _link(app, "other") == "paged"
        assert "Utilization" in _html(app)

    def test_each_has_a_partner_that_is_not_itself_and_the_telling_pair_is_a_click_away(self, open_app: Open) -> None:
        paths = [SAMPLES / f"{name}.kvpack" for name in ("healthy", "paged", "reserved")]
        app = open_app(*paths, trace="paged", other="paged", page="compare")
        assert app.selectbox(key="other_box").value == "reserved"
        assert not [b for b in app.button if b.key == "pair"]
        app = open_app(*paths, page="compare")
        assert app.selectbox(key="other_box").value == "paged"
        app.button(key="pair").click().run()
        assert not app.exception
        assert (_link(app, "trace"), _link(app, "other")) == ("reserved", "paged")

    def test_are_made_by_a_command(self, tmp_path: Path) -> None:
        from kvscope.inspector.gallery import make, named

        (sample,) = named(["garbled-race"])
        made, kept = open_trace(make(sample, tmp_path)), open_trace(SAMPLES / "garbled-race.kvpack")
        for column in ("kind", "block", "gen", "seq_id", "ref_after"):
            assert np.array_equal(made.events[column], kept.events[column]), column
        assert not [s.file for s in made.sites if s.file.startswith("/")]

    def test_say_what_is_in_them(self) -> None:
        from kvscope.inspector.gallery import SAMPLES as MADE

        leak, shared = open_trace(SAMPLES / "leak.kvpack"), open_trace(SAMPLES / "prefix-sharing.kvpack")
        found, preempted = check(leak).findings, leak.seqs[leak.events["kind"] == Kind.PREEMPT].tolist()
        times = int(series(shared).saved_blocks.max()) / shared.num_blocks
        assert [f.seq for f in found] == preempted
        assert "each preemption keeps a block" in MADE["leak"].point
        assert 2 * int(series(leak).lost_blocks[-1]) == leak.num_blocks  # half of the pool, as it says
        assert f"{times:.1f} times the pool" in MADE["prefix-sharing"].point
        for trace, name in ((leak, "leak"), (shared, "prefix-sharing")):
            assert MADE[name].point in [fact.get("point") for fact in trace.facts]


def test_text_on_a_primary_button_can_be_read_in_both_themes() -> None:
    import tomllib

    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    theme = tomllib.loads((APP.parent / ".streamlit" / "config.toml").read_text())["theme"]
    for part in ("light", "dark"):
        primary = light(theme[part].get("primaryColor", theme["primaryColor"]))
        page = light(theme[part]["backgroundColor"])
        assert 1.05 / (primary + 0.05) >= 4.5  # white on it
        assert (max(primary, page) + 0.05) / (min(primary, page) + 0.05) >= 3.5  # it on the page


def test_words_among_the_numbers_may_take_two_lines() -> None:
    from kvscope.dashboard.markup import stats

    shown = stats([("Row", "paged, 16 slots", "", ""), ("Pool", "48", "blocks", "")], alarm="Row")
    assert 'class="kv-alarm kv-long" title="" data-stat="Row"' in shown
    assert '<div title="" data-stat="Pool"' in shown


def _row(text: str) -> list[tuple[str, str, str]]:
    """The rows of numbers of a page: label, value, what stands behind it."""
    found = re.findall(r'data-stat="[^"]*"><dt>(.*?)</dt><dd><span>(.*?)</span>(?:<small>(.*?)</small>)?', text)
    return [tuple(unescape(part) for part in cell) for cell in found]  # type: ignore[misc]


def _in_terminal(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> dict[str, list[tuple[str, str, str]]]:
    """The rows of numbers of `kvscope top`."""
    capsys.readouterr()
    assert cli.run(["top", str(path), "--json", *more]) == 0
    said = json.loads(capsys.readouterr().out)
    return {which: [(c["name"], c["value"], c["unit"]) for c in said[which]] for which in ("row", "run")}


@pytest.mark.parametrize("name", ["leak", "healthy", "fragmentation", "garbled-race", "prefix-sharing", "reserved"])
def test_the_terminal_has_the_rows_of_the_pages(open_app: Open, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, values, units and their order, of the run and of any of its moments."""
    path = SAMPLES / f"{name}.kvpack"
    last = _last(path)
    app = open_app(path, page="overview")
    assert _in_terminal(capsys, path)["run"] == _row(_html(app))
    for seq in (last // 3, last // 2, last):
        app = open_app(path, page="live", seq=str(seq))
        assert _in_terminal(capsys, path, "--seq", str(seq))["row"] == _row(_html(app)), seq


def test_the_terminal_has_the_row_of_the_live_page(
    open_app: Open, toy_engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "going-on.kvtrace"
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
        toy_engine.workload(engine)
        for _ in range(6):
            engine.step()
        shown = _row(_html(open_app(path, page="live")))
        told = _in_terminal(capsys, path, "--once")["row"]
        assert [cell[0] for cell in told] == [cell[0] for cell in shown]
        assert told[:-1] == shown[:-1]  # (the page has the findings later: they are looked for beside the run)


class TestLinks:
    """What an address asks for and cannot have is told in a line each, and what it can have is followed."""

    @pytest.mark.parametrize(
        ("page", "link", "told", "kept"),
        [
            ("events", {"kinds": "write,BAD"}, "'BAD'", {"kinds": "write"}),
            ("events", {"kinds": "BAD,write,WORSE,hit"}, "'BAD', 'WORSE'", {"kinds": "hit,write"}),
            ("whatif", {"sizes": "0,8,-1,9999999,abc"}, "'0', '-1', '9999999', 'abc'", {"sizes": "8"}),
            ("whatif", {"sizes": "0,-1"}, "'0', '-1'", {}),
            ("blocks", {"seq": ["5", "7"]}, "seq=5, seq=7", {"seq": "7"}),
            ("blocks", {"colour": ["age", "owner"]}, "colour=age, colour=owner", {"colour": "owner"}),
            ("blocks", {"seq": ["5", "x"]}, "seq=5, seq=x", {}),
            ("blocks", {"seq": ["7", "7"]}, "", {"seq": "7"}),
            ("blocks", {"block": "-1"}, "Block -1", {}),
            ("blocks", {"seq": "9" * 5000}, "Event '999", {}),
            ("blocks", {"nonsense": "1", "utm_source": "mail"}, "nonsense=1, utm_source=mail", {}),
            ("blocks", {"kinds": "write"}, "kinds=write", {}),
            ("overview", {"run": "zz"}, "run=zz", {}),
            ("runs", {"run": "zz"}, "run=zz", {}),
            ("requests", {"other": "zz"}, "other=zz", {}),
            ("compare", {"other": "clean"}, "'clean' was asked for to compare with, and is the run itself", {}),
            ("compare", {"other": "zz"}, "'zz' was asked for to compare with, and is not shown here", {}),
            ("compare", {"other": "missing-copy"}, "", {"other": "missing-copy"}),
            ("compare", {}, "", {}),
            ("compare", {"axis": "time"}, "axis=time", {}),
            ("waste", {"axis": "time"}, "", {"axis": "time"}),
        ],
    )  # fmt: skip
    def test_what_cannot_be_used_is_told_and_the_rest_is_followed(
        self, open_app: Open, toy_traces: dict[str, Path], page: str, link: dict[str, Any], told: str,
        kept: dict[str, str],
    ) -> None:  # fmt: skip
        app = open_app(toy_traces["clean"], toy_traces["missing-copy"], page=page, trace="clean", **link)
        assert not app.exception
        assert bool(app.warning) is bool(told), _said(app)
        assert plain(told).replace("\\", "") in _said(app)
        assert all("\n" not in warning.value and len(warning.value) < 400 for warning in app.warning)
        assert {name: _link(app, name) for name in kept} == kept
        asked = set(link) - {"seq"} if page != "compare" else {"other"}
        assert not [name for name in asked - set(kept) if name in app.query_params]
        said = _said(app)
        assert _said(app.run()) == said  # until somebody moves

    def test_a_run_that_is_not_there_is_told_where_there_are_some(self, open_app: Open, tmp_path: Path) -> None:
        for count in (1, 2):
            (tmp_path / f"{count}.xml").write_text(
                f'<testsuite name="s{count}" tests="1"><testcase name="t"/></testsuite>'
            )
            app = open_app(SAMPLES / "leak.kvpack", page="runs", start=("--results", str(tmp_path)), run="zz")
            assert "Run 'zz' was asked for, which is not one of" in _said(app)
            assert "run" not in app.query_params

    @pytest.mark.parametrize(("typed", "said"), [(99_999_999, "ends at event"), (-3, "begins with event 0")])
    def test_a_number_typed_beyond_the_trace_is_answered(
        self, open_app: Open, toy_traces: dict[str, Path], typed: int, said: str
    ) -> None:
        app = open_app(toy_traces["clean"], page="blocks", seq="5")
        app.number_input(key="seq_box").set_value(typed).run()
        assert f"Event {typed:,} was asked for: clean {said}" in _said(app)
        assert app.number_input(key="seq_box").value == (_last(toy_traces["clean"]) if typed > 0 else 0)
        app.button(key="event_back" if typed > 0 else "event_on").click().run()
        assert not app.warning

    @pytest.mark.parametrize("typed", [99_999_999, -1, -7])
    def test_a_block_typed_beyond_the_pool_is_answered(
        self, open_app: Open, toy_traces: dict[str, Path], typed: int
    ) -> None:
        app = open_app(toy_traces["clean"], page="biography", seq="600", block="6")
        app.number_input(key="block_box").set_value(typed).run()
        assert f"Block {typed:,} was asked for" in _said(app)
        assert app.number_input(key="block_box").value is None

    def test_no_widget_of_a_place_leaves_a_typed_number_to_the_browser(
        self, open_app: Open, toy_traces: dict[str, Path]
    ) -> None:
        """A browser keeps to itself what is typed beyond a widget's limits, and says nothing."""
        for page in PAGES:
            for box in open_app(toy_traces["clean"], page=page, seq="600", block="6").number_input:
                assert (box.proto.has_min, box.proto.has_max) == (False, False), (page, box.label)

    def test_links_of_the_pages_themselves_ask_for_nothing_that_cannot_be_had(
        self, open_app: Open, toy_traces: dict[str, Path]
    ) -> None:
        """Whatever is chosen on all pages: each page's link, opened by somebody else, is told nothing about."""
        app = open_app(*toy_traces.values(), page="events", axis="step", kinds="write", seq="600", block="6")
        for page, name, value in (("blocks", "colour", "age"), ("whatif", "sizes", "8"), ("live", "speed", "500")):
            app.query_params["page"], app.query_params[name] = page, value
            app.run()
            assert not app.warning, page
        links = app.get("page_link")
        assert len(links) == len(PAGES)
        assert any("speed=500" in element.proto.query_string for element in links)
        for element in links:
            said = dict(parse_qsl(element.proto.query_string))
            page = element.proto.page.strip("/") or "overview"
            again = open_app(*toy_traces.values(), page=page, **said)
            assert not again.warning, (page, said, _said(again))


@pytest.mark.parametrize("name", ["garbled-race", "leak", "healthy", "reserved", "fragmentation", "prefix-sharing"])
def test_an_event_has_the_same_numbers_on_every_page(open_app: Open, name: str) -> None:
    """Those of the measures, wherever they stand."""
    path = SAMPLES / f"{name}.kvpack"
    measured = series(open_trace(path))
    seq = random.Random(name).randrange(len(measured))
    now = {"Held": measured.held_blocks, "Free": measured.free, "Cached": measured.cached,
           "Saved": measured.saved_blocks,
           "Lost": measured.lost_blocks, "Private": measured.private, "Shared": measured.shared,
           "Empty now": measured.empty_slots, "Table entries": measured.table_entries,
           "Blocks saved": measured.saved_blocks, "Distinct blocks": measured.table_blocks}  # fmt: skip
    told = 0
    for page in ("live", "blocks", "waste", "sharing"):
        app = open_app(path, page=page, seq=str(seq))
        html = _html(app)
        for label, values in now.items():
            if f'data-stat="{label}"' in html:
                assert _stat(app, label) == count_text(int(values[seq])), (page, label)
                told += 1
    assert told >= 12


@pytest.mark.parametrize("name", ["garbled-race", "leak", "healthy", "reserved", "fragmentation", "prefix-sharing"])
def test_a_number_that_has_another_value_on_another_page_says_of_what_it_is(open_app: Open, name: str) -> None:
    """At one event: what has one name and one small text behind it ("mean", "of 20 free") is one number."""
    path, told = SAMPLES / f"{name}.kvpack", dict[tuple[str, str], dict[str, str]]()
    for page in PAGES:
        html = _html(open_app(path, page=page))
        for label, value, small in re.findall(
            r'data-stat="([^"]+)"><dt>.*?</dt><dd><span>(.*?)</span>(?:<small>(.*?)</small>)?</dd>', html
        ):
            told.setdefault((label, small), {})[page] = value
    several = {key: values for key, values in told.items() if len(set(values.values())) > 1}
    assert len(told) >= 30
    assert several == {}


def test_a_block_that_the_pool_does_not_have_at_an_event_is_said_to_be_away(open_app: Open, tmp_path: Path) -> None:
    """A pool of 8 blocks grows by 4 and shrinks by 6: block 10 comes and goes."""
    path = tmp_path / "elastic.kvtrace"
    with Recorder(path, pool=PoolFacts(8, 4, 64)) as sink:
        manager = BlockManager(8, 4, sink=sink)
        manager.admit(1, range(20))
        manager.grow(4)
        manager.admit(2, range(100, 124))
        manager.free(1)
        manager.free(2)
        manager.shrink(6)
    kinds = open_trace(path).events["kind"]
    (grown,), (shrunk,) = np.flatnonzero(kinds == Kind.GROW), np.flatnonzero(kinds == Kind.SHRINK)
    for seq, size in ((0, 8), (grown - 1, 8), (grown, 12), (shrunk - 1, 12), (shrunk, 6), (len(kinds) - 1, 6)):
        for page in PAGES:
            app = open_app(path, page=page, seq=str(seq), block="10")
            assert not app.error, (page, seq, app.error[0].value)
            if page in ("live", "blocks", "biography"):
                away = f"the pool has {size} blocks at this event" in _html(app)
                assert away == (size < 12), (page, seq)


def test_the_finding_at_the_chosen_event_is_the_one_that_is_unfolded(open_app: Open, tmp_path: Path) -> None:
    """So that a link to it shows it, and Back from one of its events comes back to it."""
    path = tmp_path / "two.kvtrace"
    with Recorder(path, pool=PoolFacts(8, 4, 64)) as sink:
        for block in (0, 1):
            sink.emit(Kind.ALLOC, block=block, gen=1, ref_before=0, ref_after=1, fill=0, seq_id=1, lblock=block)
        sink.emit(Kind.FREE, block=0, gen=1, ref_before=0, ref_after=0)
        sink.emit(Kind.WRITE, block=7, gen=0, seq_id=1, lblock=1, aux=1 << 32)
    trace = open_trace(path)
    groups = group(check(trace).findings, trace)
    assert len(groups) > 1
    for number, found in enumerate(groups):
        app = open_app(path, page="findings", seq=str(found.first.seq))
        (unfolded,) = (at for at, one in enumerate(app.expander) if one.proto.expanded)
        first = next(
            at for at, one in enumerate(groups) if found.first.seq in (one.first.seq, *(f.seq for f in one.others))
        )
        assert unfolded == first <= number
    app = open_app(path, page="findings", seq="0")
    assert [one.proto.expanded for one in app.expander] == [True, *[False] * (len(groups) - 1)]
