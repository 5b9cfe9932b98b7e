"""Reads GGUF files: header and tensors, with every length checked against the file before it is believed.

The header is parsed here rather than by gguf-py's GGUFReader: that takes seconds for a vocabulary of 49,152 tokens
and answers damage with whatever numpy raises. The dequantisers are gguf-py's.

Layout (little endian): magic "GGUF", u32 version, u64 tensors, u64 pairs; the pairs (string key, u32 type, value);
the tensors (string name, u32 dims, u64 size of each dim innermost first, u32 type, u64 offset); padding to
`general.alignment`; the tensors' bytes. A string is a u64 length and UTF-8.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.errors import MissingDependency, ModelError

# Scalar types of the key-value part: number -> numpy dtype. 8 is a string, 9 an array.
_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


class GgufTensor(NamedTuple):
    """Where one tensor lies: shape outermost dimension first, ggml type number, bytes from the file's start."""

    shape: tuple[int, ...]
    kind: int
    start: int
    size_bytes: int


class _Cursor:
    """A place in the header that cannot run past the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def take(self, count: int) -> int:
        """Step over `count` bytes and return where they start."""
        start = self.position
        if count > len(self.data) - start:
            raise ModelError(
                f"{self.path} is truncated or corrupt: its header needs byte {start + count:,} "
                f"but the file is {len(self.data):,} bytes; fetch it again"
            )
        self.position = start + count
        return start

    def u32(self) -> int:
        return int(struct.unpack_from("<I", self.data, self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack_from("<Q", self.data, self.take(8))[0])

    def string(self) -> str:
        length = self.u64()
        start = self.take(length)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise self.corrupt(f"text at byte {start:,} is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.u32(), self.u64()
            if inner == _STRING:
                return [self.string() for _ in range(count)]
            return self.numbers(inner, count)
        return self.numbers(kind, 1)[0]

    def numbers(self, kind: int, count: int) -> list[Any]:
        if kind not in _SCALARS:
            raise self.corrupt(f"value type {kind} at byte {self.position:,} is unknown")
        dtype = np.dtype(_SCALARS[kind])
        start = self.take(dtype.itemsize * count)
        numbers: list[Any] = np.frombuffer(self.data, dtype, count, start).tolist()
        return numbers

    def corrupt(self, what: str) -> ModelError:
        return ModelError(f"{self.path} is corrupt: {what}; fetch it again")


class GgufFile:
    """An opened GGUF file: `fields` of the header, `tensors` by name, `read` for one of them.

    Raises:
        ModelError: not a GGUF file, an unknown version, truncated, corrupt, or one part of several.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map(path)
        cursor = _Cursor(path, self._data)
        tensor_count, field_count = _read_start(cursor)
        self.fields: dict[str, Any] = {}
        for _ in range(field_count):
            key = cursor.string()
            self.fields[key] = cursor.value(cursor.u32())
        if self.fields.get("split.count", 0) not in (0, 1):
            raise ModelError(
                f"{path} is one of {self.fields['split.count']} parts; join them with llama-gguf-split --merge first"
            )
        self.tensors = _read_tensors(cursor, tensor_count, self.fields.get("general.alignment", 32))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor by name, outermost dimension first."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """Dequantise one tensor to fp32, in its shape.

        Raises:
            ModelError: its quantisation is one that gguf-py cannot dequantise.
        """
        tensor = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, tensor.size_bytes, tensor.start)
        quants = _gguf()
        kind = quants.GGMLQuantizationType(tensor.kind)
        if kind.name in ("F32", "F16"):
            flat = raw.view("<f4" if kind.name == "F32" else "<f2").astype(np.float32)
        else:
            try:
                flat = quants.dequantize(_rows(raw, *quants.GGML_QUANT_SIZES[kind]), kind)
            except NotImplementedError:
                raise ModelError(
                    f"{self.path}: tensor {name} is stored as {kind.name}, which is not supported; "
                    "take a file quantised as Q4_0 to Q8_0, Q2_K to Q6_K, F16 or BF16"
                ) from None
        result: npt.NDArray[np.float32] = flat.reshape(tensor.shape)
        return result


def _rows(raw: npt.NDArray[np.uint8], block: int, block_bytes: int) -> npt.NDArray[np.uint8]:
    """Cut a tensor's bytes into rows of whole quantisation blocks.

    gguf-py works on 16 rows at a time; rows of some 64k values make that twice as fast as the tensor's own.
    """
    blocks = raw.size // block_bytes
    width = math.gcd(blocks, max(1, (1 << 16) // block))
    return raw.reshape(-1, width * block_bytes)


def _gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise MissingDependency("reading GGUF files needs the package gguf: pip install 'kvscope[engine]'") from None
    return gguf


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ModelError(f"{path} is empty (0 bytes); fetch it again") from None


def _read_start(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; return the counts of tensors and of key-value pairs."""
    magic = cursor.data[:4]
    if magic != b"GGUF":
        raise ModelError(f"{cursor.path} is not a GGUF file: it begins with {magic!r}, not b'GGUF'")
    cursor.take(4)
    version = cursor.u32()
    if version not in (2, 3):
        raise ModelError(f"{cursor.path} is GGUF version {version} (or big endian); versions 2 and 3 are read")
    return cursor.u64(), cursor.u64()


def _read_tensors(cursor: _Cursor, count: int, alignment: object) -> dict[str, GgufTensor]:
    """Read the tensor table and check that the file holds all of it."""
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.corrupt(f"alignment {alignment!r} is not a positive number")
    found: dict[str, tuple[tuple[int, ...], int, int, int]] = {}
    for _ in range(count):
        name, dims = cursor.string(), cursor.u32()
        if name in found or not name.isprintable() or not 1 <= dims <= _MAX_DIMS:
            raise cursor.corrupt(f"tensor {name[:60]!r} appears twice, has {dims} dimensions or no printable name")
        shape = tuple(cursor.u64() for _ in range(dims))[::-1]
        kind, offset = cursor.u32(), cursor.u64()
        found[name] = (shape, kind, offset, _tensor_bytes(cursor, name, shape, kind))
    data_start = -(-cursor.position // alignment) * alignment
    needed = max((data_start + offset + size for _, _, offset, size in found.values()), default=0)
    if needed > len(cursor.data):
        raise ModelError(
            f"{cursor.path} is truncated: the file is {len(cursor.data):,} bytes but its tensors need {needed:,}; "
            "fetch it again"
        )
    return {n: GgufTensor(shape, kind, data_start + offset, size) for n, (shape, kind, offset, size) in found.items()}


def _tensor_bytes(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int) -> int:
    quants = _gguf()
    try:
        block, block_bytes = quants.GGML_QUANT_SIZES[quants.GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise ModelError(
            f"{cursor.path}: tensor {name} has quantisation type {kind}, which is unknown; the file is corrupt "
            "or newer than the installed gguf package"
        ) from None
    if shape[-1] % block or 0 in shape:
        raise cursor.corrupt(f"tensor {name} has rows of {shape[-1]} values, no multiple of its block of {block}")
    return math.prod(shape) // int(block) * int(block_bytes)
