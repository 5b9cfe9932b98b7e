"""Figures and the canvas payload: what is drawn is what the inspector computed, and never too many points of it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvscope.dashboard import canvas, figures, markup, palette
from kvscope.dashboard.axes import AXES, MAX_POINTS
from kvscope.dashboard.marks import MAX_MARKS, Mark
from kvscope.inspector.biography import biography
from kvscope.inspector.lanes import lanes
from kvscope.inspector.measures import Series, series
from kvscope.inspector.state import PoolState, state_at, tables_at
from kvscope.traces import MemoryRecorder


@pytest.fixture(scope="module")
def trace(toy_engine: ModuleType) -> MemoryRecorder:
    sink = MemoryRecorder(num_blocks=32, block_size=16, block_bytes=toy_engine.BLOCK_BYTES)
    engine = toy_engine.ToyEngine(sink, num_blocks=32, block_size=16)
    toy_engine.workload(engine)
    engine.run()
    return sink


@pytest.fixture(scope="module")
def measured(trace: MemoryRecorder) -> Series:
    return series(trace)


def _long(events: int, num_blocks: int = 100) -> Series:
    """A series of `events` rows with one spike of held blocks in the middle."""
    zeros = np.zeros(events, dtype=np.int32)
    private = np.arange(events, dtype=np.int32) % 7
    private[events // 2 : events // 2 + 1] = num_blocks
    names = ("shared", "in_transit", "cached", "quarantined", "table_entries", "lost", "filled_slots",
             "cow_copies", "preemptions", "refusals", "evictions", "prefix_hit_tokens",
             "prefix_query_tokens")  # fmt: skip
    return Series(
        num_blocks=num_blocks, block_size=16, block_bytes=64, blocks=np.full(events, num_blocks),
        seq=np.arange(events), t_ns=np.arange(events) * 1000,
        step=np.arange(events, dtype=np.int32) // 10, private=private, free=(num_blocks - private).astype(np.int32),
        **dict.fromkeys(names, zeros),
    )  # fmt: skip


def _traces_by_name(figure: Any) -> dict[str, Any]:
    return {t.name: t for t in figure.data}


class TestOccupancy:
    def test_stack_adds_up_to_the_pool_at_every_point(self, measured: Series) -> None:
        figure = figures.occupancy(measured)
        stacks = [np.asarray(t.y) for t in figure.data if t.stackgroup == "pool"]
        assert len(stacks) == 6
        assert (np.sum(stacks, axis=0) == 32).all()

    def test_draws_the_inspectors_values(self, measured: Series) -> None:
        shown = _traces_by_name(figures.occupancy(measured))
        assert np.array_equal(shown["shared"].y, measured.shared)
        assert np.array_equal(shown["shared"].x, measured.seq)

    def test_what_stood_for_long_is_drawn_as_it_stood(self) -> None:
        """Bursts with a quiet time behind each: its value there is the one that the burst ended with."""
        long = _long(200_000)
        burst = np.arange(200_000) // 4_999
        long = replace(long, t_ns=burst * 10**9)
        free = _traces_by_name(figures.occupancy(long, "time"))["free"]
        for one in range(int(burst[-1])):
            stood = int(long.free[np.flatnonzero(burst == one)[-1]])
            assert free.y[np.searchsorted(free.x, one + 0.5) - 1] == stood

    @pytest.mark.parametrize("axis", list(AXES))
    def test_long_traces_are_thinned_and_peaks_survive(self, axis: str) -> None:
        long = _long(200_000)
        for curve in figures.occupancy(long, axis).data:
            assert len(curve.x) <= MAX_POINTS
        if axis != "step":  # the step axis shows the end of each step, where this spike is not
            assert max(_traces_by_name(figures.occupancy(long, axis))["private"].y) == 100

    def test_step_axis_has_one_point_per_step(self, measured: Series) -> None:
        x = _traces_by_name(figures.occupancy(measured, "step"))["free"].x
        assert len(set(x.tolist())) == len(x) == len(set(measured.step.tolist()))

    def test_cursor_lies_at_the_event(self, measured: Series) -> None:
        (line,) = figures.occupancy(measured, "time", cursor=700).layout.shapes
        assert line.x0 == pytest.approx((measured.t_ns[700] - measured.t_ns[0]) * 1e-9)

    def test_marks_by_cause(self, measured: Series) -> None:
        given = [Mark("preempt", 10, "a"), Mark("finding", 20, "b"), Mark("finding", 400, "c")]
        shown = _traces_by_name(figures.occupancy(measured, marks=given))
        assert list(shown["finding"].x) == [20, 400]
        assert list(shown["preempt"].hovertext) == ["a"]

    @pytest.mark.parametrize("axis", list(AXES))
    def test_findings_that_would_hide_one_another_are_one_star_with_their_number(
        self, measured: Series, axis: str
    ) -> None:
        found = [Mark("finding", seq, f"at {seq}") for seq in (20, 21, 22, 600, 900, 901)]
        (stars,) = [t for t in figures.occupancy(measured, axis, marks=found).data if t.name.startswith("finding")]
        assert stars.name == "finding, 6 at 3 places"
        assert list(stars.text) == ["3", "", "2"]
        assert list(stars.customdata) == [20, 600, 900]
        assert stars.hovertext[0] == "at 20 and 2 more from here"

    def test_too_many_marks_are_thinned_and_it_is_said(self) -> None:
        given = [Mark("evict", i, "") for i in range(5000)]
        (shown,) = [t for t in figures.occupancy(_long(6000), marks=given).data if t.mode == "markers"]
        assert len(shown.x) <= MAX_MARKS
        assert "of 5000" in shown.name

    def test_empty_trace_gives_an_empty_figure(self) -> None:
        assert figures.occupancy(_long(0), cursor=0).layout.shapes == ()


class TestSmallMultiple:
    def test_absent_ratio_is_a_gap(self) -> None:
        (curve,) = figures.small_multiple(_long(50), "sharing_factor").data  # no table entry anywhere
        assert np.isnan(np.asarray(curve.y, dtype=float)[0])
        assert curve.connectgaps is False

    def test_thinned(self) -> None:
        (curve,) = figures.small_multiple(_long(500_000), "saved_blocks").data
        assert len(curve.x) <= MAX_POINTS


class TestLanes:
    def test_bars_cover_each_sequence_without_holes(self, trace: MemoryRecorder, measured: Series) -> None:
        found = lanes(trace)
        figure = figures.lane_chart(found, measured)
        for i, lane in enumerate(found):
            bars = sorted(
                (base, base + width)
                for t in figure.data
                if t.type == "bar"
                for y, base, width in zip(t.y, t.base, t.x, strict=True)
                if y == i
            )
            assert bars[0][0] == lane.bars[0].seq_lo
            assert all(before[1] == after[0] for before, after in itertools.pairwise(bars))

    def test_arrow_from_parent_to_child(self, trace: MemoryRecorder, measured: Series) -> None:
        found = lanes(trace)
        arrow = figures.Arrow(100, "lighthouse", "lighthouse/1", "copy")
        (drawn,) = figures.lane_chart(found, measured, arrows=[arrow]).layout.annotations
        names = [lane.name for lane in found]
        assert (round(drawn.ay), round(drawn.y)) == (names.index("lighthouse"), names.index("lighthouse/1"))

    def test_many_lanes_stay_below_the_limit(self, trace: MemoryRecorder, measured: Series) -> None:
        held = next(t for t in figures.lane_chart(lanes(trace) * 12, measured).data if "held" in t.name)
        assert len(held.x) <= MAX_POINTS


def test_block_tables_show_every_entry(trace: MemoryRecorder) -> None:
    tables, state = tables_at(trace, 500), state_at(trace, 500)
    (heat,) = figures.block_tables({f"s{s}": row for s, row in tables.items()}, state.entries).data
    shown = sorted(text for row in heat.text for text in row if text)
    assert shown == sorted(f"b{b}#{g}" for row in tables.values() for b, g in row)


def test_slot_strip_has_a_bar_per_slot() -> None:
    (bars,) = figures.slot_strip([("a", "#000000")] * 3 + [("empty", "#FFFFFF")] * 13).data
    assert len(bars.x) == 16
    assert list(bars.customdata[2:4]) == ["a", "empty"]


def _decode(payload: bytes) -> tuple[int, dict[str, Any], dict[str, np.ndarray]]:
    """Read a payload as canvas.js does."""
    n, length = np.frombuffer(payload, "<u4", 2)
    meta = json.loads(payload[8 : 8 + length])
    at, found = 8 + int(length), {}
    parts = [("colour", "u1", int(n))]
    if meta["detail"]:
        parts += [(name, kind, int(n)) for name, kind in
                  (("letter", "u1"), ("fill", "u1"), ("ref", "u1"), ("owner", "<u2"), ("gen", "<u4"))]  # fmt: skip
    if meta["window"]:
        w = meta["window"]
        count = (w["c1"] - w["c0"]) * (w["r1"] - w["r0"])
        parts += [("near_" + name, "u1", count) for name in ("colour", "letter", "fill", "ref")]
        parts += [("near_gen", "<u4", count)]
    for name, kind, count in parts:
        found[name] = np.frombuffer(payload, kind, count, at)
        at += found[name].nbytes
    assert at == len(payload)
    return int(n), meta, found


def _pool(num_blocks: int) -> PoolState:
    """A pool whose blocks are private, shared, free, private, ... at event 1,000."""
    number = np.arange(num_blocks)
    entries = np.array([1, 2, 0], dtype=np.int32)[number % 3]
    state = np.array([1, 2, 0], dtype=np.uint8)[number % 3]
    return PoolState(
        seq=1000, block_size=16, state=state, gen=np.ones(num_blocks, np.int32), entries=entries,
        lost=np.zeros(num_blocks, np.int32), leases=np.zeros(num_blocks, np.int32),
        fill=np.full(num_blocks, 16, np.int32),
        published=np.zeros(num_blocks, bool), writing=np.zeros(num_blocks, bool), last_seq=np.full(num_blocks, 990),
    )  # fmt: skip


class TestCanvas:
    def test_letters_are_the_inspectors(self, trace: MemoryRecorder) -> None:
        for seq in (0, 40, 300, 700, 1200):
            state = state_at(trace, seq)
            n, meta, found = _decode(canvas.encode(state))
            assert n == 32
            assert "".join(map(chr, found["letter"])) == "".join(state.letter(b) for b in range(32))
            assert sum(item["count"] for item in meta["legend"]) == 32
            assert (found["gen"] == state.gen).all()

    def test_a_lost_block_has_its_letter_colour_and_count_and_is_hatched(self) -> None:
        pool = _pool(300)
        state, lost = pool.state.copy(), pool.lost.copy()
        state[[3, 6]], lost[[3, 6]] = 6, 1
        _, meta, found = _decode(canvas.encode(replace(pool, state=state, lost=lost)))
        assert chr(found["letter"][3]) == "L" == meta["hatched"][0]
        assert meta["palette"][found["colour"][3]] == palette.BY_NAME["lost"].colour
        assert [item["count"] for item in meta["legend"] if item["label"] == "lost"] == [2]
        assert "2 lost" in meta["alt"]

    @pytest.mark.parametrize("mode", canvas.MODES)
    def test_every_mode_gives_each_block_a_colour_of_its_palette(self, trace: MemoryRecorder, mode: str) -> None:
        tables = tables_at(trace, 600)
        owners: dict[int, list[int]] = {}
        for seq_id, row in tables.items():
            for block, _ in row:
                owners.setdefault(block, []).append(seq_id)
        _, meta, found = _decode(canvas.encode(state_at(trace, 600), mode, owners=owners))
        assert found["colour"].max() < len(meta["palette"])
        assert len(set(found["colour"].tolist())) > 1

    def test_owner_is_named(self, trace: MemoryRecorder) -> None:
        _, meta, found = _decode(canvas.encode(state_at(trace, 600), owners={3: [8, 9]}, names={8: "haiku"}))
        assert meta["names"][found["owner"][3]] == "haiku, s9"
        assert found["owner"][4] == canvas.NO_OWNER

    def test_selected_and_marked(self, trace: MemoryRecorder) -> None:
        _, meta, _ = _decode(canvas.encode(state_at(trace, 600), selected=5, marked=[7, 7, 99]))
        assert (meta["selected"], meta["marked"]) == (5, [7])
        assert json.loads(json.dumps(meta))["alt"].startswith("Map of 32 blocks at event 600")

    @pytest.mark.parametrize("mode", ["state", "refcount", "age"])
    def test_size_stays_within_a_refresh(self, mode: str) -> None:
        for blocks in (canvas.MAX_DETAILED, canvas.MAX_DETAILED + 1, canvas.MAX_CELLS, canvas.MAX_CELLS + 1, 1 << 20):
            window = canvas.Window(0, 128, 0, 64, canvas.Tiles.of(blocks).columns if blocks > canvas.MAX_CELLS else 512)
            assert len(canvas.encode(_pool(blocks), mode, window=window)) < 300_000

    @pytest.mark.parametrize("blocks", [canvas.MAX_CELLS + 1, 3 * canvas.MAX_CELLS, 1_000_003, 1 << 20])
    def test_huge_pool_shows_the_most_telling_state_of_a_tile(self, blocks: int) -> None:
        pool = _pool(blocks)
        pool.state[blocks - 1], pool.entries[blocks - 1] = 5, 0  # the last one in quarantine
        n, meta, found = _decode(canvas.encode(pool, selected=5))
        (across, down), columns = meta["tile"], meta["columns"]
        assert n <= canvas.MAX_CELLS
        assert columns % across == 0
        rows = -(-blocks // columns)
        assert n == columns // across * -(-rows // down)  # whole rows of tiles
        shown = [meta["shown"][colour] for colour in found["colour"].tolist()]
        tiles = canvas.Tiles.of(blocks)
        assert tiles is not None
        assert shown[tiles.cell(blocks - 1)] == "quarantined"
        assert canvas.block_of(pool, -1 - (blocks - 1)) == blocks - 1
        assert canvas.block_of(pool, 4) == 4
        for block in (0, columns + 1, blocks // 2):
            picked = canvas.block_of(pool, -1 - block)
            assert tiles.cell(picked) == tiles.cell(block)
            assert canvas.letters(pool)[picked] in b"SPQ"

    @pytest.mark.parametrize("blocks", [canvas.MAX_DETAILED + 5, 1 << 20])
    def test_what_is_looked_at_closely_is_told_block_by_block(self, blocks: int) -> None:
        pool, tiles = _pool(blocks), canvas.Tiles.of(blocks)
        columns = 200 if tiles is None else tiles.columns
        last = -(-blocks // columns)
        _, meta, found = _decode(canvas.encode(pool, window=canvas.Window(3, 9, last - 2, last + 4, columns)))
        assert meta["window"] == {"c0": 3, "c1": 9, "r0": last - 2, "r1": last, "columns": columns}
        numbers = [row * columns + column for row in range(last - 2, last) for column in range(3, 9)]
        expected = [pool.letter(n) if n < blocks else "\0" for n in numbers]
        assert [chr(c) for c in found["near_letter"].tolist()] == expected

    @pytest.mark.parametrize("value", [None, {}, {"c0": 0}, "x", {"c0": 5, "c1": 2, "r0": 0, "r1": 1, "columns": 9},
                                       {"c0": 0, "c1": 10, "r0": 0, "r1": 1, "columns": 9}])  # fmt: skip
    def test_nonsense_from_a_browser_is_no_window(self, value: object) -> None:
        assert canvas.window_of(value) is None

    def test_window_of_too_many_blocks_is_not_told(self) -> None:
        _, meta, _ = _decode(canvas.encode(_pool(100_000), window=canvas.Window(0, 400, 0, 200, 400)))
        assert meta["window"] is None

    def test_refcount_legend_counts_blocks(self) -> None:
        _, meta, _ = _decode(canvas.encode(_pool(30), "refcount"))
        assert {item["label"]: item["count"] for item in meta["legend"]} == {"ref 0": 10, "1": 10, "2": 10, "3": 0}

    def test_age_legend_names_the_events(self) -> None:
        _, meta, _ = _decode(canvas.encode(_pool(30), "age"))
        assert meta["legend"][0]["label"] == "3-14 events ago"
        assert meta["legend"][0]["count"] == 30


def test_states_have_distinct_letters_and_colours() -> None:
    states = [*palette.STATES, palette.WRITING]
    assert len({s.letter for s in states}) == len({s.colour for s in states}) == 8
    assert {s.letter for s in states} == set("FPSCQWTL")


def test_ink_is_readable() -> None:
    assert palette.ink_on("#0072B2") == "#FFFFFF"
    assert palette.ink_on("#F0E442") == "#000000"


def test_markup_escapes_names() -> None:
    said = markup.now("<script>alert(1)</script>", "a & b")
    assert "<script>" not in said
    assert "a &amp; b" in said
    assert markup.plain("a*b_[c](d)") == r"a\*b\_\[c\]\(d\)"


def test_ranges() -> None:
    assert markup.ranges([2, 3, 4, 7, 9, 10]) == "2-4, 7, 9-10"


def test_biography_and_map_agree(trace: MemoryRecorder) -> None:
    state = state_at(trace, 900)
    for block in range(32):
        lives = biography(trace, block, 900)
        assert max((life.gen for life in lives), default=0) == state.gen[block]
