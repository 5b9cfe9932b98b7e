"""The command line of a benchmark that repeats something: how often, from which seed, `--json`; exit codes 0 and 1."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any


def repeat(
    name: str, doc: str | None, count: str, default: int, run: Callable[..., dict[str, Any]],
    words: Callable[[dict[str, Any]], str], arguments: list[str] | None,
) -> int:  # fmt: skip
    """Run it as the arguments say, and print what was done; exit code 1 when the result has a `failure`.

    Args:
        name, doc: of the benchmark; the doc is its help. count, default: the option that says how often.
        run: called with (how often, seed, progress=whether somebody watches). words: its result, for people.
        arguments: of the command line; those of this process when None.
    """
    parser = argparse.ArgumentParser(prog=f"python -m kvscope.benchmarks.{name}", description=doc)
    parser.add_argument(f"--{count}", dest="count", type=int, default=default)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.count < 1:
        parser.error(f"--{count} is {options.count}: must be 1 or more")
    try:
        result = run(options.count, options.seed, progress=sys.stderr.isatty())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(json.dumps(result) if options.json else words(result))
    return 1 if result["failure"] else 0
