"""Every command that the README and the docs show runs, in order, in one folder, and ends as the docs say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Tested elsewhere: `make` is what runs this; the dashboard and the server wait for Ctrl-C.
ELSEWHERE = ("make ", "kvscope dashboard ", "kvscope serve ", "curl ")
FOUND = {
    "kvscope check demo-out/missing-copy.kvtrace": 1,
    "kvscope explain demo-out/missing-copy.kvtrace --request story": 1,
    "kvscope fuzz mypool.py:MyPool --seconds 10": 1,
    "kvscope races --example articles": 1,
}


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL)
    lines = [line[2:].split("   #")[0].strip() for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    return [line for line in lines if not re.sub(r"^([A-Z_]+=\S+ )+", "", line).startswith(ELSEWHERE)]


@pytest.mark.model
@pytest.mark.timeout(1200)
def test_shown_commands_run(smollm2_path: Path, tmp_path: Path) -> None:
    shown = [command for page in PAGES for command in commands(page)]
    assert len(shown) >= 6
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/fuzz-your-allocator.md").read_text(), flags=re.DOTALL)
    (tmp_path / "mypool.py").write_text(code)
    for command in dict.fromkeys(shown):
        words = shlex.split(command)
        assert words[0] == "kvscope", command
        start = [sys.executable, "-c", "from kvscope.inspector.cli import main; main()"]
        done = subprocess.run([*start, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == FOUND.get(command, 0), f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr


@pytest.mark.model
def test_the_python_example_runs(smollm2_path: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
