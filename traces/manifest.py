"""The manifest of a trace folder: what it is of, and whether it was closed; swapped whole, never half written.

It carries the crc32 of its canonical form (keys sorted, no spaces, without `crc` itself), so it may be laid out for
reading, and a flipped bit or an edit shows.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvscope.errors import TraceError, UsageError
from kvscope.traces.folder import MANIFEST, traces_in
from kvscope.traces.place import Place
from kvscope.traces.schema import FORMAT_VERSION
from kvscope.traces.sink import PoolFacts

log = logging.getLogger(__name__)

MAX_MANIFEST_BYTES = 1 << 20


def manifest_crc(manifest: Mapping[str, Any]) -> str:
    """The checksum over everything but `crc` itself."""
    body = {key: value for key, value in manifest.items() if key != "crc"}
    return f"{zlib.crc32(json.dumps(body, sort_keys=True, separators=(',', ':')).encode()):08x}"


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest in one step: a reader sees the old or the new one, never a mixture.

    Raises:
        OSError: it could not be written; the old one is still there.
    """
    text = json.dumps({**manifest, "crc": manifest_crc(manifest)}, indent=1) + "\n"
    temporary = folder / (MANIFEST + ".new")
    with open(temporary, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MANIFEST)


def finish_manifest(folder: Path, manifest: dict[str, Any]) -> bool:
    """`write_manifest` at the end of a trace; what fails is logged, and False."""
    try:
        write_manifest(folder, manifest)
    except OSError as error:
        log.warning("trace: the manifest of %s could not be completed: %s", folder, error)
        return False
    return True


def load_manifest(place: Place) -> tuple[dict[str, Any], PoolFacts, list[str]]:
    """(manifest, pool, warnings) of a trace.

    Raises:
        TraceError: it is missing, not a manifest, or of a newer major version.
    """
    folder = place.path
    try:
        if not place.has(MANIFEST):
            raise TraceError(no_trace(folder))
        data = place.read(MANIFEST, 0, MAX_MANIFEST_BYTES + 1)
        manifest = json.loads(data) if len(data) <= MAX_MANIFEST_BYTES else None
    except OSError as error:
        raise TraceError(f"cannot read {folder / MANIFEST}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{folder} is not a trace: {MANIFEST} is not readable JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != "kvtrace":
        raise TraceError(f"{folder} is not a trace: {MANIFEST} does not say so")
    version = manifest.get("version")
    if not (
        isinstance(version, list)
        and len(version) == 2
        and all(type(part) is int and 0 <= part < 2**31 for part in version)
        and version[0] > 0
    ):
        raise TraceError(f"{folder}: {MANIFEST} gives no format version")
    if version[0] > FORMAT_VERSION[0]:
        raise TraceError(
            f"{folder} has trace format {version[0]}.{version[1]}, this KVScope reads up to "
            f"{FORMAT_VERSION[0]}.x: update KVScope"
        )
    pool = manifest.get("pool")
    if not isinstance(pool, dict) or "num_blocks" not in pool or "block_size" not in pool:
        raise TraceError(f"{folder}: {MANIFEST} gives no usable pool geometry: no num_blocks and block_size of a pool")
    try:
        facts = PoolFacts(**{name: pool[name] for name in PoolFacts.__dataclass_fields__ if name in pool})
    except UsageError as error:
        raise TraceError(f"{folder}: {MANIFEST} gives no usable pool geometry: {error}") from error
    wrong = manifest.get("crc") != manifest_crc(manifest)
    return manifest, facts, [f"{MANIFEST} does not match its checksum: it was edited or damaged"] if wrong else []


def no_trace(folder: Path) -> str:
    """What is wrong with a place that has no manifest."""
    inside = traces_in(folder) if folder.is_dir() else []
    if not inside and folder.suffix != ".kvtrace":
        return f"{folder} is not a trace, and holds none (NAME.kvtrace or NAME.kvpack)"
    if not inside:
        return f"{folder} is not a trace: it holds no {MANIFEST}"
    count = f"{len(inside)} traces" if len(inside) > 1 else "one trace"
    return f"{folder} is not a trace but a folder of {count}: give one, like {inside[0]}"


def count_of(manifest: Mapping[str, Any], name: str) -> int:
    """A count in a manifest; 0 where it is missing or no count."""
    value = manifest.get(name)
    return value if type(value) is int and 0 <= value < 2**63 else 0
