"""What engines did before paging: three allocators to compare with, behind the block manager's interface.

    reserved     every sequence gets room for `max_model_len` tokens at once (FasterTransformer; Orca's "max")
    contiguous   first fit; grows into the room behind it, or moves; memory falls into holes
    buddy        power-of-two pieces that split and merge (Orca's "pow2")

No torch, no model: they count blocks, and any workload runs on them.
"""

from kvscope.engine.baselines.buddy import BuddySpace
from kvscope.engine.baselines.contiguous import ContiguousSpace
from kvscope.engine.baselines.manager import RegionManager
from kvscope.engine.baselines.spaces import Growth, Region, ReservedSpace, Space
from kvscope.errors import UsageError

SPACES = ("reserved", "contiguous", "buddy")


def make_space(name: str, num_blocks: int, block_size: int, max_model_len: int) -> Space:
    """The space of a baseline by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if name == "reserved":
        return ReservedSpace(num_blocks, block_size, max_model_len)
    if name == "contiguous":
        return ContiguousSpace(num_blocks, block_size)
    if name == "buddy":
        return BuddySpace(num_blocks, block_size)
    raise UsageError(f"no allocator {name!r}: there are {', '.join(SPACES)}")


__all__ = [
    "SPACES",
    "BuddySpace",
    "ContiguousSpace",
    "Growth",
    "Region",
    "RegionManager",
    "ReservedSpace",
    "Space",
    "make_space",
]
