"""Runs a workload under an allocator, accounting only: who fits, what is wasted, what it costs.

    costs     how long a step takes: a stated formula, replaceable
    tally     what is added up while it runs, and the row of measures that comes out
    counted   the scheduler's policy over counts, from event to event: any allocator, nothing shared
    driven    the engine's own scheduler and pool, step by step: sharing, and traces
    cells     one row per allocator and block size; picks the way

The two ways give the same row for the same requests; a test holds them together.
"""

from kvscope.inspector.simulate.cells import ALLOCATORS, Cell, simulate
from kvscope.inspector.simulate.costs import ServiceTime
from kvscope.inspector.simulate.settings import Settings
from kvscope.inspector.simulate.tally import Outcome

__all__ = ["ALLOCATORS", "Cell", "Outcome", "ServiceTime", "Settings", "simulate"]
