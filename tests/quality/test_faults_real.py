"""The five ways to corrupt data, on the real model: garbled text, and `explain` names block, writer, step and token.

Held against `Truth`, which keeps what the device was told to do in dictionaries and knows nothing of the trace.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.engine.model import LoadedModel, load_model
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_text
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.real import RealRun, changed, run_real
from kvscope.inspector.findings import check

pytestmark = pytest.mark.model

# Fault -> codes that name its mistake; the first of them is the fault's own.
CORRUPTING = {
    "missing-copy": {"KV006"},
    "early-free": {"KV007", "KV012", "KV014", "KV020", "KV002"},
    "double-allocation": {"KV014"},
    "stale-table": {"KV018"},
    "publish-at-admission": {"KV016", "KV009", "KV015"},
}


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    return load_model("smollm2")


@pytest.fixture(scope="module")
def clean(loaded: LoadedModel) -> RealRun:
    return run_real(loaded)


def test_the_clean_run_is_clean(clean: RealRun) -> None:
    assert clean.stopped == ""
    assert clean.truth is not None
    assert clean.truth.first == {}
    assert check(clean.trace).findings == ()


@pytest.mark.parametrize("name", CORRUPTING)
def test_explain_tells_the_truth_about_garbled_text(loaded: LoadedModel, clean: RealRun, name: str) -> None:
    broken = run_real(loaded, FAULTS[name].manager(), content=False)
    assert changed(clean, broken), f"{name} changed no text"
    assert broken.truth is not None
    assert broken.truth.first
    result = check(broken.trace)
    assert FAULTS[name].code in {finding.code for finding in result.findings}
    for wrong in broken.truth.first.values():
        told = explain(broken.trace, f"s{wrong.seq_id}", result=result)
        assert told.verdict == "damaged", (name, wrong)
        assert told.cause is not None
        assert told.cause.code in CORRUPTING[name]
        assert told.read is not None
        assert told.cause.seq != told.read.expected.seq, "the write that should be there is no mistake"
        assert explanation_text(told, broken.trace)
    first = min(broken.truth.first.values(), key=lambda wrong: wrong.step)
    told = explain(broken.trace, f"s{first.seq_id}", result=result)
    assert told.read is not None
    assert (told.read.step, told.read.position) == (first.step, first.position)
    assert (told.read.block, told.read.slot) == (first.block, first.slot)
    assert told.first_token == first.token
    found = None if told.read.found.seq_id is None else (told.read.found.seq_id, told.read.found.step)
    assert found == (None if first.found is None else (first.found.seq_id, first.found.step))
