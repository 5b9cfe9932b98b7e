"""Any trace comes back from JSON lines as it was: events, details, names, facts, geometry, holes and all."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.inspector.export import export
from kvscope.inspector.importing import import_jsonl
from kvscope.traces import EVENT_DTYPE, Frame, Kind, PoolFacts, Recorder, open_trace
from kvscope.traces.bulk import BulkWriter, empty_events

INT64 = st.integers(-(2**63), 2**63 - 1)
POOLS = st.builds(PoolFacts, st.integers(1, 2**20), st.integers(1, 2**15 - 1), st.integers(0, 2**30), st.text())
TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)
JSON = st.recursive(st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | TEXT, st.lists, max_leaves=4)
FACTS = st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=3)
FRAMES = st.lists(st.builds(Frame, TEXT, st.integers(0, 2**40), TEXT), min_size=1, max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, dict[str, int], list[int] | None]]:
    """(seq, columns that differ from the default, details) with rising seqs."""
    seq, out = draw(st.integers(0, 3)), []
    for _ in range(draw(st.integers(0, 12))):
        columns = {}
        for name in draw(st.sets(st.sampled_from(EVENT_DTYPE.names or ()), max_size=5)):
            info = np.iinfo(EVENT_DTYPE[name])
            columns[name] = draw(st.integers(int(info.min), int(info.max)))
        out.append((seq, columns, draw(st.none() | st.lists(INT64, max_size=11))))
        seq += draw(st.sampled_from([1, 1, 1, 2, 40]))
    return out


@settings(max_examples=30)
@given(pool=POOLS, found=rows(), sites=st.lists(FRAMES, max_size=3), actors=st.lists(TEXT, max_size=3), facts=FACTS,
       meta=st.dictionaries(TEXT, JSON, max_size=2), clean=st.booleans())  # fmt: skip
def test_round_trip(pool: PoolFacts, found: Any, sites: Any, actors: Any, facts: Any, meta: Any, clean: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = empty_events(len(found))
        for i, (_, columns, _) in enumerate(found):
            for column, value in columns.items():
                events[column][i] = value
        has = [i for i, (_, _, values) in enumerate(found) if values is not None]
        values = [found[i][2] for i in has]
        details = (np.asarray(has, np.int64), np.cumsum([0, *map(len, values)]),
                   np.asarray([x for v in values for x in v], np.int64))  # fmt: skip
        seqs = np.asarray([seq for seq, _, _ in found], np.int64)
        with BulkWriter(folder / "a.kvtrace", pool=pool, manifest={"meta": meta, "clean": clean}) as writer:
            writer.rows(seqs, events, details)
            for i, frames in enumerate(sites):
                writer.site(2 * i + 1, frames)
            for i, actor in enumerate(actors):
                writer.actor(2 * i + 1, actor)
            for fact in facts:
                writer.fact(fact)
        before = open_trace(folder / "a.kvtrace")
        np.testing.assert_array_equal(before.events, events)
        export(before, "jsonl", folder / "a.jsonl")
        imported = import_jsonl(folder / "a.jsonl", folder / "b.kvtrace")
        after = open_trace(folder / "b.kvtrace")

        assert (imported.events, imported.facts, imported.warnings) == (len(found), len(facts), ())
        np.testing.assert_array_equal(after.events, before.events)
        np.testing.assert_array_equal(after.seqs, before.seqs)
        assert [after.detail(int(s)) for s in seqs] == [None if v is None else tuple(v) for _, _, v in found]
        assert (after.sites, after.actors, after.facts) == (before.sites, before.actors, before.facts)
        assert (after.pool, after.gaps, after.warnings) == (pool, before.gaps, before.warnings)
        assert after.manifest == before.manifest
        again = io.BytesIO()
        export(after, "jsonl", again)
        assert again.getvalue() == (folder / "a.jsonl").read_bytes()


def test_what_a_recorder_wrote_comes_back_to_the_byte(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=PoolFacts(4, 16), meta={"model": "toy"}) as sink:
        sink.emit(Kind.ALLOC, block=1)
        sink.fact({"type": "note"})
    sent = []
    for folder in ("a", "b"):
        export(open_trace(tmp_path / f"{folder}.kvtrace"), "jsonl", tmp_path / f"{folder}.jsonl")
        sent.append((tmp_path / f"{folder}.jsonl").read_bytes())
        if folder == "a":
            import_jsonl(tmp_path / "a.jsonl", tmp_path / "b.kvtrace")
    assert sent[0] == sent[1]
