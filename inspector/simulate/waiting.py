"""A sequence as the counting simulation knows it."""

from __future__ import annotations

from kvscope.engine.baselines import Region

NEVER = -1


class Waiting:
    """A queued or running sequence. While it decodes, it has written `step + offset` positions in step `step`."""

    __slots__ = ("arrival", "computed", "decoding", "doubles", "finish_step", "first", "grow_step", "keys",
                 "left", "length", "number", "offset", "order", "output", "published", "region")  # fmt: skip

    def __init__(self, number: int, arrival: int, prompt: int, output: int) -> None:
        self.number = number
        self.arrival = arrival
        self.output = output
        self.length = prompt  # tokens known when it was, or will be, admitted
        self.left = output  # tokens still to come
        self.computed = 0
        self.first = True  # no token has come yet
        self.decoding = False
        self.region: Region | None = None
        self.offset = 0
        self.order = self.grow_step = self.finish_step = NEVER
        # What only sharing needs: keys of its full blocks, how many of them are published, and which of those others
        # serve.
        self.keys: list[int] | None = None
        self.published = 0
        self.doubles: set[int] = set()
