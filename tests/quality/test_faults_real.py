"""Ways to corrupt data, on the real model: garbled text, and `explain` names block, writer, step and token.

Held against `Truth`, which keeps what the device was told to do in dictionaries and knows nothing of the trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from kvscope.engine.model import LoadedModel, load_model
from kvscope.inspector import cli, demo
from kvscope.inspector.cli import faults
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_text
from kvscope.inspector.faults import FAULTS, real
from kvscope.inspector.faults.real import RealRun, changed, run_real
from kvscope.inspector.findings import check
from kvscope.traces import open_trace

Runs = Callable[[str], tuple[RealRun, Path]]
pytestmark = pytest.mark.model

# Fault -> the code of the event that should have been another.
CORRUPTING = {
    "missing-copy": "KV006",
    "early-free": "KV007",
    "free-ignores-count": "KV012",
    "double-allocation": "KV014",
    "stale-table": "KV018",
    "publish-at-admission": "KV016",
}


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    return load_model("smollm2")


@pytest.fixture(scope="module")
def clean(loaded: LoadedModel) -> RealRun:
    return run_real(loaded)


@pytest.fixture(scope="module")
def runs(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A fault -> its run, and the folder where its trace is kept."""
    folder = tmp_path_factory.mktemp("kept")

    @functools.cache
    def run(name: str) -> tuple[RealRun, Path]:
        trace = folder / f"{name}.kvtrace"
        return run_real(loaded, FAULTS[name].manager(), content=False, keep=trace), trace

    return run


def test_the_clean_run_is_clean(clean: RealRun) -> None:
    assert clean.stopped == ""
    assert clean.truth is not None
    assert clean.truth.first == {}
    assert check(clean.trace).findings == ()


@pytest.mark.parametrize("name", CORRUPTING)
def test_explain_tells_the_truth_about_garbled_text(runs: Runs, clean: RealRun, name: str) -> None:
    broken, _ = runs(name)
    assert changed(clean, broken), f"{name} changed no text"
    assert broken.truth is not None
    assert broken.truth.first
    result = check(broken.trace)
    assert FAULTS[name].code in {finding.code for finding in result.findings}
    for seq_id in {int(seq_id) for seq_id in broken.trace.events["seq_id"] if seq_id >= 0} - set(broken.truth.harm):
        assert explain(broken.trace, f"s{seq_id}", result=result).verdict == "clean"
    for wrong in broken.truth.first.values():
        told = explain(broken.trace, f"s{wrong.seq_id}", result=result)
        assert told.verdict == "damaged", (name, wrong)
        assert told.cause is not None
        assert told.cause.code == CORRUPTING[name]
        assert told.read is not None
        assert told.cause.seq != told.read.expected.seq, "the write that should be there is no mistake"
        assert explanation_text(told, broken.trace)
        harm = broken.truth.harm
        assert {victim.seq_id: victim.tokens for victim in told.victims} == {s: len(h.tokens) for s, h in harm.items()}
        assert told.first_token == min(harm[wrong.seq_id].tokens, default=None)
        if told.through:
            continue  # it had read the KV of a damaged sequence before
        assert (told.read.step, told.read.position) == (wrong.step, wrong.position)
        assert (told.read.block, told.read.slot) == (wrong.block, wrong.slot)
        assert told.read.token == wrong.token
        found = None if told.read.found.seq_id is None else (told.read.found.seq_id, told.read.found.step)
        assert found == (None if wrong.found is None else (wrong.found.seq_id, wrong.found.step))


def test_published_when_scheduled_is_found_and_garbles_nothing_here(runs: Runs, clean: RealRun) -> None:
    """A step writes the KV of all its rows before any of them attends: who hits what it writes reads it written."""
    broken, _ = runs("publish-before-commit")
    assert broken.truth is not None
    assert broken.truth.first == {}
    assert changed(clean, broken) == {}
    assert {finding.code for finding in check(broken.trace).findings} == {"KV016"}
    assert explain(broken.trace, "birds").verdict == "clean"


def test_a_run_is_kept_where_that_is_asked_for_and_the_view_names_it(
    runs: Runs, loaded: LoadedModel, clean: RealRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    broken, folder = runs("missing-copy")
    assert open_trace(folder).manifest["engine"] == real.ENGINE
    monkeypatch.setattr(faults, "_real_model", lambda: (loaded, clean))
    monkeypatch.setattr(real, "run_real", lambda *_args, **_options: broken)
    show = ["faults", "show", "missing-copy"]
    assert cli.run([*show, "--trace", str(folder)]) == 1
    assert f"kvscope dashboard {folder} --seq " in capsys.readouterr().out
    (tmp_path / "other").write_text("x")
    assert cli.run([*show, "--trace", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.run(show) == 1
    assert "`kvscope faults show missing-copy --trace missing-copy.kvtrace` keeps it" in capsys.readouterr().out


def test_the_demo_tells_what_a_manager_has_done_that_ends_the_run(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "REQUESTS", (("story", "Tell me of the storm.", 3),))
    monkeypatch.setattr(demo, "MAX_TOKENS", 4)
    outcome = demo.run(loaded, tmp_path / "d.kvtrace", manager=FAULTS["release-twice"].manager(), fault="release-twice")
    assert "it was released twice" in outcome.stopped
    assert any(outcome.texts[0])
    assert "KV004" in {finding.code for finding in check(open_trace(outcome.trace)).findings}
