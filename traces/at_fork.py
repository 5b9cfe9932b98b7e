"""A forked child shares the mappings of its parent's recorders: its rows would be written over those of the parent."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvscope.traces.recorder import Recorder

_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


def silence_in_child(recorder: Recorder) -> None:
    """In any child that is forked from now on this recorder drops what it is told."""
    _recorders.add(recorder)


def _silence() -> None:
    for recorder in list(_recorders):
        recorder._closed = True
        recorder._limit = 0


os.register_at_fork(after_in_child=_silence)
