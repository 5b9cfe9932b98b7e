"""Runs one benchmark as a program: `python -m kvscope.benchmarks NAME [ARGUMENTS]`; errors are one line each."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from kvscope.benchmarks.children import ending_once
from kvscope.errors import KVScopeError


def main() -> int:
    name = sys.argv[1]
    sys.argv = [f"kvscope bench {name}", *sys.argv[2:]]
    try:
        with ending_once():
            status = import_module(f"kvscope.benchmarks.{name}").main()
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except KVScopeError as error:
        print(f"kvscope: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        if not error.filename:  # it may be standard output that is full: what is left for it goes nowhere
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        where = f"{error.filename}: " if error.filename else ""
        print(f"kvscope: error: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
