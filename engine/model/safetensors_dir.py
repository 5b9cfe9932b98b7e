"""Weights from a folder of safetensors files: one file, or shards with an index."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from kvscope.engine.model.text import one_line, read_json
from kvscope.errors import ModelError

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_FLOATS = ("F64", "F32", "F16", "BF16")


class SafetensorsWeights:
    """The tensors of a folder's safetensors files, each file checked for its full length.

    Raises:
        ModelError: no safetensors in the folder, a shard is missing, truncated or corrupt.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Path] = {}
        for path, wanted in _shards(folder).items():
            shapes = _read_header(path)
            lost = [name for name in wanted or () if name not in shapes]
            if lost:
                raise ModelError(
                    f"{path} has no tensor {one_line(lost[0])}, which the index places there; fetch the folder again"
                )
            self._shapes.update(shapes)
            self._files.update(dict.fromkeys(shapes, path))

    @property
    def place(self) -> str:
        return str(self._folder)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> torch.Tensor:
        path = self._files[name]
        try:
            with safe_open(path, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: tensor {name} cannot be read: {one_line(error)}; fetch the file again") from None
        return tensor

    def rope_factors(self) -> torch.Tensor | None:
        return None


def _shards(folder: Path) -> dict[Path, list[str] | None]:
    """The folder's safetensors files, each with the names an index promises in it (None: no index)."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        mapping = read_json(index).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise ModelError(f"{index} has no weight_map; fetch it again")
        shards: dict[Path, list[str] | None] = {}
        for tensor, file in mapping.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise ModelError(
                    f"{index} places {one_line(tensor)} in {file!r}, which is not a file name of this folder"
                )
            names = shards.setdefault(folder / file, [])
            assert names is not None
            names.append(tensor)
        absent = [path.name for path in shards if not path.is_file()]
        if absent:
            raise ModelError(f"{folder} lacks {len(absent)} of {len(shards)} shards (first: {absent[0]}); fetch them")
        return shards
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if files:
        return dict.fromkeys(files)
    if any(folder.glob("*.bin")):
        raise ModelError(f"{folder} has only pickled weights (*.bin), which are not read; convert them to safetensors")
    raise ModelError(f"{folder} has no *.safetensors file; fetch the model's weights into it")


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of a file's tensors, after checking that the file is as long as they need.

    Layout: u64 length of a JSON header, the header (name -> dtype, shape, data_offsets from its end), the bytes.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if length > _MAX_HEADER_BYTES:
                raise ModelError(f"{path} is not a safetensors file: its header would be {length:,} bytes")
            raw = file.read(length)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    if len(start) < 8 or len(raw) < length:
        raise ModelError(
            f"{path} is truncated: the file is {size:,} bytes but its header needs {8 + length:,}; fetch it again"
        )
    try:
        entries = {name: entry for name, entry in json.loads(raw).items() if name != "__metadata__"}
        needed = 8 + length + max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in entries.items()}
        kinds = {name: str(entry["dtype"]) for name, entry in entries.items()}
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise ModelError(f"{path} is not a safetensors file: its header cannot be understood; fetch it again") from None
    if needed > size:
        raise ModelError(
            f"{path} is truncated: the file is {size:,} bytes but its tensors need {needed:,}; fetch it again"
        )
    odd = [name for name, kind in kinds.items() if kind not in _FLOATS]
    if odd:
        raise ModelError(
            f"{path}: tensor {one_line(odd[0])} is stored as {kinds[odd[0]]}; only {', '.join(_FLOATS)} are read"
        )
    return shapes
