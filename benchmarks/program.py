"""A benchmark as a program: its errors are one line each, and what it has started ends with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from kvscope.benchmarks.children import ending_once
from kvscope.benchmarks.shown import say_now
from kvscope.errors import KVScopeError


def as_program(main: Callable[[], int | None]) -> int:
    """Run it; returns the exit code: its own, 2 for what it refuses, 130 after Ctrl-C, 141 where nobody reads."""
    try:
        with ending_once():
            status = main()
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        say_now("")
        print("kvscope: interrupted", file=sys.stderr)
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
