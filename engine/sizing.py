"""Sizes from what a user writes: bytes, blocks, threads."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvscope.errors import UsageError

if TYPE_CHECKING:
    from kvscope.engine.model.config import ModelConfig

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip
_SHARE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*%")
_SIZE = re.compile(r"([0-9]{1,400}(?:\.[0-9]{1,18})?)\s*([a-z]*)")
MAX_BYTES = 1 << 60


def parse_bytes(text: str) -> int:
    """Bytes from `512MiB` (powers of two), `2GB` (powers of ten) or a plain number.

    Raises:
        UsageError: it is not a size, or not above zero, or more than any machine has.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size: write bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB")
    whole, _, rest = match[1].partition(".")
    if int(whole) * _UNITS[match[2]] > MAX_BYTES:
        raise UsageError(f"{text.strip():.40} is too large a size: at most {MAX_BYTES >> 40:,}TiB")
    value = int(float(f"{whole}.{rest}") * _UNITS[match[2]])
    if value <= 0:
        raise UsageError(f"{text!r} is not a usable size: it must be above zero")
    return value


def parse_memory(text: str, device: str) -> int:
    """Bytes from a size (`parse_bytes`), or from a share such as `60%` of what is free on the device now.

    Free is, on a GPU, what the driver says; on the CPU the memory that the system calls available, or what is left
    under the limit of its control group, whichever is less. Weights that are loaded already do not count as free.

    Raises:
        UsageError: it is neither, or not above zero, or more than all.
    """
    share = _SHARE.fullmatch(text.strip())
    if share is None:
        return parse_bytes(text)
    percent = float(share[1])
    if not 0 < percent <= 100:
        raise UsageError(f"{text!r} is not a usable share: it must be above 0% and at most 100%")
    return int(free_memory(device) * percent / 100)


def free_memory(device: str) -> int:
    """Bytes that could be allocated on the device now (see `parse_memory`)."""
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available(Path("/proc/meminfo")), _left_in_group(Path("/sys/fs/cgroup")))


def _available(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _left_in_group(group: Path) -> int:
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return max(0, int(limit) - int(used))
    except (OSError, ValueError):  # no such group, or no limit ("max")
        return 1 << 62


def check_fits(blocks: int, block_bytes: int, block_size: int, device: str) -> str:
    """What a pool takes, in words; empty for less than 1 GiB, which needs no mention.

    Raises:
        UsageError: more than is free on the device; says what would fit.
    """
    total, free = blocks * block_bytes, free_memory(device)
    what = f"a pool of {blocks:,} blocks of {block_size} slots takes {total / 2**30:.1f} GiB"
    if total > free:
        raise UsageError(
            f"{what} and does not fit: {device} has {free / 2**30:.1f} GiB free, enough for {free // block_bytes:,} "
            "blocks; lower --num-blocks, or give --kv-memory, such as 50%"
        )
    return f"{what} of {free / 2**30:.1f} GiB free on {device}" if total >= 2**30 else ""


def blocks_in(kv_bytes: int, config: ModelConfig, block_size: int, dtype_bytes: int) -> int:
    """How many blocks of `block_size` slots fit in `kv_bytes`.

    Raises:
        UsageError: not even one fits; says what one takes.
    """
    block_bytes = block_size * config.bytes_per_token(dtype_bytes)
    count = kv_bytes // block_bytes
    if count < 1:
        raise UsageError(
            f"{kv_bytes:,} bytes hold no block: one block of {block_size} slots takes {block_bytes:,} bytes "
            f"({config.bytes_per_token(dtype_bytes):,} per token)"
        )
    return count


def fastest_threads() -> int:
    """How many CPU threads torch should use here and now: all of them, or one.

    Threads that outnumber the free cores wait for each other at every operation, and a matrix product takes ten to
    fifty times as long. A short product tells; it costs about 20 ms.
    """
    import torch

    every = torch.get_num_threads()
    if every == 1:
        return 1
    a, w = torch.randn(8, 576), torch.randn(1536, 576)
    best: dict[int, float] = {}
    for threads in (1, every):
        torch.set_num_threads(threads)
        torch.nn.functional.linear(a, w)
        start = time.perf_counter()
        for _ in range(10):
            torch.nn.functional.linear(a, w)
        best[threads] = time.perf_counter() - start
    torch.set_num_threads(every)
    return min(best, key=lambda threads: best[threads])
