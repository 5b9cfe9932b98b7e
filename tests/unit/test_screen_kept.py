"""Details as a trace keeps them, given to the screen in C: nothing is read that is not there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvscope.inspector.screen.live import ByRows
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.screen.whole import by_rows, screened
from kvscope.inspector.source import frozen
from kvscope.traces import MemoryRecorder, compiled
from kvscope.traces.schema import Kind


@pytest.fixture(autouse=True)
def _in_c() -> Iterator[None]:
    if not compiled.built():
        pytest.skip("the parts in C were not built; where there is a compiler, test_compiled.py fails for it")
    with compiled.using(True):
        yield


def published(details: tuple[int, ...] = (1, 2, 3, 4)) -> MemoryRecorder:
    sink = MemoryRecorder(num_blocks=8, block_size=4)
    sink.emit(Kind.ADMIT, seq_id=0)
    sink.emit(Kind.ALLOC, block=0, gen=1, seq_id=0, lblock=0, ref_before=0, ref_after=1)
    sink.emit(Kind.WRITE, block=0, gen=1, seq_id=0, lblock=0, ref_before=1, ref_after=1, fill=4, aux=4 << 32)
    sink.detail(sink.emit(Kind.PUBLISH, block=0, gen=1, ref_before=1, ref_after=1), details)
    return sink


def looked_at(seqs: list[int], starts: list[int], lengths: list[int], values: list[int]) -> str:
    """The rule that is broken where the details of `published` are these, by the columns of `Kept`."""
    events = published().events
    live = ByRows(8, 4, ordered=False)
    live.look_back(events, 0, tuple(np.array(column, dtype=np.int64) for column in (seqs, starts, lengths, values)))
    return next(iter(live.suspects), "")


def test_details_that_lie_outside_the_values_are_no_details() -> None:
    assert looked_at([3], [0], [4], [1, 2, 3, 4]) == ""
    for start, length in ((1, 4), (0, 5), (-1, 4), (0, -1), (1 << 62, 4), (4, 1), (-(1 << 63), 4), (0, (1 << 63) - 1)):
        assert looked_at([3], [start], [length], [1, 2, 3, 4]) == "details", (start, length)


def test_columns_of_other_types_or_lengths_are_refused() -> None:
    events, live = published().events, ByRows(8, 4)
    column = np.zeros(1, dtype=np.int64)
    for kept in (
        (column, column, np.zeros(2, dtype=np.int64), column),
        (column, column.astype(np.int32), column, column),
        (column, column, column, column.reshape(1, 1)),
    ):
        with pytest.raises(TypeError, match="kept details"):
            live.look_back(events, 0, kept)


def test_a_whole_trace_is_looked_at_in_c_and_says_the_same() -> None:
    trace = frozen(published())
    assert screened(trace) == by_rows(trace) == screen(trace)
    assert by_rows(trace).clean
