"""Whether the pool of a trace's manifest is the pool that its events speak of."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.findings import Finding
from kvscope.inspector.limits import limits_of
from kvscope.inspector.source import Frozen, resizes
from kvscope.traces.manifest import manifest_crc
from kvscope.traces.schema import Kind


def other_pool(trace: Frozen) -> Finding | None:
    """The one finding of a trace whose manifest is damaged, or of another trace; None where they agree.

    An engine that hands out an id beyond its pool is KV019, event by event. Here the run itself knew more blocks than
    the manifest has: its own counters add up to a larger pool, or the manifest does not match its checksum.
    """
    most = trace.num_blocks
    rows = np.flatnonzero(trace.events["block"] >= most)
    if not len(rows) or len(resizes(trace.events, trace.kinds).rows):
        return None
    top = int(trace.events["block"][rows].max())
    _, told = trace.details_of(int(Kind.WITNESS))
    sizes = {sum(values[:6]) for values in told if len(values) >= 6}
    size = max(sizes, default=0) + len(limits_of(trace.facts).reserved)
    counted = len(sizes) == 1 and most < size and top < size
    if not counted and (told or not _edited(trace)):
        return None
    event = trace.events[rows[0]]
    own = f", and its own counters add up to {size}" if counted else ""
    return Finding(
        "KV012", int(trace.seqs[rows[0]]), int(event["step"]),
        f"the events speak of block {top}{own}, the manifest says {most} blocks: manifest.json is damaged, or of "
        "another trace. Nothing else was judged; put the right manifest there, or record again",
    )  # fmt: skip


def _edited(trace: Frozen) -> bool:
    manifest = getattr(trace.source, "manifest", None)
    return isinstance(manifest, dict) and "crc" in manifest and manifest_crc(manifest) != manifest["crc"]
