"""Which modules are mutated, and which tests watch them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = "tests/unit/test_"
PROPERTY = "tests/property/test_"
GOLDEN = "tests/golden/test_golden_findings.py"
POOL_QUICK = (
    f"{PROPERTY}arrays_or_one_by_one.py",
    GOLDEN,
    *(f"{UNIT}{name}.py" for name in ("step_writes", "resized_pool", "leases_and_windows", "swapping")),
)


@dataclass(frozen=True, slots=True)
class Part:
    """Modules, and the tests that watch them: quick ones (about a second each), then slower ones, quickest first."""

    modules: tuple[str, ...]
    quick: tuple[str, ...]
    slow: tuple[str, ...]

    def tests(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.quick, *self.slow)


_DETECTORS = ("ledger", "life", "sharing", "moves", "beside", "replay", "passing", "records")
_SCREEN = ("blocks", "columns", "details", "entries", "plain", "runs", "screen", "sequences", "transfers")
_DETECTOR_TESTS = (*(f"{UNIT}{name}.py" for name in ("detector_records", "state", "detector_margins", "detector_words",
                   "detector_lives", "detector_counts", "screen_and_replay", "host_slots_counted", "detectors_life",
                   "detectors_sharing", "detectors_ledger", "report", "swapping", "resized_pool", "beside_reports")),
                   GOLDEN, f"{PROPERTY}histories_every_way.py")  # fmt: skip
PARTS = {
    "pool": Part(
        ("engine/pool.py", "engine/block_life.py", "engine/block_arrays.py", "engine/free_list.py"),
        (f"{PROPERTY}free_list.py", f"{UNIT}copies_and_fences.py", f"{UNIT}pool_margins.py", f"{UNIT}table_margins.py",
         *POOL_QUICK),
        (f"{PROPERTY}soak.py", f"{PROPERTY}all_or_nothing.py", f"{PROPERTY}lanes.py", f"{PROPERTY}prefix_sharing.py",
         f"{PROPERTY}block_manager.py"),
    ),
    "tables": Part(
        ("engine/tables.py", "engine/table_core.py", "engine/copies.py"),
        (f"{UNIT}copies_and_fences.py", f"{UNIT}pool_margins.py", f"{UNIT}table_margins.py", *POOL_QUICK),
        (f"{PROPERTY}soak.py", f"{PROPERTY}all_or_nothing.py", f"{PROPERTY}lanes.py", f"{PROPERTY}prefix_sharing.py",
         f"{PROPERTY}block_manager.py"),
    ),
    "prefix": Part(
        ("engine/prefix.py", "engine/prefix_cache.py", "engine/prefix_store.py", "engine/orphans.py"),
        (f"{UNIT}prefix_arrays.py", f"{UNIT}prefix_margins.py", f"{UNIT}copies_and_fences.py",
         f"{PROPERTY}arrays_or_one_by_one.py", GOLDEN,
         f"{UNIT}leases_and_windows.py", f"{UNIT}swapping.py"),
        (f"{PROPERTY}all_or_nothing.py", f"{PROPERTY}lanes.py", f"{PROPERTY}prefix_sharing.py",
         f"{PROPERTY}block_manager.py"),
    ),
    "sanitizer": Part(
        (*(f"inspector/detectors/{name}.py" for name in _DETECTORS), "inspector/online.py", "inspector/rules.py"),
        (f"{UNIT}online_looks.py", *_DETECTOR_TESTS),
        (f"{UNIT}leases_and_windows.py", f"{PROPERTY}traces_on_demand.py", f"{PROPERTY}online.py",
         f"{PROPERTY}kill_matrix.py"),
    ),
    "screen": Part(
        tuple(f"inspector/screen/{name}.py" for name in _SCREEN),
        (*(f"{UNIT}screen_{name}.py" for name in ("margins", "neighbours", "details", "entries", "rows",
           "kept")), *_DETECTOR_TESTS),
        (f"{PROPERTY}traces_on_demand.py", f"{PROPERTY}online.py", f"{PROPERTY}screen.py"),
    ),
}  # fmt: skip
