"""What the commands that run a model have in common: loading it, sizing the pool, opening the trace."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvscope.errors import Sanitized, UsageError
from kvscope.inspector.cli._lines import errors, say
from kvscope.inspector.cli._newest import EVERYTHING, Newest
from kvscope.inspector.units import counted

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.model import LoadedModel
    from kvscope.inspector.findings import Finding
    from kvscope.inspector.layers import Layers
    from kvscope.inspector.online import OnlineSanitizer
    from kvscope.traces import EventSink, MemoryRecorder, PoolFacts, Recorder


@dataclass(frozen=True)
class PoolOptions:
    """How big the pool is to be: `kv_memory` wins over `num_blocks`; and how much host memory lies behind it."""

    block_size: int = 16
    num_blocks: int = 256
    kv_memory: str | None = None
    swap_space: str | None = None

    def blocks(self, loaded: LoadedModel, dtype_bytes: int, device: str) -> int:
        """Blocks of the pool for this model; a large one is announced, one that does not fit refused."""
        from kvscope.engine.block_arrays import MAX_BLOCKS
        from kvscope.engine.sizing import blocks_in, check_fits, parse_memory

        count = self.num_blocks
        if self.kv_memory is not None:
            count = blocks_in(parse_memory(self.kv_memory, device), loaded.config, self.block_size, dtype_bytes)
        if count > MAX_BLOCKS:
            raise UsageError(f"kv_memory {self.kv_memory} holds {count:,} blocks: a pool has at most {MAX_BLOCKS:,}")
        each = self.block_size * loaded.config.bytes_per_token(dtype_bytes)
        if words := check_fits(count, each, self.block_size, device):
            say(words)
        return count

    def host_blocks(self, loaded: LoadedModel, dtype_bytes: int) -> int:
        """Blocks of the host tier for this model."""
        from kvscope.engine.host_tier import MAX_SLOTS
        from kvscope.engine.sizing import blocks_in, parse_bytes

        if self.swap_space is None:
            return 0
        count = blocks_in(parse_bytes(self.swap_space), loaded.config, self.block_size, dtype_bytes)
        if count > MAX_SLOTS:
            raise UsageError(f"swap_space {self.swap_space} holds {count:,} blocks: at most {MAX_SLOTS:,} are possible")
        return count

    def check(self, *, swaps: bool = False) -> None:
        """Raises UsageError for what is wrong whatever the model is; `swaps`: preempted sequences are to be swapped."""
        from kvscope.engine.block_arrays import check_geometry
        from kvscope.engine.sizing import parse_bytes, parse_memory

        check_geometry(1 if self.kv_memory is not None else self.num_blocks, self.block_size)
        if self.kv_memory is not None:
            parse_memory(self.kv_memory, "cpu")
        if self.swap_space is not None:
            parse_bytes(self.swap_space)
        if swaps != (self.swap_space is not None):
            raise UsageError("swapping needs both --preemption swap and --swap-space, such as 64MiB")


def load(model: str, *, device: str, dtype: Any, threads: int, quiet: bool = False) -> LoadedModel:
    """The model, with a status line while it loads (on a terminal)."""
    import torch

    from kvscope.engine.model import load_model
    from kvscope.engine.sizing import fastest_threads

    if threads < 0 or threads > 1024:
        raise UsageError(f"threads is {threads}: must be 1..1024, or 0 to choose")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device is {device}: this machine has no usable CUDA GPU; use --device cpu")
    torch.set_num_threads(threads or fastest_threads())
    with errors.status(f"loading {model} ...") if errors.is_terminal and not quiet else _nothing() as status:

        def progress(done: int, total: int) -> None:
            if status is not None:
                status.update(f"loading {model}: layer {done} of {total}")

        return load_model(model, dtype=dtype, device=device, progress=progress)


def choose_device(device: str) -> tuple[str, Any]:
    """(device, dtype): `auto` takes a GPU where there is one; bfloat16 there, float32 on the CPU."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cpu" and not device.startswith("cuda"):
        raise UsageError(f"device is {device!r}: must be auto, cpu, cuda or cuda:N")
    return device, torch.bfloat16 if device.startswith("cuda") else torch.float32


def check_recording(
    folder: Path | None, record: str, *, overwrite: bool, on_finding: str, watch: Sequence[str], content: bool,
    num_blocks: int | None, provenance: bool = True, claim: bool = True,
) -> None:  # fmt: skip
    """Refuse, before a model is loaded for it, what the recording of a run would be refused for later.

    Args:
        num_blocks: of the pool; None where they are not known yet.
        claim: whether the folder must be free; else the trace that is there makes room later.

    Raises:
        UsageError: options contradict one another. TraceError: the trace cannot be written there.
    """
    from kvscope.traces.folder import check_claim

    check_words(record, on_finding)
    if content and record != "sanitize":
        raise UsageError(f"--content needs --record sanitize: with {record} nothing is compared")
    check_watched(record, watch, num_blocks)
    if folder is not None and record == "off":
        raise UsageError(f"--trace {folder} would stay empty: record is off; leave one of the two out")
    if not provenance and record != "sanitize":
        say(f"kvscope: note: --no-provenance changes nothing: with --record {record} provenance is not checked")
    if folder is not None and claim:
        check_claim(folder, overwrite)


def check_words(record: str, on_finding: str) -> None:
    """Raises UsageError for a word that is none, or does not fit the other."""
    if record not in ("off", "trace", "sanitize"):
        raise UsageError(f"record is {record!r}: must be off, trace or sanitize")
    if on_finding not in ("log", "raise"):
        raise UsageError(f"on-finding is {on_finding!r}: must be log or raise")
    if on_finding == "raise" and record != "sanitize":
        raise UsageError(f"--on-finding raise needs --record sanitize: with {record} nothing is checked")


def check_watched(record: str, watch: Sequence[str], num_blocks: int | None) -> None:
    """Raises UsageError for blocks that cannot be watched; of a pool of `num_blocks`, where that is known."""
    from kvscope.inspector.watch import watched

    if watch and record == "off":
        raise UsageError("watch needs events: record is off")
    for block in watch:
        watched(block, num_blocks)


@contextmanager
def recorder(
    folder: Path | None, record: str, config: EngineConfig, loaded: LoadedModel, *, overwrite: bool = False,
    on_finding: str = "log", watch: Sequence[str] = (), at_end: Callable[[OnlineSanitizer], None] | None = None,
    kept: Newest = EVERYTHING,
) -> Iterator[EventSink | None]:  # fmt: skip
    """The trace of a run, sealed when the block ends however it ends; None when nothing is recorded.

    With "sanitize" a sanitizer stands in front of it; without a folder it keeps the events in memory. Whoever touches
    a block of `watch` (b37, b37#12) is told.

    Args:
        at_end: given the sanitizer when it has looked at all, or has stopped the run, before that ends the command.
        kept: how much of the trace stays.
    """
    check_words(record, on_finding)
    check_watched(record, watch, None if config is None else config.num_blocks)
    if record == "off" or (folder is None and record != "sanitize" and not watch):
        yield None
        return
    from kvscope.traces import MemoryRecorder, PoolFacts, Recorder
    from kvscope.traces.folder import discard

    block_bytes = config.block_size * loaded.config.bytes_per_token(config.dtype.itemsize)
    facts = PoolFacts(config.num_blocks, config.block_size, block_bytes)
    level: Literal["trace", "sanitize"] = "sanitize" if record == "sanitize" else "trace"
    sink: Recorder | MemoryRecorder = (
        MemoryRecorder(facts, record=level)
        if folder is None
        else Recorder(folder, pool=facts, engine="kvscope", record=level, overwrite=overwrite, **kept._asdict())
    )
    seen: EventSink = sink
    points = None
    if watch:
        from kvscope.inspector.watch import WatchPoints

        points = WatchPoints(sink, lambda hit: say(f"kvscope: watch: {hit}"), watch, num_blocks=config.num_blocks)
        seen = points
    unused = False
    try:
        if record == "trace":
            yield seen
        else:
            yield from _sanitized(sink, seen, facts, "raise" if on_finding == "raise" else "log", at_end)
    except Exception:
        unused = sink.next_seq == 0  # what was refused before its first event leaves nothing that is then in the way
        raise
    finally:
        for block in points.untouched if points is not None and not unused else ():
            say(f"kvscope: note: watch: nobody wrote {block}, nor was it given to anybody")
        with _shielded():
            sink.close()
            if unused and isinstance(sink, Recorder):
                discard(sink.path)


def _sanitized(
    sink: Recorder | MemoryRecorder, seen: EventSink, facts: PoolFacts, reaction: Literal["log", "raise"],
    at_end: Callable[[OnlineSanitizer], None] | None,
) -> Iterator[EventSink]:  # fmt: skip
    """The sanitizer in front of a recorder; says at the end what it looked at."""
    import typer

    from kvscope.inspector.online import OnlineSanitizer
    from kvscope.traces import Recorder, open_trace

    def recorded() -> Any:
        return open_trace(sink.path) if isinstance(sink, Recorder) else sink

    def tell(finding: Finding, _: object) -> None:
        say(f"kvscope: finding: {finding.code} {finding.title} at seq {finding.seq}: {finding.why}")

    online = OnlineSanitizer(
        seen, num_blocks=facts.num_blocks, block_size=facts.block_size, block_bytes=facts.block_bytes,
        reaction=reaction, trace=recorded,
        on_finding=tell if reaction == "log" else None,
    )  # fmt: skip
    try:
        yield online
        online.close()
    except Sanitized:  # the first finding has ended the run; what it has said by then is told all the same
        if at_end is not None:
            at_end(online)
        raise
    say(f"sanitizer: {counted(len(online.findings), 'finding')} in {online.checked:,} events")
    if at_end is not None:
        at_end(online)
    if online.findings:
        raise typer.Exit(1)


@contextmanager
def checked(
    engine: Engine, record: str, *, provenance: bool = True, content: bool = False, on_finding: str = "log"
) -> Iterator[Layers | None]:
    """The checkers beside the tensors, for a run that is sanitized; at the end each says how much it compared."""
    if record != "sanitize":
        if content:
            raise UsageError("content is compared with --record sanitize")
        yield None
        return
    from kvscope.inspector.layers import LayerOptions, Layers
    from kvscope.inspector.online import OnlineSanitizer

    sanitizer = engine.sink if isinstance(engine.sink, OnlineSanitizer) and on_finding == "raise" else None
    layers = Layers(engine, LayerOptions(provenance, content), at_once=sanitizer.check if sanitizer else None)
    yield layers
    for line in layers.close():
        say(line)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the work between two engine steps, so that no block is half accounted for.

    Yields a function that says whether Ctrl-C was pressed; a second one interrupts at once.
    """
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:  # impatient: end here; what the trace holds is safe, as under kill -9
            os.write(2, b"kvscope: interrupted\n")
            os._exit(130)
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        # On the way out a further Ctrl-C could only spoil the files.
        signal.signal(signal.SIGINT, signal.SIG_IGN if pressed else before)


@contextmanager
def draining(engine: Engine) -> Iterator[Engine]:
    """Whatever ends the block, unfinished requests are aborted, so that the trace says how the run ended."""
    try:
        yield engine
    finally:
        with _shielded():
            engine.close()


@contextmanager
def _shielded() -> Iterator[None]:
    """Ctrl-C waits for the few milliseconds that it takes to leave whole files."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _nothing() -> Iterator[None]:
    yield None
