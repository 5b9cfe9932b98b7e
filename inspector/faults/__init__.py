"""The catalogue of planted faults: block managers that are broken on purpose, each in one way, each with a name.

They show what the sanitizer and the fuzzer find. A fault is a subclass of `BlockManager`, handed to an engine as its
`manager_factory`; the engine itself knows nothing of them. Importing this package loads none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from kvscope.engine.block_manager import BlockManager

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault.

    code: what `check` reports from a trace; KV023 is told only where reads are checked against what they should be,
    which a trace alone does not allow. fuzz_codes: what the fuzzer may report, which sees the allocator from
    outside only; empty where nothing can be seen from there. manager(): the broken class, imported on first use.
    """

    name: str
    title: str
    code: str
    manager: Callable[[], type[BlockManager]]
    fuzz_codes: tuple[str, ...] = ()


def _fault(name: str, title: str, code: str, home: str, fuzz_codes: tuple[str, ...]) -> Fault:
    module, class_name = home.split(":")

    def manager() -> type[BlockManager]:
        return cast("type[BlockManager]", getattr(import_module(f"kvscope.inspector.faults.{module}"), class_name))

    return Fault(name, title, code, manager, fuzz_codes)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        _fault("missing-copy", "a sample appends into a block that its siblings hold too, without copying it first",
               "KV006", "sharing:MissingCopy", ("KV006",)),
        _fault("write-to-published", "after a rollback, tokens are written into a block that the prefix cache serves",
               "KV015", "sharing:WriteToPublished", ("KV023",)),
        _fault("short-copy", "copy-on-write copies one slot too few", "KV009", "sharing:ShortCopy", ("KV009", "KV023")),
        _fault("double-free", "a finished sequence puts its first block on the free list a second time",
               "KV003", "counting:DoubleFree", ("KV012",)),
        _fault("leak-on-preempt", "preemption forgets to give the first block back",
               "KV005", "counting:LeakOnPreempt", ("KV005",)),
        _fault("half-done-admission", "a refused admission keeps its hold on the cached blocks it found",
               "KV005", "counting:HalfDoneAdmission", ("KV025",)),
        _fault("free-without-fence", "blocks freed during an open step are handed out before it has ended",
               "KV013", "fences:FreeWithoutFence", ("KV013",)),
        _fault("publish-before-commit", "blocks enter the prefix index when scheduled, not when computed",
               "KV016", "fences:PublishBeforeCommit", ()),
        _fault("hash-without-identity", "the prefix hash leaves out who may share (adapter, salt)",
               "KV011", "prefixes:HashWithoutIdentity", ("KV023",)),
        _fault("hash-without-prefix", "a block is found by its own tokens alone, whatever stands in front of them",
               "KV011", "prefixes:HashWithoutPrefix", ("KV023",)),
        _fault("stale-index", "an evicted block stays in the prefix index while others write into it",
               "KV011", "prefixes:StaleIndex", ("KV023", "KV014", "KV006")),
    )
}  # fmt: skip
