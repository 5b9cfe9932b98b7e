"""Runs one benchmark as a program: `python -m kvscope.benchmarks NAME [ARGUMENTS]`; errors are one line each."""

from __future__ import annotations

import sys
from importlib import import_module

from kvscope.benchmarks.program import as_program


def main() -> int:
    name = sys.argv[1]
    sys.argv = [f"kvscope bench {name}", *sys.argv[2:]]
    return as_program(lambda: import_module(f"kvscope.benchmarks.{name}").main())


if __name__ == "__main__":
    sys.exit(main())
