"""A paged pool as a bare count, and which requests could ever run."""

from __future__ import annotations

from collections.abc import Callable

from kvscope.engine.baselines import Region, Space
from kvscope.inspector.simulate.settings import Settings
from kvscope.inspector.simulate.tally import Tally
from kvscope.inspector.workloads import WorkRequest


class PagedCount(Space):
    """A paged pool as a count: any free block serves any sequence."""

    name = "paged"

    def size_for(self, tokens: int) -> int:
        """The tokens, rounded up to whole blocks."""
        return -(-tokens // self.block_size)

    def largest_free(self) -> int:
        """All that is free."""
        return self.free

    def external_fragmentation(self) -> float | None:
        """0: any free block serves any sequence."""
        return 0.0

    def _take(self, blocks: int) -> int | None:
        return 0

    def _give(self, start: int, blocks: int) -> None:
        pass

    def _absorb(self, region: Region, blocks: int) -> bool:
        if blocks - region.blocks > self.free:
            return False
        region.blocks = blocks
        return True


def admissible(request: WorkRequest, settings: Settings, could_hold: Callable[[int], bool], tally: Tally) -> int:
    """Tokens that the request may produce; 0 when it can never run here, and the tally says why."""
    if request.prompt >= settings.max_model_len:
        tally.too_long += 1
        return 0
    output = min(request.output, settings.max_model_len - request.prompt)
    if not could_hold(request.prompt + output - 1):  # the newest token is never written
        tally.too_big += 1
        return 0
    tally.cut += output < request.output
    return output
