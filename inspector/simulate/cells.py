"""One cell of a simulation: one allocator at one block size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvscope.engine.baselines import SPACES, RegionManager, Space, make_space
from kvscope.engine.block_manager import BlockManager
from kvscope.errors import UsageError
from kvscope.inspector.simulate.counted import CountedRun
from kvscope.inspector.simulate.driven import DrivenRun
from kvscope.inspector.simulate.paged import PagedCount
from kvscope.inspector.simulate.settings import Settings
from kvscope.inspector.simulate.shared import SharedRun
from kvscope.inspector.simulate.tally import Outcome, outcome
from kvscope.inspector.workloads import Workload
from kvscope.traces.sink import EventSink

ALLOCATORS = ("paged", *SPACES)
OnFinish = Callable[[int], None]
Stop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Cell:
    """Which allocator, at which block size (slots). Baselines count in blocks of that size too."""

    allocator: str
    block_size: int

    def __post_init__(self) -> None:
        if self.allocator not in ALLOCATORS:
            raise UsageError(f"no allocator {self.allocator!r}: there are {', '.join(ALLOCATORS)}")
        if not 1 <= self.block_size <= 1024:
            raise UsageError(f"block size is {self.block_size}: must be 1..1024 slots")

    def __str__(self) -> str:
        return self.allocator if self.allocator == "reserved" else f"{self.allocator} {self.block_size}"


def simulate(
    workload: Workload,
    cell: Cell,
    settings: Settings,
    *,
    trace: Path | None = None,
    overwrite: bool = False,
    drive: bool = False,
    on_finish: OnFinish | None = None,
    stop: Stop | None = None,
) -> Outcome:
    """Run the workload in one cell.

    Args:
        workload, cell, settings: what, where and how.
        trace: record every event into this folder, in simulated time.
        overwrite: replace a trace that is there.
        drive: step the engine's own scheduler even where counting would do.
        on_finish: called now and then with the number of sequences that are done.
        stop: asked between steps; when it says so, KeyboardInterrupt is raised there.

    Raises:
        UsageError: the memory holds no block, or the limits make no sense.
    """
    blocks = settings.num_blocks(cell.block_size)
    share = cell.allocator == "paged" and settings.sharing and workload.names_prefixes
    paged = cell.allocator == "paged"
    space = PagedCount(blocks, cell.block_size) if paged else make_space(
        cell.allocator, blocks, cell.block_size, settings.max_model_len
    )  # fmt: skip
    simple = all(r.samples == 1 and r.answer < 0 for r in workload.requests)  # what SharedRun can count
    count = (simple or not share) and not (
        drive or trace is not None or not settings.plain or settings.max_batched_tokens < settings.max_seqs
    )
    start, cpu = time.perf_counter(), time.process_time()
    run: CountedRun | DrivenRun
    if count:
        kind = SharedRun if share else CountedRun
        run = kind(workload.requests, space, settings, on_finish)
        tally = run.run(stop or _never)
    else:
        clock = _Clock()
        with _recorder(trace, cell, settings, blocks, clock, overwrite=overwrite) as sink:
            run = clock.run = _driven(workload, cell, settings, space, share=share, sink=sink, on_finish=on_finish)
            tally = run.run(stop or _never)
    wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    first = 0 if settings.at_once else workload.requests[0].arrival_ns * 1000
    return outcome(
        tally, allocator=cell.allocator, block_size=cell.block_size, num_blocks=blocks,
        bytes_per_token=settings.bytes_per_token, reserves=space.reserves, way="counted" if count else "driven",
        shared=share, requests=len(workload.requests), makespan=run.clock - first, wall_s=wall_s, cpu_s=cpu_s,
    )  # fmt: skip


def _driven(workload: Workload, cell: Cell, settings: Settings, space: Space, *, share: bool, sink: EventSink | None,
            on_finish: OnFinish | None) -> DrivenRun:  # fmt: skip
    manager: BlockManager | RegionManager
    if cell.allocator == "paged":
        host = settings.swap_space // (cell.block_size * settings.bytes_per_token)
        manager = BlockManager(space.num_blocks, cell.block_size, sink=sink, share_prefixes=share, host_blocks=host)
    else:
        manager = RegionManager(space, sink=sink)
    return DrivenRun(workload.requests, manager, settings, share=share, could_hold=space.could_hold, sink=sink,
                     on_finish=on_finish)  # fmt: skip


def _never() -> bool:
    return False


class _Clock:
    """Simulated nanoseconds, for the rows of a trace."""

    run: DrivenRun | None = None

    def __call__(self) -> int:
        return self.run.clock // 1000 if self.run is not None else 0


@contextmanager
def _recorder(trace: Path | None, cell: Cell, settings: Settings, blocks: int, clock: _Clock, *,
              overwrite: bool) -> Iterator[EventSink | None]:  # fmt: skip
    """The trace of a run, sealed however the run ends; None when nothing is recorded."""
    if trace is None:
        yield None
        return
    from kvscope.traces import PoolFacts, Recorder

    facts = PoolFacts(blocks, cell.block_size, cell.block_size * settings.bytes_per_token)
    with Recorder(
        trace, pool=facts, engine=f"kvscope simulate, {cell.allocator}", overwrite=overwrite, clock=clock
    ) as sink:
        sink.fact({"type": "model", "name": "simulated", "max_model_len": settings.max_model_len,
                   "bytes_per_token": settings.bytes_per_token})  # fmt: skip
        sink.fact({"type": "run", "allocator": cell.allocator})
        yield sink
