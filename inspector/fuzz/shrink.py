"""Makes a failing program short: leaves out calls, makes pools and prompts smaller, while the same rule breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from kvscope.inspector.fuzz.harness import Call, Harness
from kvscope.inspector.fuzz.protocol import Factory, Violation

PAIRS_BELOW = 8
SEQUENCES = {"fork": 2, "end_step": 0}  # leading arguments that are sequence ids; 1 unless named here


@dataclass(frozen=True, slots=True)
class Program:
    """Calls of a harness over a pool of this size."""

    num_blocks: int
    block_size: int
    calls: tuple[Call, ...]

    def lines(self) -> list[str]:
        """The program as Python, to be pasted into a test."""
        calls = [f"harness.{name}({', '.join(map(repr, args))})" for name, args in self.calls]
        return [f"harness = Harness(factory, {self.num_blocks}, {self.block_size})", *calls]

    def run(self, factory: Factory) -> Violation | None:
        """Play it on a new allocator; the rule that broke, if one did. Calls that no caller may make are left out."""
        harness = Harness(factory, self.num_blocks, self.block_size)
        try:
            for name, args in self.calls:
                if harness.allows(name, *args):
                    getattr(harness, name)(*args)
        except Violation as violation:
            return violation
        return None


def shrink(factory: Factory, program: Program, code: str) -> Program:
    """The shortest program found that breaks the rule `code`, sequences renumbered; the given one if none does."""
    attempts = _attempts(program)
    while (attempt := next(attempts, None)) is not None:
        violation = attempt.run(factory)
        if violation is not None and violation.code == code:
            program, attempts = attempt, _attempts(attempt)
    return _renumbered(program)


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
    if program.num_blocks > 1:
        yield replace(program, num_blocks=program.num_blocks - 1)
    if program.block_size > 1:
        yield replace(program, block_size=program.block_size - 1)
    for i, (name, args) in enumerate(calls):
        for simpler in _simpler_args(args):
            yield replace(program, calls=(*calls[:i], (name, simpler), *calls[i + 1 :]))


def _simpler_args(args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if args and isinstance(args[-1], tuple):
        yield args[:-1]  # add without an identity
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


def _renumbered(program: Program) -> Program:
    """The same program with sequences 0, 1, 2, ... in the order in which they come up."""
    number: dict[int, int] = {}

    def renumber(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == "begin_step":
            return ([number[seq] for seq in args[0]],)
        ids = SEQUENCES.get(name, 1)
        return *(number.setdefault(seq, len(number)) for seq in args[:ids]), *args[ids:]

    return replace(program, calls=tuple((name, renumber(name, args)) for name, args in program.calls))
