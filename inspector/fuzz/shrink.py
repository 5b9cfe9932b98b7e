"""Makes a failing program short: leaves out calls, makes pools and prompts smaller, while the same rule breaks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvscope.inspector.fuzz.harness import Call
from kvscope.inspector.fuzz.program import SEQUENCES, Program
from kvscope.inspector.fuzz.protocol import Factory, Sizes

PAIRS_BELOW = 8


def shrink(factory: Factory, program: Program, code: str, *, seconds: float = float("inf")) -> Program:
    """The shortest program found that breaks the rule `code`, sequences renumbered; the given one if none does.

    Args:
        seconds: stop looking after this time, with what there is.
    """
    sizes, end = Sizes.of(factory), time.monotonic() + seconds
    attempts = _attempts(program)
    while (attempt := next(attempts, None)) is not None and time.monotonic() < end:
        if attempt.num_blocks not in sizes.pools or attempt.block_size not in sizes.blocks:
            continue
        violation = attempt.run(factory)
        if violation is not None and violation.code == code:
            program, attempts = attempt, _attempts(attempt)
    return program.legal(factory).renumbered()


def _attempts(program: Program) -> Iterator[Program]:
    """Every smaller program; where the calls are few, also those that are smaller in two ways at once."""
    yield from _smaller(program)
    if len(program.calls) <= PAIRS_BELOW:
        for smaller in _smaller(program):
            yield from _smaller(smaller)


def _smaller(program: Program) -> Iterator[Program]:
    """Programs a little smaller than this one, the boldest cuts first."""
    calls = program.calls
    for chunk in (16, 4, 2, 1):
        for end in range(len(calls), chunk - 1, -1):
            yield replace(program, calls=calls[: end - chunk] + calls[end:])
    for i, (name, args) in enumerate(calls):
        if name == "fork":
            yield replace(program, calls=(*calls[:i], *_instead(calls[i + 1 :], args[1], args[0])))
    if program.num_blocks > 1:
        yield replace(program, num_blocks=program.num_blocks - 1)
    if program.block_size > 1:
        yield replace(program, block_size=program.block_size - 1)
    for i, (name, args) in enumerate(calls):
        for simpler in _simpler_args(name, args):
            yield replace(program, calls=(*calls[:i], (name, simpler), *calls[i + 1 :]))


def _instead(calls: tuple[Call, ...], child: int, parent: int) -> Iterator[Call]:
    """The same calls, on the parent instead of its child."""
    for name, args in calls:
        ids = SEQUENCES.get(name, 1)
        if name == "begin_step":
            yield name, (list(dict.fromkeys(parent if seq == child else seq for seq in args[0])),)
        else:
            yield name, (*(parent if seq == child else seq for seq in args[:ids]), *args[ids:])


def _simpler_args(name: str, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if args and isinstance(args[-1], tuple):
        yield args[:-1]  # add without an identity
    if name == "append":
        yield from ((lower, args[1]) for lower in range(args[0]))  # parent and sample may fail alike: one is told
        if args[1]:
            yield args[0], 0
    for i, values in enumerate(args):
        for simpler in _simpler(values) if isinstance(values, list) else ():
            yield *args[:i], simpler, *args[i + 1 :]


def _simpler(values: list[int]) -> Iterator[list[int]]:
    if len(values) > 1:
        for i in reversed(range(len(values))):
            yield values[:i] + values[i + 1 :]
    for i, value in enumerate(values):
        if value == 1:
            yield [*values[:i], 0, *values[i + 1 :]]
