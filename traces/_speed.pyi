from collections.abc import Callable
from types import FrameType
from typing import Any

EDITION: int

def methods(
    recorder: type, kinds: tuple[int, int, int], clock: Callable[[], int], getframe: Callable[[int], FrameType], /
) -> dict[str, Any]: ...
