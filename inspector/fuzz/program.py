"""A failing program: the calls that break a rule, as Python to paste into a test, as JSON to keep, and played again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.harness import Call, Harness
from kvscope.inspector.fuzz.protocol import NAMES, Factory, Violation

SEQUENCES = {"fork": 2, "end_step": 0, "unlease": 0}  # leading arguments that are sequence ids; 1 unless named here
PROMPTED = ("add", "abandon", "lookup")  # calls with a prompt, and with an identity if it has one


@dataclass(frozen=True, slots=True)
class Program:
    """Calls of a harness over a pool of this size."""

    num_blocks: int
    block_size: int
    calls: tuple[Call, ...]

    def lines(self) -> list[str]:
        """The program as statements of Python, with `factory` and `Harness` as they are."""
        calls = [f"harness.{name}({', '.join(map(repr, args))})" for name, args in self.calls]
        return [f"harness = Harness(factory, {self.num_blocks}, {self.block_size})", *calls]

    def source(self, target: str, violation: Violation) -> str:
        """A whole test function: it fails as long as the allocator breaks the rule, and passes from then on.

        Args:
            target: `package.module:factory` or `path.py:factory`.
        """
        name = f"{violation.code}_{NAMES[violation.code]}" if violation.code != "crash" else "crash"
        body = [
            "from kvscope.inspector.fuzz import Harness, load_target",
            f"factory = load_target({target!r})",
            *self.lines(),
        ]
        why = fill(str(violation), 110, initial_indent="    # ", subsequent_indent="    # ", break_on_hyphens=False)
        return "\n".join(
            [f"def test_{re.sub('[^a-z0-9]+', '_', name.lower())}() -> None:", *(f"    {line}" for line in body), why]
        )

    def pasted(self, module: str, name: str) -> str:
        """The program with all that it needs in front, for a factory of this name in this module, if it has one."""
        parts = [*module.split("."), *name.split(".")]
        here = all(map(str.isidentifier, parts))
        made = [f"from {module} import {name.split('.')[0]}", f"factory = {name}"] if here else ["factory = ..."]
        return "\n".join(["from kvscope.inspector.fuzz import Harness", *made, *self.lines()])

    def run(self, factory: Factory) -> Violation | None:
        """Play it on a new allocator; the rule that broke, if one did. Calls that no caller may make are left out."""
        return self._play(factory)[0]

    def legal(self, factory: Factory) -> Program:
        """The same program up to where it breaks a rule, without calls that no caller may make."""
        return replace(self, calls=tuple(self._play(factory)[1]))

    def _play(self, factory: Factory) -> tuple[Violation | None, list[Call]]:
        played: list[Call] = []
        try:
            harness = Harness(factory, self.num_blocks, self.block_size)
            for name, args in self.calls:
                if harness.allows(name, *args):
                    played.append((name, args))
                    getattr(harness, name)(*args)
        except Violation as violation:
            return violation, played
        return None, played

    def renumbered(self) -> Program:
        """The same program with sequences 0, 1, 2, ... in the order in which they come up."""
        number: dict[int, int] = {}

        def renumber(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if name == "begin_step":
                return ([number.setdefault(seq, len(number)) for seq in args[0]],)
            ids = SEQUENCES.get(name, 1)
            return *(number.setdefault(seq, len(number)) for seq in args[:ids]), *args[ids:]

        return replace(self, calls=tuple((name, renumber(name, args)) for name, args in self.calls))

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps({"num_blocks": self.num_blocks, "block_size": self.block_size, "calls": self.calls})

    @classmethod
    def from_json(cls, text: str | bytes) -> Program:
        """The program of `to_json`.

        Raises:
            UsageError: it is none.
        """
        try:
            value = json.loads(text)
            calls = [(str(name), tuple(args)) for name, args in value["calls"]]
            known = all(callable(getattr(Harness, name, None)) and not name.startswith("_") for name, _ in calls)
            sizes = int(value["num_blocks"]), int(value["block_size"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{text!r:.40} is no program of the fuzzer: {error}") from None
        if not known:
            raise UsageError(f"{text!r:.40} is no program of the fuzzer: it makes calls that the harness does not have")
        return cls(*sizes, tuple((name, _thawed(name, args)) for name, args in calls))


def _thawed(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """JSON has no tuples: an identity was one, of what may be others."""
    return (*args[:2], _tuple(args[2])) if name in PROMPTED and len(args) > 2 else args


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
