"""The host slots that a witness tells, while a block is on its way out and behind it: for the screen and the replay."""

from __future__ import annotations

import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.traces.schema import Kind


def moved_out(lease: int, counts: tuple[int, int, int]) -> HandTrace:
    """Block 0 goes out; its sequence is over before the lease ends. Witnesses (8, 11, 14) tell so many slots in use."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)])).end().lease(0, lease, 0, 4)
    trace.event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, fill=4, aux=5, details=(1, lease))
    trace.event(Kind.WITNESS, details=(3, 1, 0, 0, 0, 0, 1, 0, counts[0]))
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    trace.event(Kind.WITNESS, details=(3, 0, 0, 0, 0, 1, 0, 0, counts[1])).unlease(0, lease).free(0)
    return trace.event(Kind.WITNESS, details=(4, 0, 0, 0, 0, 0, 0, 0, counts[2]))


@pytest.mark.parametrize("lease", [0, 1, 7])
@pytest.mark.parametrize("which", [None, 0, 1, 2])
@pytest.mark.parametrize("off", [-1, 1])
def test_a_count_that_is_off_by_one_is_found(lease: int, which: int | None, off: int) -> None:
    counts = [1, 1, 0]
    if which is not None:
        counts[which] += off
    trace = moved_out(lease, (counts[0], counts[1], counts[2]))
    told = which is not None and counts[which] >= 0
    seqs = [8, 11, 14] if which is None else [(8, 11, 14)[which]]
    suspects = screen(frozen(trace)).suspects
    findings = [(finding.code, finding.seq) for finding in check(trace, replay=True).findings]
    assert suspects == ({"transfers": seqs[0]} if told else {})
    assert findings == ([("KV012", seqs[0])] if told else [])
