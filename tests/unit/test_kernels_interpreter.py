"""Runs tests/kernels again with the Triton kernels in Triton's interpreter, in a process of its own.

Triton decides at import whether kernels are interpreted, so the two ways cannot share a process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "kernels"


@pytest.mark.timeout(900)
def test_the_kernel_suite_passes_in_the_interpreter():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", str(FOLDER), "-q", "-p", "no:cacheprovider"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=FOLDER.parents[1],
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|skipped|failed|error)", result.stdout)}
    assert counts.get("passed", 0) >= 50
    assert counts.get("skipped", 0) <= 2  # the two that need a GPU
