"""Makes the golden traces beside this file: `python traces/samples/make.py`.

A golden trace is made once per format version and then kept, so that later readers are held to it
(tests/golden/test_golden_traces.py). Running this again changes only samples of the version that is written now.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from kvscope.traces import FORMAT_VERSION, Frame, Kind, PoolFacts, Reason, Recorder, Trace, open_trace, pack_range

HERE = Path(__file__).parent
POOL = PoolFacts(num_blocks=8, block_size=4, block_bytes=2048)


class Story:
    """Two samples of one prompt on a pool of 8 blocks of 4 slots: admission, fork, copy on write, finish, eviction."""

    def __init__(self, sink: Recorder) -> None:
        self.sink = sink
        self.now = 0
        self.thread = sink.intern_actor("MainThread")
        self.stream = sink.intern_actor("stream 7")

    def begin(self, function: str, line: int, actor: int | None = None) -> None:
        self.now += 1000
        stack = [Frame("engine/pool.py", line, f"Pool.{function}"), Frame("engine/scheduler.py", 40, "Scheduler.step")]
        self.sink.begin_at(self.now, self.sink.intern_site(stack), self.thread if actor is None else actor)

    def tell(self) -> None:
        """The whole story: one run of two sequences, 1 and its fork 2."""
        sink = self.sink
        sink.fact({"type": "model", "name": "sample", "num_layers": 2, "num_kv_heads": 2, "head_dim": 16})
        sink.fact({"type": "request", "request": 0, "name": "Grüße", "seq_ids": [1], "prompt_tokens": 6, "samples": 2})
        sink.step = 0
        self.begin("geometry", 10)
        sink.emit(Kind.POOL, aux=8, fill=4)
        self.admit()
        self.fork()
        self.copy_on_write()
        self.finish()
        self.evict()
        sink.fact({"type": "output", "request": 0, "seq_id": 1, "tokens": 1, "finish": "stop"})

    def admit(self) -> None:
        sink = self.sink
        self.begin("submit", 20)
        sink.detail(sink.emit(Kind.SUBMIT, seq_id=1, aux=6), [0, 8, 2])
        self.begin("admit", 30)
        sink.emit(Kind.ADMIT, seq_id=1)
        sink.emit(Kind.MISS, Reason.NOT_IN_INDEX, seq_id=1, lblock=0)
        ones = [1, 1]
        sink.emit_many(
            Kind.ALLOC, Reason.PREFILL, block=[0, 1], gen=ones, ref_before=0, ref_after=1, seq_id=1, lblock=[0, 1]
        )
        sink.emit(Kind.STEP_BEGIN, aux=1)
        sink.detail(sink.emit(Kind.SCHED, seq_id=1, lblock=0, fill=6, aux=pack_range(0, 0)), [-(2**63), 2])
        sink.emit(Kind.WRITE, Reason.PREFILL, 0, 1, 1, 1, 4, 1, 0, pack_range(0, 4))
        sink.emit(Kind.WRITE, Reason.PREFILL, 1, 1, 1, 1, 2, 1, 1, pack_range(0, 2))
        self.end_step(((0, 1, 4), (1, 1, 2)), 6, (6, 2, 0, 0, 0, 0, 2, 12345))
        sink.detail(sink.emit(Kind.PUBLISH, block=0, gen=1), [0, 2**63 - 1, -1])

    def fork(self) -> None:
        sink = self.sink
        self.begin("fork", 50)
        sink.detail(sink.emit(Kind.FORK, Reason.FORK, seq_id=2, aux=1), [0, 1])
        for lblock, fill in ((0, 4), (1, 2)):
            sink.emit(Kind.SHARE, Reason.FORK, lblock, 1, 1, 2, fill, 2, lblock)
        sink.fact({"type": "sample", "request": 0, "sample": 1, "seq_id": 2})

    def copy_on_write(self) -> None:
        sink = self.sink
        sink.step = 1
        self.begin("write", 60)
        sink.emit(Kind.ALLOC, Reason.COPY_ON_WRITE, 2, 1, 0, 1, seq_id=2, lblock=1)
        sink.detail(sink.emit(Kind.LEASE, Reason.COPY_ON_WRITE, 1, 1, 2, 3, 2, aux=1), [0, 2])
        sink.detail(sink.emit(Kind.COW, Reason.COPY_ON_WRITE, 2, 1, fill=2, seq_id=2, lblock=1, aux=1), [1, 1, 0, 2])
        sink.emit(Kind.RELEASE, Reason.COPY_ON_WRITE, 1, 1, 3, 2, 2, 2, 1)
        sink.emit(Kind.WRITE, Reason.DECODE, 1, 1, 1, 1, 3, 1, 1, pack_range(2, 3))
        sink.emit(Kind.WRITE, Reason.DECODE, 2, 1, 1, 1, 3, 2, 1, pack_range(2, 3))
        self.begin("copied", 70, self.stream)
        sink.emit(Kind.COPY_DONE, Reason.COPY_ON_WRITE, 2, 1, aux=1)
        sink.emit(Kind.UNLEASE, Reason.COPY_ON_WRITE, 1, 1, 2, 1, 3, aux=1)
        self.end_step(((1, 1, 3), (2, 1, 3)), 2, (5, 2, 1, 0, 0, 0, 4, -678))

    def finish(self) -> None:
        sink = self.sink
        sink.step = 2
        self.begin("finish", 80)
        sink.emit(Kind.FINISH, Reason.STOP, seq_id=1, aux=1)
        sink.emit(Kind.RELEASE, Reason.STOP, 1, 1, 1, 0, 3, 1, 1)
        sink.emit(Kind.FREE, Reason.STOP, 1, 1)
        sink.emit(Kind.RELEASE, Reason.STOP, 0, 1, 2, 1, 4, 1, 0)
        self.begin("finish", 80)
        sink.emit(Kind.ABORT, Reason.ABORTED, seq_id=2, aux=1)
        sink.emit(Kind.RELEASE, Reason.ABORTED, 2, 1, 1, 0, 3, 2, 1)
        sink.emit(Kind.QUARANTINE, Reason.ABORTED, 2, 1)
        sink.emit(Kind.RELEASE, Reason.ABORTED, 0, 1, 1, 0, 4, 2, 0)  # published: it stays cached
        sink.emit(Kind.SETTLE, block=2, gen=1)

    def evict(self) -> None:
        sink = self.sink
        self.begin("evict", 90)
        sink.emit(Kind.EVICT, Reason.CAPACITY, 0, 1)
        sink.emit(Kind.FREE, Reason.CAPACITY, 0, 1)
        sink.detail(sink.emit(Kind.REFUSED, Reason.NO_BLOCKS, seq_id=3), [9, 8, 0])
        sink.detail(sink.emit(Kind.NOTE, aux=4), range(12))  # longer than a slot of the hot tail holds
        sink.emit(200, 201, 7)  # a kind that this version does not know

    def end_step(self, written: tuple[tuple[int, int, int], ...], tokens: int, counts: tuple[int, ...]) -> None:
        self.begin("end_step", 65)
        for block, gen, fill in written:
            self.sink.emit(Kind.COMMIT, block=block, gen=gen, fill=fill)
        self.sink.emit(Kind.STEP_END, aux=tokens)
        self.sink.detail(self.sink.emit(Kind.WITNESS), counts)


def contents(trace: Trace) -> dict[str, Any]:
    """All that a trace says, as JSON."""
    return {
        "pool": [trace.num_blocks, trace.block_size, trace.block_bytes],
        "columns": list(trace.events.dtype.names or ()),
        "seqs": trace.seqs.tolist(),
        "events": [list(event.tolist()) for event in trace.events],
        "details": {str(seq): list(values) for seq in trace.seqs.tolist() if (values := trace.detail(seq)) is not None},
        "sites": [[list(frame) for frame in site.frames] for site in trace.sites],
        "actors": list(trace.actors),
        "facts": list(trace.facts),
        "clean": trace.clean,
        "warnings": list(trace.warnings),
    }


def main() -> None:
    version = ".".join(str(part) for part in FORMAT_VERSION)
    closed, killed = (HERE / f"v{version}-{name}.kvtrace" for name in ("closed", "killed"))
    shutil.rmtree(killed, ignore_errors=True)
    options: dict[str, Any] = {"sealing": "inline", "hot_rows": 32, "seal_rows": 16, "max_batches": 2}
    recorder = Recorder(
        closed, pool=POOL, engine="sample", overwrite=True, clock=lambda: 0, wall_clock=lambda: 0, **options
    )
    with recorder:
        Story(recorder).tell()
        shutil.copytree(closed, killed)  # what the death of the writer would leave here
    for path in (closed, killed):
        text = json.dumps(contents(open_trace(path)), ensure_ascii=False, separators=(",", ":"))
        path.with_suffix(".json").write_text(text.replace("],[", "],\n[") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
