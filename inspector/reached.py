"""Why fewer run at once than memory over mean length says: the gap, attributed by simulation, one cause at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvscope.errors import UsageError
from kvscope.inspector.plan import capacity
from kvscope.inspector.shapes import ModelShape
from kvscope.inspector.simulate import Cell, Settings, simulate
from kvscope.inspector.workloads import open_workload

PROMPT_SHARE = 0.8  # of the mean length; the rest is generated
SIGMA = 0.8  # of the logarithm of lengths, where they spread: as in public traces of conversations


@dataclass(frozen=True, slots=True)
class Cause:
    """Sequences running at once, mean over busy time, once this cause is in; `lost` against the row above."""

    name: str
    concurrency: float
    lost: float


def reached(
    kv_memory: int, shape: ModelShape, max_len: int, mean_len: int, block_size: int = 16, *,
    requests: int | None = None, allocator: str = "paged",
) -> Iterator[Cause]:  # fmt: skip
    """Theory first, then what a simulated run reaches as reality comes in: growth and queue, spread, arrivals.

    A sequence holds less at its start than at its end, so a run of equal requests may hold more of them than theory.
    The last row is demand that does not always fill the memory, rather than a loss.

    Args:
        requests: simulated; several times as many as fit when None, so that filling and draining weigh little.

    Raises:
        UsageError: a size is out of its range, or the model has a sliding window, which a simulation does not know.
    """
    if shape.window:
        raise UsageError("a simulation does not know sliding windows: leave --reached out, or give --window 0")
    theory = capacity(kv_memory, shape, max_len, mean_len, block_size)
    before = float(theory.reserved if allocator == "reserved" else theory.paged)
    yield Cause("theory: memory over mean length", before, 0.0)
    max_seqs = min(4096, max(256, 2 * int(before)))
    requests = requests or min(40_000, max(1000, 12 * int(before)))
    prompt, output = max(1, int(mean_len * PROMPT_SHARE)), max(1, mean_len - int(mean_len * PROMPT_SHARE))
    spread = f"prompt=ln:{prompt}:{SIGMA},output=ln:{output}:{SIGMA}"
    at_once = f"gen:requests={requests},prompt={prompt},output={output}"
    steps = (
        ("all requests alike, all there at the start: scheduling", at_once, True),
        ("their lengths spread: long ones crowd short ones out", f"gen:requests={requests},{spread}", True),
        ("they arrive as fast as they were served: lulls, not always full", f"gen:requests={requests},{spread}", False),
    )
    rate = 1.0
    for name, spec, together in steps:
        settings = Settings(
            kv_memory, shape.bytes_per_token, max_len, max_seqs=max_seqs, sharing=False, at_once=together
        )
        work = open_workload(spec if together else f"{spec},rate={rate:.6f}")
        row = simulate(work, Cell(allocator, block_size), settings)
        found = row.concurrency_mean or 0.0
        yield Cause(name, found, before - found)
        before = found
        if row.makespan_s:
            rate = row.sequences_finished / row.makespan_s  # arrivals as fast as they were just served
