"""What the commands that run a model have in common: loading it, sizing the pool, opening the trace."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from kvscope.errors import UsageError

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.model import LoadedModel
    from kvscope.traces.recorder import Recorder

errors = Console(stderr=True)


@dataclass(frozen=True)
class PoolOptions:
    """How big the pool is to be: `kv_memory` wins over `num_blocks`."""

    block_size: int = 16
    num_blocks: int = 256
    kv_memory: str | None = None

    def blocks(self, loaded: LoadedModel, dtype_bytes: int) -> int:
        """Blocks of the pool for this model."""
        from kvscope.engine.sizing import blocks_in, parse_bytes

        if self.block_size < 1:
            raise UsageError(f"block_size is {self.block_size}: must be at least 1 slot")
        if self.kv_memory is None:
            return self.num_blocks
        return blocks_in(parse_bytes(self.kv_memory), loaded.config, self.block_size, dtype_bytes)


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


@contextmanager
def recorder(
    folder: Path | None, record: str, config: EngineConfig, loaded: LoadedModel, *, overwrite: bool = False
) -> Iterator[Recorder | None]:
    """The trace of a run, sealed when the block ends however it ends; None when nothing is recorded."""
    if record not in ("off", "trace", "sanitize"):
        raise UsageError(f"record is {record!r}: must be off, trace or sanitize")
    if folder is None or record == "off":
        yield None
        return
    from kvscope.traces import PoolFacts, Recorder

    block_bytes = config.block_size * loaded.config.bytes_per_token(config.dtype.itemsize)
    facts = PoolFacts(config.num_blocks, config.block_size, block_bytes)
    level: Literal["trace", "sanitize"] = "sanitize" if record == "sanitize" else "trace"
    with Recorder(folder, pool=facts, engine="kvscope", record=level, overwrite=overwrite) as sink:
        yield sink


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the work between two engine steps, so that no block is half accounted for.

    Yields a function that says whether Ctrl-C was pressed; a second one interrupts at once.
    """
    pressed = False

    def note(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def draining(engine: Engine) -> Iterator[Engine]:
    """Whatever ends the block, unfinished requests are aborted, so that the trace says how the run ended."""
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def _nothing() -> Iterator[None]:
    yield None
