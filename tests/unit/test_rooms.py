"""The house: imports go downward only, light paths stay light, modules stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = {"traces": 1, "kernels": 2, "engine": 3, "inspector": 4, "dashboard": 5}
HEAVY = ("torch", "triton", "streamlit", "fastapi", "transformers")
# The half of the engine that counts blocks, and what reads traces, must run where torch is not installed.
TORCH_FREE = (
    "kvscope.traces",
    "kvscope.engine.pool",
    "kvscope.engine.prefix",
    "kvscope.engine.tables",
    "kvscope.engine.block_manager",
    "kvscope.engine.scheduler",
    "kvscope.inspector.state",
    "kvscope.inspector.measures",
    "kvscope.inspector.findings",
    "kvscope.inspector.report",
    "kvscope.inspector.export",
    "kvscope.inspector.export.perfetto",
    "kvscope.inspector.export.ilens",
    "kvscope.inspector.importing",
    "kvscope.inspector.query",
    "kvscope.inspector.fuzz",
    "kvscope.inspector.fuzz.adapter",
    "kvscope.inspector.faults.sharing",
    "kvscope.engine.baselines",
    "kvscope.inspector.simulate",
    "kvscope.inspector.workloads",
)


def modules(room: str) -> list[Path]:
    return sorted(p for p in (ROOT / room).rglob("*.py") if ".venv" not in p.parts)


def imported(path: Path) -> set[str]:
    """Rooms of kvscope that a module imports, anywhere in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [module] if module != "kvscope" else [f"kvscope.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("kvscope.")}
    return rooms & FLOORS.keys()


@pytest.mark.parametrize("room", FLOORS)
def test_imports_go_down(room: str) -> None:
    assert modules(room), f"{room} has no modules"
    for path in modules(room):
        # The command line is the composition root: it alone may reach up, to start the dashboard.
        limit = 5 if path.is_relative_to(ROOT / "inspector" / "cli") else FLOORS[room]
        above = {other for other in imported(path) if FLOORS[other] > limit}
        assert not above, f"{path.relative_to(ROOT)} imports upward: {above}"


def heavy_modules_after(code: str) -> list[str]:
    probe = f"import sys\n{code}\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[-2].split()


@pytest.mark.parametrize("room", ["kvscope", *(f"kvscope.{room}" for room in FLOORS)])
def test_importing_a_room_is_light(room: str) -> None:
    assert heavy_modules_after(f"import {room}") == []


@pytest.mark.parametrize("module", TORCH_FREE)
def test_accounting_and_offline_modules_need_no_torch(module: str) -> None:
    assert heavy_modules_after(f"import {module}") == []


def test_help_is_light() -> None:
    code = "import kvscope.inspector.cli as c\ntry: c.run(['--help'])\nexcept SystemExit: pass"
    assert heavy_modules_after(code) == []


def test_modules_say_one_thing() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for room in FLOORS
        for path in modules(room)
        if (lines := len(path.read_text().splitlines())) > 360
    }
    assert not long
