"""A step lands the writes of the sequences that it schedules, and of no others."""

from __future__ import annotations

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled


def test_write_of_another_driver_is_not_committed_by_this_step() -> None:
    manager = BlockManager(8, 2, hash_key=b"test")
    manager.admit(0, [1, 2, 3])
    manager.admit(1, [7, 8, 9])
    manager.write(0, 0, 3)
    manager.write(1, 0, 3)  # by a thread that begins its own step later
    manager.begin_step([Scheduled(0, 0, 3)])
    manager.end_step()
    assert manager.probe([1, 2, 3]).cached_tokens == 2
    assert manager.probe([7, 8, 9]).cached_tokens == 0, "its bytes do not exist yet"
    assert manager.pool.state[manager.table(1)[0]] == BlockState.WRITING
    manager.begin_step([Scheduled(1, 0, 3)])
    manager.end_step()
    assert manager.probe([7, 8, 9]).cached_tokens == 2


def test_what_a_freed_sequence_was_about_to_write_lands_in_no_step() -> None:
    manager = BlockManager(8, 2, hash_key=b"test")
    manager.admit(0, [1, 2, 3])
    manager.write(0, 0, 3)
    manager.free(0)
    manager.admit(0, [4, 5, 6], resumed=True)
    manager.begin_step([Scheduled(0, 0, 0)])
    manager.end_step()
    assert manager.probe([4, 5, 6]).cached_tokens == 0
