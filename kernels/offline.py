"""Compile a kernel for a Hopper GPU on any machine and say what it needs of one multiprocessor.

Catches what the interpreter cannot: registers that spill, shared memory that does not fit, a construct the compiler
refuses. Nothing is run and no GPU is needed; the assembler comes with Triton.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)
SHARED_LIMIT = 232_448  # bytes one program may use on sm_90: 227 KiB
POINTERS = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint32: "*u32",
}


@dataclass(frozen=True)
class Needs:
    """Registers per thread, stack bytes per thread (spills), shared memory bytes, asynchronous 16-byte loads."""

    registers: int
    stack: int
    shared: int
    async_loads: int


class Recorder:
    """Stands in for a kernel: `recorder[grid](...)` compiles the launch instead of making it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.needs: list[Needs] = []

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.needs.append(compile_launch(self.kernel, args, kwargs))

        return launch


def compile_launch(kernel: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Needs:
    """Compile `kernel` as a launch with these arguments would, specialised the same way."""
    options = {name: value for name, value in kwargs.items() if name not in kernel.arg_names}
    constants = {name: value for name, value in kwargs.items() if name in kernel.arg_names}
    signature: dict[str, str] = {}
    divisible = {}
    for index, (name, value) in enumerate(zip(kernel.arg_names, args, strict=False)):
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            divisible[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:  # Triton makes an integer 1 a constant
            constants[name] = 1
        else:
            signature[name] = "i32" if abs(value) < 2**31 else "i64"
            if value % 16 == 0:
                divisible[(index,)] = [["tt.divisibility", 16]]
    full = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(kernel, full, constants, divisible)
    return _needs(triton.compile(source, target=TARGET, options=options))


def _needs(compiled: Any) -> Needs:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        report = subprocess.run(
            [str(tool), "--dump-resource-usage", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if usage is None:
        raise RuntimeError(f"cuobjdump reported no registers: {report!r}")
    loads = compiled.asm["ptx"].count("cp.async.cg.shared")
    return Needs(int(usage[1]), int(usage[2]), int(compiled.metadata.shared), loads)
