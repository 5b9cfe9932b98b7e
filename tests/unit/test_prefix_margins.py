"""What a prompt finds in the prefix cache, block by block, and what is recorded of each hit."""

from __future__ import annotations

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import PrefixIndex
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import SequenceTable
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason

SIZE = 2


def cache(blocks: int = 8, full: int = 4) -> tuple[PrefixCache, BlockPool, SequenceTable, MemoryRecorder]:
    """Sequence 1 has published so many blocks of tokens 0, 1, 2, ..."""
    sink = MemoryRecorder(num_blocks=blocks, block_size=SIZE)
    pool = BlockPool(blocks, SIZE, sink=sink)
    made, tokens = PrefixCache(pool, share=True), list(range(SIZE * full))
    row = SequenceTable(1, tokens, hashes=list(made.match(tokens, ()).hashes), computed=len(tokens))
    for lblock, block in enumerate(pool.take(full, seq_id=1, lblock=0, reason=Reason.PREFILL).tolist()):
        row.add(block, 1)
        pool.write(block, 0, SIZE, seq_id=1, lblock=lblock, reason=Reason.PREFILL)
        assert pool.commit(block, 1, seq_id=1, lblock=lblock)
    made.publish(row)
    assert row.published == full
    return made, pool, row, sink


@pytest.mark.parametrize("length", range(1, 12))
@pytest.mark.parametrize("alike", range(10))
def test_a_prompt_finds_the_blocks_that_it_begins_with(length: int, alike: int) -> None:
    """Its first `alike` tokens are those of the four published blocks; the last token is computed in any case."""
    made, _, row, _ = cache()
    prompt = [i if i < alike else 90 + i for i in range(length)]
    found = made.match(prompt, ())
    full, usable = length // SIZE, (length - 1) // SIZE
    hits = min(alike // SIZE, 4, usable)
    stop = Reason.NONE if hits == full else Reason.LAST_TOKEN if hits == usable else Reason.NOT_IN_INDEX
    assert found.hits == tuple(range(hits))
    assert (len(found.hashes), found.cached_tokens, found.stop) == (full, hits * SIZE, stop)
    assert found.hashes[:hits] == tuple(row.hashes[:hits])
    assert (found.needed, found.available, found.pending) == (-(-length // SIZE) - hits, 4, None)


def test_the_first_missing_block_says_whom_to_wait_for() -> None:
    made, _, row, _ = cache(full=1)
    for seq_id, prompt in ((2, [0, 1, 5, 6]), (3, [0, 1, 7, 8, 9, 9])):
        made.announce(SequenceTable(seq_id, prompt, hashes=list(made.match(prompt, ()).hashes), published=1))
    prompts = ([0, 1, 5, 6, 4, 4, 1], [0, 1, 7, 8, 4], [0, 1, 7, 8, 9, 9, 1], [0, 1, 4, 4, 9, 9, 1], [5, 6, 5, 6, 1])
    assert [made.match(prompt, ()).pending for prompt in prompts] == [2, 3, 3, None, None]
    assert [len(made.match(prompt, ()).hits) for prompt in prompts] == [1, 1, 1, 1, 0]
    made.withdraw(SequenceTable(3, [], hashes=list(made.match([0, 1, 7, 8], ()).hashes)), from_block=1)
    assert made.match([0, 1, 7, 8, 4], ()).pending is None
    assert row.published == 1


@pytest.mark.parametrize("differs", range(4))
def test_nothing_is_found_behind_a_block_of_the_same_hash_and_other_tokens(
    differs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, *_ = cache()
    monkeypatch.setattr(PrefixIndex, "same", lambda index, block, *_: block != differs)
    found = made.match([*range(9)], ())
    assert (found.hits, found.stop) == (tuple(range(differs)), Reason.TOKENS_DIFFER)


def test_each_hit_tells_of_the_prefix_that_it_stands_behind() -> None:
    sink = MemoryRecorder(num_blocks=16, block_size=SIZE)
    manager = BlockManager(16, SIZE, sink=sink)
    prompt = [*range(11)]
    assert manager.admit(1, prompt) == 0
    manager.write(1, 0, 11)
    manager.begin_step([Scheduled(1, 0, 11)])
    manager.end_step()
    assert manager.admit(2, prompt) == 10
    told = {kind: [sink.detail(i) for i, event in enumerate(sink.events) if event["kind"] == kind]
            for kind in (Kind.PUBLISH, Kind.HIT)}  # fmt: skip
    assert len(told[Kind.HIT]) == 5
    assert told[Kind.HIT] == told[Kind.PUBLISH]
