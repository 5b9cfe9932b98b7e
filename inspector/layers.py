"""The checkers beside an engine, as one: which of them are on, and what they have to say at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvscope.inspector.content import ContentCheck
from kvscope.inspector.provenance import Provenance

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine


@dataclass(frozen=True)
class LayerOptions:
    """Which checkers run beside the tensors: `provenance` is layer 2, `content` layer 3."""

    provenance: bool = True
    content: bool = False
    sample: int = 8  # blocks whose content is compared after each step


class Layers:
    """Attached to an engine before its first step.

    Args:
        at_once: called when something was found after its step had completed, for a sanitizer that stops the engine.
    """

    def __init__(self, engine: Engine, options: LayerOptions, *, at_once: Callable[[], None] | None = None) -> None:
        def told(_: object) -> None:
            if at_once is not None:
                at_once()

        late = engine.config.device != "cpu"  # elsewhere it is written down within the step, and looked at with it
        self.provenance = Provenance(engine, on_wrong=told if late else None) if options.provenance else None
        self.content = ContentCheck(engine, sample=options.sample, on_changed=told) if options.content else None

    def to_json(self) -> dict[str, dict[str, int] | None]:
        """How much each has compared, and how often it was wrong, as plain values; null for one that is off."""
        told: dict[str, dict[str, int] | None] = {"provenance": None, "content": None}
        if self.provenance is not None:
            prefix = self.provenance
            told["provenance"] = {
                "wrong": len(prefix.wrong), "slots": prefix.slots, "reads": prefix.reads, "steps": prefix.steps,
            }  # fmt: skip
        if self.content is not None:
            content = self.content
            told["content"] = {
                "changed": len(content.changed), "blocks": content.blocks, "slots": content.slots,
                "poisoned": content.poisoned, "steps": content.steps,
            }  # fmt: skip
        return told

    def close(self) -> list[str]:
        """What each has compared, a line for each.

        Raises:
            CheckNotRun: one of them compared nothing.
        """
        return [layer.close() for layer in (self.provenance, self.content) if layer is not None]
