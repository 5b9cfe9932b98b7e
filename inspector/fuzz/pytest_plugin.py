"""The pytest plugin `kvscope`: an allocator's conformance as one line of a test, and races as a marker.

    def test_my_pool(kvscope_fuzz):
        kvscope_fuzz(MyPool, seconds=10)

    @pytest.mark.kvscope_race(threads=2, seconds=10)
    def test_my_pool_with_threads():
        return MyPool                      # factory(num_blocks, block_size)

    @given(program=kvscope.inspector.fuzz.strategies.programs())
    def test_of_my_own(program): ...

Loading it imports nothing of the fuzzer; a test that asks for it does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvscope.inspector.fuzz.harness import Harness
    from kvscope.inspector.fuzz.protocol import Factory

MARK = "kvscope_race"
_OPTIONS: dict[str, Any] = {"threads": 2, "seconds": None, "seed": None, "replay": None}  # of the marker
HANG_S = 10.0  # after which a call of a target counts as hanging


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--kvscope-seconds` and `--kvscope-seed`, for all tests that name none."""
    group = parser.getgroup("kvscope", "fuzzing of paged allocators")
    group.addoption("--kvscope-seconds", type=float, default=10.0, help="how long each fuzzing test looks (10)")
    group.addoption("--kvscope-seed", type=int, default=0, help="the same seed gives the same programs (0)")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(threads=2, seconds=None, seed=None, replay=None): the test returns a factory, fuzzed with threads",
    )


@pytest.fixture
def kvscope_harness() -> Callable[[Factory, int, int], Harness]:
    """`Harness(factory, num_blocks, block_size)`: plays single operations and checks after each."""
    from kvscope.inspector.fuzz.harness import Harness

    return Harness


@pytest.fixture
def kvscope_fuzz(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`kvscope_fuzz(factory, seconds=, seed=, hang=)`: fails with the shortest program found that breaks a rule.

    The target runs in this process; a call of it that has not returned for `hang` seconds is a failure, too.
    """

    def fuzz(factory: Factory, *, seconds: float | None = None, seed: int | None = None, hang: float = HANG_S) -> None:
        from kvscope.inspector.fuzz.hunt import hunt
        from kvscope.inspector.fuzz.surroundings import check_apart

        limit, number = _options(request.config, seconds, seed)
        with _usable(hang):
            check_apart(factory)
            failure = hunt(factory, examples=10**9, seconds=limit, seed_value=number, shrink_seconds=max(5.0, limit))
        if failure is not None:
            where = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
            pytest.fail(f"{failure.message}\n\n{failure.program.pasted(*where)}", pytrace=False)

    return fuzz


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """What a test with the marker returns is a factory of allocators, whose schedules are explored."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return (yield)
    function, made = pyfuncitem.obj, []

    def keep(*args: Any, **kwargs: Any) -> None:
        made.append(function(*args, **kwargs))

    pyfuncitem.obj = keep
    try:
        result = yield
    finally:
        pyfuncitem.obj = function
    _race(pyfuncitem, mark, made[0])
    return result


def _race(item: pytest.Function, mark: pytest.Mark, factory: Any) -> None:
    from kvscope.inspector.races import explore_allocator

    if not callable(factory):
        pytest.fail(f"a test with @pytest.mark.{MARK} returns factory(num_blocks, block_size), got {factory!r:.60}")
    unknown = [*map(repr, mark.args), *(name for name in mark.kwargs if name not in _OPTIONS)]
    if unknown:
        pytest.fail(f"@pytest.mark.{MARK} has no {unknown[0]}: it takes {', '.join(_OPTIONS)}", pytrace=False)
    given = {**_OPTIONS, **mark.kwargs}
    seconds, seed = _options(item.config, given["seconds"], given["seed"])
    with _usable(HANG_S):
        outcome = explore_allocator(
            factory, threads=given["threads"], seconds=seconds, seed=seed, replay=given["replay"]
        )  # fmt: skip
    if outcome.found:
        pytest.fail(outcome.text(), pytrace=False)


@contextmanager
def _usable(hang: float) -> Generator[None]:
    """A target that cannot be used, or that hangs, fails the test with one line."""
    from kvscope.errors import KVScopeError
    from kvscope.inspector.fuzz.watchdog import watched

    try:
        with watched(hang):
            yield
    except KVScopeError as error:
        raise pytest.fail.Exception(f"the target cannot be used: {error}", pytrace=False) from None


def _options(config: pytest.Config, seconds: float | None, seed: int | None) -> tuple[float, int]:
    return (
        float(config.getoption("--kvscope-seconds")) if seconds is None else seconds,
        int(config.getoption("--kvscope-seed")) if seed is None else seed,
    )
