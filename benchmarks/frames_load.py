"""A pool that changes all the time, recorded: `python -m kvscope.benchmarks.frames_load PATH BLOCKS`, until SIGTERM.

Six of ten blocks are held; then, about fifty times a second, some are given back and others handed out. The events obey
the ledger's rules.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import numpy as np

from kvscope.traces import Kind, PoolFacts, Reason, Recorder

BLOCK_SIZE, BLOCK_BYTES = 16, 1 << 16
TICK_S, TURNED = 0.02, 64
_RUN = 1 << 14


class Turning:
    """Hands blocks out to a sequence each, fills them, and takes them back."""

    def __init__(self, sink: Recorder, blocks: int, seed: int = 0) -> None:
        self._sink, self._random = sink, np.random.default_rng(seed)
        self._gen = np.zeros(blocks, np.int64)
        self._owner = np.full(blocks, -1, np.int64)
        self._sequences = 0
        ids = self._random.permutation(blocks)
        self._free, held = ids[: blocks * 4 // 10], ids[blocks * 4 // 10 :]
        self._held = np.sort(held)
        for lo in range(0, len(held), _RUN):
            self._give(self._held[lo : lo + _RUN])

    def turn(self, count: int) -> None:
        """One step: the oldest `count` blocks go back, `count` others are handed out."""
        gone, self._held = self._held[:count], self._held[count:]
        sink, owner = self._sink, self._owner[gone]
        sink.begin()
        sink.emit_many(Kind.RELEASE, Reason.LENGTH, block=gone, gen=self._gen[gone], ref_before=1, ref_after=0,
                       fill=BLOCK_SIZE, seq_id=owner, lblock=0)  # fmt: skip
        sink.emit_many(Kind.FREE, Reason.LENGTH, block=gone, gen=self._gen[gone], ref_before=0, ref_after=0)
        fresh, self._free = self._free[:count], np.concatenate([self._free[count:], gone])
        self._give(fresh)
        self._held = np.concatenate([self._held, fresh])

    def _give(self, blocks: np.ndarray) -> None:  # type: ignore[type-arg]
        sink, count = self._sink, len(blocks)
        self._gen[blocks] += 1
        owner = np.arange(self._sequences, self._sequences + count)
        self._sequences += count
        self._owner[blocks] = owner
        slots = np.full(count, self._random.integers(4, BLOCK_SIZE + 1), np.int64)
        sink.begin()
        sink.emit_many(Kind.ALLOC, Reason.PREFILL, block=blocks, gen=self._gen[blocks], ref_before=0, ref_after=1,
                       fill=0, seq_id=owner, lblock=0)  # fmt: skip
        sink.emit_many(Kind.WRITE, Reason.PREFILL, block=blocks, gen=self._gen[blocks], ref_before=1, ref_after=1,
                       fill=slots, seq_id=owner, lblock=0, aux=slots << 32)  # fmt: skip
        sink.emit_many(Kind.COMMIT, block=blocks, gen=self._gen[blocks], fill=slots)


def main(arguments: list[str]) -> int:
    """Write until told to end."""
    path, blocks = Path(arguments[0]), int(arguments[1])
    ended = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    with Recorder(path, pool=PoolFacts(blocks, BLOCK_SIZE, BLOCK_BYTES), overwrite=True) as sink:
        load = Turning(sink, blocks)
        while not ended:
            load.turn(TURNED)
            time.sleep(TICK_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
