"""What happens in a simulated engine, apart from the order in which it does."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """What happens, apart from the order: requests as (prompt, tokens to decode, samples), and what is done to them."""

    num_blocks: int
    block_size: int
    window: int
    requests: tuple[tuple[tuple[int, ...], int, int], ...]
    client: tuple[tuple[str, int], ...]
    mover: tuple[tuple[str, int], ...]

    @classmethod
    def draw(cls, seed: str, *, focus: str = "") -> Script:
        """A random small one; the same seed gives the same.

        focus: much of this: store, stores (of several blocks), load, lookup or window.
        """
        draw = random.Random(seed)
        many = focus == "stores"
        focus = "store" if many else focus
        size = 1 if focus in ("store", "lookup") else draw.randint(1, 2)
        window = 2 * size if focus == "window" or (not focus and draw.random() < 0.3) else 0
        common = tuple(draw.randrange(2) for _ in range(size * 2)) if focus != "store" else ()
        requests = tuple(
            ((*common[: draw.randint(0, len(common))], 7 + i), draw.randint(2, 5), draw.choice((1, 1, 2)))
            for i in range(4 if focus == "lookup" else draw.randint(2, 3))
        )
        client = [("submit", i) for i in range(len(requests))]
        if draw.random() < 0.5:
            client.insert(draw.randint(1, len(client)), ("abort", draw.randrange(len(requests))))
        names = (focus,) if focus in ("store", "load", "lookup") else ("store", "store", "load", "lookup")
        amounts = 2 if focus == "lookup" else 8
        mover = tuple((draw.choice(names), draw.randrange(amounts)) for _ in range(draw.randint(1, 2)))
        if any(name == "load" for name, _ in mover):
            client.append(("abort-load", 0))
        longest = max(-(-(len(p) + n) // size) for p, n, _ in requests)
        if many:
            mover = tuple((name, amount | 1) for name, amount in mover)
        spare = 0 if many else draw.randint(0, 1) if focus else draw.randint(1, 5)
        return cls(longest + spare, size, window, requests, tuple(client), mover)
