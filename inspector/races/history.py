"""What the threads asked of a target, and what they were told: the history that linearizability is judged by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from kvscope.inspector.races.control import Control

Frozen = Any  # a value that can be compared and hashed


@dataclass(slots=True)
class Op:
    """One call: who made it, what came of it, and when it began and ended. returned -1: it has not."""

    thread: int
    name: str
    args: str
    invoked: int
    returned: int = -1
    result: Frozen = None

    def words(self) -> str:
        """As it is printed."""
        return f"{self.name}({self.args})"


@dataclass(slots=True)
class History:
    """Calls in the order in which they began. `ids`: methods whose results consist of block ids."""

    ids: frozenset[str] = frozenset()
    ops: list[Op] = field(default_factory=list)
    clock: int = 0

    def invoke(self, thread: int, name: str, args: str) -> Op:
        """A call begins."""
        op = Op(thread, name, args, self.clock)
        self.clock += 1
        self.ops.append(op)
        return op

    def respond(self, op: Op, result: Frozen) -> None:
        """It has ended."""
        op.result, op.returned = result, self.clock
        self.clock += 1

    def by_thread(self) -> list[tuple[int, list[Op]]]:
        """The calls of each thread, in their order."""
        threads: dict[int, list[Op]] = {}
        for op in self.ops:
            threads.setdefault(op.thread, []).append(op)
        return sorted(threads.items())

    def results(self, observed: Frozen = None) -> Frozen:
        """All results, thread by thread, block ids numbered in the order in which they come up here."""
        names: dict[int, int] = {}
        told = tuple(
            (thread, op.name, rename(op.result, names) if op.name in self.ids else op.result)
            for thread, ops in self.by_thread()
            for op in ops
            if op.returned >= 0
        )
        return (*told, ("observed", rename(observed, names) if self.ids else observed))

    def order(self) -> Frozen:
        """Which call began and ended before which: the history without its results."""
        marks = [(op.invoked, "call", op.thread, op.name) for op in self.ops]
        marks += [(op.returned, "back", op.thread, op.name) for op in self.ops if op.returned >= 0]
        return tuple(mark[1:] for mark in sorted(marks))


def rename(value: Frozen, names: dict[int, int]) -> Frozen:
    """Every whole number in a value replaced by the number of its first appearance."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return ("id", names.setdefault(value, len(names)))
    if isinstance(value, tuple):
        return tuple(rename(item, names) for item in value)
    return value


def freeze(value: Any) -> Frozen:
    """A value as something that can be compared between two runs; objects that cannot are named by their class."""
    if value is None or isinstance(value, bool | str | bytes | float):
        return value
    if hasattr(value, "__index__"):
        return int(value)
    if isinstance(value, Mapping):
        return tuple(sorted(((freeze(k), freeze(v)) for k, v in value.items()), key=repr))
    if isinstance(value, Set):
        return tuple(sorted((freeze(item) for item in value), key=repr))
    if isinstance(value, Sequence):
        return tuple(freeze(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(freeze(getattr(value, f.name)) for f in fields(value)))
    if isinstance(value, BaseException):
        return ("raised", type(value).__name__)
    return type(value).__name__


class Probe:
    """Stands for the target in the threads: every public method called through it is an operation of the history."""

    def __init__(self, target: Any, control: Control, history: History) -> None:
        self.__dict__.update(_target=target, _control=control, _history=history)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name.startswith("_") or not callable(value):
            return value
        return self._operation(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def _operation(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        control, history = self._control, self._history

        def call(*args: Any, **kwargs: Any) -> Any:
            me = control.mine()
            if me is None:
                return method(*args, **kwargs)
            words = ", ".join([*map(short, args), *(f"{k}={short(v)}" for k, v in kwargs.items())])
            control.point(("call", name, words))  # outside of every critical section, before the call is on record
            op = history.invoke(me.number, name, words)
            try:
                result = method(*args, **kwargs)
            except Exception as error:
                history.respond(op, freeze(error))
                raise
            history.respond(op, freeze(result))
            return result

        return call


def short(value: Any) -> str:
    """A value in at most 40 characters, without addresses."""
    text = repr(value) if isinstance(value, int | str | float | list | tuple | bool | None) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def names(ids: Collection[str]) -> frozenset[str]:
    """As a set."""
    return frozenset(ids)
