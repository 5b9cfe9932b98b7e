"""Small recorded runs, each of which makes one point at first sight: made by the engine's own scheduler and pool.

    healthy             many requests with one system prompt, a pool that suffices: nothing to find
    garbled-race        samples of one prompt; the count of holders is read before the fork raised it: no copy is made
    leak                preemption forgets to give one block back: what is held never comes down again
    prefix-sharing      a long system prompt, kept once for all who begin with it
    reserved            the same requests as `paged`, each given room for the longest answer there may be
    paged               ... and given blocks as it grows
    fragmentation       regions that grow in one piece: memory is free, and nobody can have it

They hold no text and no paths of the machine that made them. Equal versions make equal events.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import UsageError
from kvscope.inspector.source import short_path
from kvscope.traces import PoolFacts, Recorder
from kvscope.traces.files import dump_line, read_lines

if TYPE_CHECKING:
    from kvscope.inspector.simulate import Settings

TOKEN_BYTES = 128 * 1024  # of an 8B model with 8 KV heads


class CountReadTooSoon(BlockManager):
    """Whether a block is shared is looked up when a step begins, and acted upon when the next one writes.

    Check, then act, with a fork between the two: the plainest race on a reference count.
    """

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        """Open a step; the counts of this moment are those that writers will go by."""
        number = super().begin_step(scheduled)
        self._seen = np.array(self.pool.entries)
        return number

    def _needs_copy(self, block: int, slot: int) -> bool:
        return super()._needs_copy(block, slot) and int(self._seen[block]) > 1


@dataclass(frozen=True)
class Sample:
    """One run: its workload, its pool, and what to see in it."""

    name: str
    point: str
    workload: str
    blocks: int
    block_size: int = 16
    allocator: str = "paged"
    fault: str = ""
    max_model_len: int = 2048


SAMPLES: dict[str, Sample] = {
    sample.name: sample
    for sample in (
        Sample("healthy", "nothing wrong: blocks come and go, the system prompt is shared, every rule holds",
               "gen:requests=40,rate=6,system=96,prompt=20-80,output=20-90,samples=1,seed=1", 160),
        Sample("garbled-race", "two samples write one block at once: open the finding, and see who wrote",
               "gen:requests=8,rate=20,system=48,prompt=10-50,output=20-40,samples=3,seed=2", 96,
               fault="count-read-too-soon"),
        Sample("leak", "each preemption keeps a block: half of the pool never comes back, though nobody holds it",
               "gen:requests=36,rate=60,prompt=40-120,output=40-120,seed=3", 48, fault="leak-on-preempt"),
        Sample("prefix-sharing", "a system prompt of 512 tokens, kept once for all: it saves up to 5.5 times the pool",
               "gen:requests=32,rate=30,system=512,prompt=20-60,output=60-120,samples=2,seed=4", 256),
        Sample("reserved", "each request is given room for 1,024 tokens: most of it stays empty, unlike in `paged`",
               "gen:requests=40,rate=20,prompt=60-200,output=40-160,seed=5", 512, allocator="reserved",
               max_model_len=1024),
        Sample("paged", "the same requests as in `reserved`, in blocks: more at once, hardly anything empty",
               "gen:requests=40,rate=20,prompt=60-200,output=40-160,seed=5", 512, max_model_len=1024),
        Sample("fragmentation", "regions in one piece: the free memory lies in holes that nobody fits into",
               "gen:requests=28,rate=40,prompt=20-400,output=20-160,seed=6", 128, allocator="contiguous",
               max_model_len=1024),
    )
}  # fmt: skip


def make(sample: Sample, folder: Path, *, overwrite: bool = False) -> Path:
    """Record a sample into `folder` as one packed file and return its path.

    Raises:
        TraceError: there is such a file already.
    """
    import tempfile

    from kvscope.traces.pack import pack

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / f"{sample.name}.kvtrace"
        _record(sample, raw)
        _without_paths(raw)
        return pack(raw, folder / f"{sample.name}.kvpack", overwrite=overwrite)


def named(names: Iterable[str]) -> list[Sample]:
    """The samples of these names, all for none.

    Raises:
        UsageError: there is none of that name.
    """
    wanted = list(names)
    for name in wanted:
        if name not in SAMPLES:
            raise UsageError(f"no sample {name!r}: there are {', '.join(SAMPLES)}")
    return [SAMPLES[name] for name in wanted] or list(SAMPLES.values())


def _record(sample: Sample, path: Path) -> None:
    from kvscope.engine.baselines import RegionManager, make_space
    from kvscope.inspector.simulate.driven import DrivenRun
    from kvscope.inspector.simulate.paged import PagedCount
    from kvscope.inspector.workloads import open_workload

    settings = _settings(sample)
    workload = open_workload(sample.workload)
    clock: list[DrivenRun] = []
    with Recorder(
        path, pool=PoolFacts(sample.blocks, sample.block_size, sample.block_size * TOKEN_BYTES),
        engine="kvscope samples", clock=lambda: clock[0].clock // 1000 if clock else 0,
    ) as sink:  # fmt: skip
        sink.fact({"type": "model", "name": "simulated 8B", "max_model_len": sample.max_model_len,
                   "bytes_per_token": TOKEN_BYTES})  # fmt: skip
        sink.fact({"type": "run", "allocator": sample.allocator, "sample": sample.name, "point": sample.point,
                   **({"fault": sample.fault} if sample.fault else {})})  # fmt: skip
        paged = sample.allocator == "paged"
        space: Any = (
            PagedCount(sample.blocks, sample.block_size)
            if paged
            else make_space(sample.allocator, sample.blocks, sample.block_size, sample.max_model_len)
        )
        manager: Any = RegionManager(space, sink=sink)
        if paged:
            manager = _manager(sample)(sample.blocks, sample.block_size, sink=sink)
        run = DrivenRun(workload.requests, manager, settings, share=paged,
                        could_hold=space.could_hold, sink=sink)  # fmt: skip
        clock.append(run)
        run.run(lambda: False)


def _manager(sample: Sample) -> type[BlockManager]:
    if not sample.fault:
        return BlockManager
    if sample.fault == "count-read-too-soon":
        return CountReadTooSoon
    from kvscope.inspector.faults import FAULTS

    return FAULTS[sample.fault].manager()


def _settings(sample: Sample) -> Settings:
    from kvscope.inspector.simulate import Settings

    memory = sample.blocks * sample.block_size * TOKEN_BYTES
    return Settings(memory, TOKEN_BYTES, sample.max_model_len, max_seqs=64, max_batched_tokens=512, watermark=0.0)


def _without_paths(path: Path) -> None:
    """Call sites as a reader shows them, without the folders of the machine that recorded."""
    file = path / "sites.jsonl"
    records, _, _ = read_lines(file.read_bytes())
    for record in records:
        for frame in record.get("frames", ()):
            if isinstance(frame, list) and frame:
                frame[0] = "kvscope/" + short_path(str(frame[0])).removeprefix("kvscope/")
    file.write_bytes(b"".join(dump_line(_unsealed(record)) for record in records))


def _unsealed(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "crc"}
