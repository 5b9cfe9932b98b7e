"""The reports of what layers 2 and 3, windows and waits find, word for word, from hand-made traces.

`KVSCOPE_UPDATE_GOLDEN=1 pytest tests/unit/test_beside_reports.py` rewrites the files: read the difference first.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.report import report
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.inspector.units import counted
from kvscope.traces.schema import Kind, Reason, pack_range

GOLDEN = Path(__file__).parents[1] / "golden"


def two_requests() -> HandTrace:
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.request(0, "haiku", [1], prompt_tokens=2).request(1, "news", [2], prompt_tokens=2)
    trace.event(Kind.SUBMIT, seq_id=1, aux=2).event(Kind.SUBMIT, seq_id=2, aux=2)
    for seq_id in (1, 2):
        trace.event(Kind.ADMIT, seq_id=seq_id).alloc(seq_id, seq_id=seq_id).write(seq_id, 0, 2, seq_id=seq_id)
    return trace.begin((1, 0, 2, [(1, 1)]), (2, 0, 2, [(2, 1)]))


def provenance() -> HandTrace:
    """News reads what haiku wrote."""
    trace = two_requests()
    trace.event(Kind.CHECK, reason=Reason.PROVENANCE, aux=4, lblock=2, fill=1)
    trace.event(Kind.MISMATCH, reason=Reason.PROVENANCE, block=2, gen=1, seq_id=2, lblock=0, fill=1, aux=1,
                details=(77, 55, 1, 1, 1, 2))  # fmt: skip
    return over(trace)


def content() -> HandTrace:
    """A byte of haiku's block changes, and news reads poison."""
    trace = two_requests()
    trace.event(Kind.MISMATCH, reason=Reason.CONTENT, block=1, gen=1, seq_id=1, fill=2, details=(16, 17, 1, 1, -1, -1))
    trace.event(Kind.MISMATCH, reason=Reason.POISON, block=2, gen=1, seq_id=2, fill=1, aux=1, details=(0, 0, 2, -1))
    return over(trace)


def waiting() -> HandTrace:
    """Haiku is refused a block though one could be evicted; a third request waits though two are free."""
    trace = two_requests()
    trace.facts.append({"type": "scheduler", "watermark": 0.25})
    trace.event(Kind.REFUSED, reason=Reason.NO_BLOCKS, seq_id=1, details=(1, 0, 1))
    trace.event(Kind.SUBMIT, seq_id=3, aux=4)
    trace.event(Kind.WAIT, reason=Reason.NO_BLOCKS, seq_id=3, details=(1, 1, 0))
    trace.event(Kind.WAIT, reason=Reason.NO_BLOCKS, seq_id=3, details=(1, 2, 0))
    return over(trace)


def window() -> HandTrace:
    """A step attends to positions in front of what it reads."""
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.facts.append({"type": "model", "name": "tiny", "window": 6})
    trace.request(0, "haiku", [1], prompt_tokens=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(1, seq_id=1).write(1, 0, 4, seq_id=1).begin((1, 0, 4, [(1, 1)])).end()
    trace.release(1, seq_id=1, reason=Reason.WINDOW).free(1)
    trace.alloc(2, seq_id=1, lblock=1).write(2, 0, 1, seq_id=1, lblock=1)
    trace.event(Kind.STEP_BEGIN, aux=1).event(Kind.SCHED, seq_id=1, lblock=4, fill=1, aux=pack_range(4, 5))
    trace.end().event(Kind.FINISH, seq_id=1).release(2, seq_id=1, lblock=1).free(2)
    return trace


def reserved() -> HandTrace:
    """Block 0 is where padding goes; haiku is given it all the same. Padding itself may be written there."""
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.facts.append({"type": "pool", "reserved": [0]})
    trace.request(0, "haiku", [1], prompt_tokens=2).event(Kind.ADMIT, seq_id=1)
    trace.event(Kind.WRITE, block=0, aux=pack_range(0, 1))
    trace.alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 2, [(0, 1)])).end()
    return trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)


def numbers() -> HandTrace:
    """More tokens cached than hits, fewer rows than sequences, more tokens than planned; steps that run backwards."""
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.request(0, "haiku", [1], prompt_tokens=2).event(Kind.SUBMIT, seq_id=1, aux=2)
    trace.event(Kind.ADMIT, seq_id=1, aux=4).alloc(1, seq_id=1).write(1, 0, 2, seq_id=1)
    trace.event(Kind.STEP_BEGIN, aux=2, step=7)
    trace.event(Kind.SCHED, seq_id=1, lblock=0, fill=2, aux=pack_range(0, 2), step=7)
    trace.event(Kind.STEP_END, aux=3, step=7)
    trace.event(Kind.REFUSED, reason=Reason.TOKEN_BUDGET, seq_id=2, details=(1, 4, 1))
    trace.event(Kind.CHECK, reason=Reason.PROVENANCE, aux=2, lblock=1, fill=3)
    trace.write(1, 2, 3, seq_id=1).event(Kind.STEP_BEGIN, aux=1, step=6)
    trace.event(Kind.SCHED, seq_id=1, lblock=2, fill=1, aux=pack_range(0, 3), step=6)
    trace.event(Kind.STEP_END, aux=1, step=6).event(Kind.FINISH, seq_id=1)
    return trace.release(1, seq_id=1).free(1)


def capacity() -> HandTrace:
    """Blocks too small for the model, a pool that outgrows its memory, steps and sequences beyond what is promised."""
    trace = HandTrace(num_blocks=4, block_size=4, block_bytes=64)
    trace.facts.append({"type": "model", "name": "tiny", "bytes_per_token": 32, "max_model_len": 3})
    trace.facts.append({"type": "scheduler", "max_seqs": 1, "max_batched_tokens": 2})
    trace.facts.append({"type": "pool", "max_blocks": 4})
    trace.event(Kind.GROW, aux=5, lblock=4)
    for seq_id in (1, 2):
        trace.event(Kind.ADMIT, seq_id=seq_id).alloc(seq_id, seq_id=seq_id).write(seq_id, 0, 4, seq_id=seq_id)
    trace.event(Kind.STEP_BEGIN, aux=2)
    for seq_id in (1, 2):
        trace.event(Kind.SCHED, seq_id=seq_id, lblock=0, fill=4, aux=pack_range(0, 4))
    trace.event(Kind.STEP_END, aux=8)
    for seq_id in (1, 2):
        trace.event(Kind.FINISH, seq_id=seq_id).release(seq_id, seq_id=seq_id).free(seq_id)
    return trace


def ranks() -> HandTrace:
    """One rank has fewer blocks than another."""
    trace = two_requests()
    trace.facts.append({"type": "pool", "ranks": [4, 4, 3]})
    return over(trace)


def over(trace: HandTrace) -> HandTrace:
    trace.end()
    for seq_id in (1, 2):
        trace.event(Kind.FINISH, seq_id=seq_id).release(seq_id, seq_id=seq_id).free(seq_id)
    return trace


TRACES = {"provenance": (provenance, ["KV023"]), "content": (content, ["KV024", "KV009"]),
          "waiting": (waiting, ["KV021", "KV021"]), "window": (window, ["KV022"]),
          "reserved": (reserved, ["KV019", "KV019", "KV019"]), "numbers": (numbers, ["KV012"] * 6),
          "capacity": (capacity, ["KV029", "KV029", "KV026", "KV026", "KV026", "KV026"]),
          "ranks": (ranks, ["KV029"])}  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_golden(name: str) -> None:
    made, codes = TRACES[name]
    trace = made()
    result = check(trace)
    assert [finding.code for finding in result.findings] == codes
    assert not screen(frozen(trace)).clean
    text = report(result, trace) + "\n"
    path = GOLDEN / f"report_{name}.txt"
    if os.environ.get("KVSCOPE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_what_keeps_its_promises_is_clean() -> None:
    trace = HandTrace(num_blocks=4, block_size=4, block_bytes=128)
    trace.facts.append({"type": "model", "name": "tiny", "bytes_per_token": 32, "max_model_len": 4})
    trace.facts.append({"type": "scheduler", "max_seqs": 1, "max_batched_tokens": 4})
    trace.facts.append({"type": "pool", "reserved": [0], "max_blocks": 4, "ranks": [4, 4]})
    trace.event(Kind.SUBMIT, seq_id=1, aux=4).event(Kind.ADMIT, seq_id=1).alloc(1, seq_id=1).write(1, 0, 4, seq_id=1)
    trace.event(Kind.STEP_BEGIN, aux=1).event(Kind.SCHED, seq_id=1, lblock=0, fill=4, aux=pack_range(0, 4))
    trace.event(Kind.STEP_END, aux=4).event(Kind.FINISH, seq_id=1).release(1, seq_id=1).free(1)
    trace.witness(3, 0, 0, 0, 0, 0, 0)
    assert screen(frozen(trace)).clean
    result = check(trace, replay=True)
    assert result.findings == ()
    assert {"NULL", "META", "CAP"} <= set(result.detectors)
    assert dict(check(two_requests()).idle)["NULL"] == "the facts name no reserved block"


def test_a_clean_check_beside_the_tensors_is_counted_as_looked_at() -> None:
    trace = two_requests()
    trace.event(Kind.CHECK, reason=Reason.PROVENANCE, aux=4, lblock=2, fill=0)
    result = check(over(trace))
    assert result.findings == ()
    assert "SHADOW" in result.detectors
    assert "SHADOW" in dict(check(over(two_requests())).idle)


@pytest.mark.parametrize(("block", "fill", "position"), [(0, 0, 0), (1, 3, 7), (3, 2, 5)])
def test_a_mismatch_names_slot_and_prefix(block: int, fill: int, position: int) -> None:
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(block, seq_id=1).write(block, 0, 4, seq_id=1)
    trace.event(Kind.MISMATCH, reason=Reason.PROVENANCE, block=block, gen=1, seq_id=1, fill=fill, aux=position,
                details=(77, 55, 3, 2, 4, 9))  # fmt: skip
    (finding,) = (f for f in check(trace).findings if f.code == "KV023")
    assert (finding.block, finding.gen, finding.slot_lo, finding.slot_hi) == (block, 1, fill, fill + 1)
    assert f"reads its position {position} at b{block}#1[{fill}]" in finding.why
    assert (
        f"its own prefix of {counted(position + 1, 'token')} should lie: it holds the prefix of 9 tokens" in finding.why
    )
    assert "in step 2" in finding.why
    assert dict(finding.related)["allocated"] == 1  # the story of block 0 is told as that of any other
