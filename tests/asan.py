"""The part in C under AddressSanitizer: `python tests/asan.py [PYTEST ARGUMENTS]`.

Builds it in a copy of the repository with gcc's checks for bad addresses and undefined behaviour, and runs the tests
that hold C and Python together, with every allocation of Python's own made by malloc, which is what is watched. Takes
minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHECKS = "-fsanitize=address,undefined -fno-sanitize-recover=all"
TESTS = [f"tests/property/test_{name}.py" for name in ("online", "screen", "screen_gaps", "lanes", "compiled", "soak")]
TESTS += [f"tests/unit/test_screen_{name}.py" for name in ("kept", "after_gaps")]


def library(name: str) -> str:
    """Where gcc's own copy of a library lies."""
    found = subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        raise SystemExit(f"gcc has no {name} here: install its sanitizers (libasan, libubsan)")
    return found


def main(arguments: list[str]) -> int:
    """Exit code of pytest; 2 where something could not be built."""
    if shutil.which("gcc") is None:
        raise SystemExit("there is no gcc here")
    with tempfile.TemporaryDirectory(prefix="kvscope-asan-") as name:
        folder = Path(name) / "kvscope"
        shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(
            ".*", "build", "__pycache__", "*.so", "*.kvtrace", "test-results", "demo-out"))  # fmt: skip
        built = subprocess.run(
            [sys.executable, "setup.py", "build_ext", "--inplace"],
            cwd=folder, capture_output=True, text=True, check=False,
            env={**os.environ, "CFLAGS": f"-g -O1 -fno-omit-frame-pointer {CHECKS}", "LDFLAGS": CHECKS},
        )  # fmt: skip
        if len(list(folder.rglob("*.so"))) < 3:
            print(built.stdout + built.stderr, file=sys.stderr)
            return 2
        watched = {
            "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}", "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
        return subprocess.run(
            [*command, *(arguments or TESTS)], cwd=folder, env={**os.environ, **watched}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
