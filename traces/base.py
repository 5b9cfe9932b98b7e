"""`base.bin` (traces/retention.py) as one look at a trace finds it."""

from __future__ import annotations

from kvscope.traces.fold import BlockFold
from kvscope.traces.folder import BASE
from kvscope.traces.place import Place
from kvscope.traces.retention import load_base

_UNKNOWN = "the state of blocks before their first event here is not known"


class Base:
    """What the events that a recorder let go had made of the pool; changes with `look` alone.

    Args:
        place: where the trace lies.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen = b""
        self.seq = 0  # rows below it are in `fold`
        self.fold: BlockFold | None = None
        self._damaged = self._absent = False
        self.let_go = 0  # events below this seq went by the recorder's own limits

    def look(self) -> None:
        """Read the file, if it is another one than before."""
        try:
            head = self._place.read(BASE, 0, 20)
        except FileNotFoundError:
            self._seen, self._absent, self._damaged = b"", True, False
            self.seq, self.fold = 0, None
            return
        except OSError:
            head = b""
        self._absent = False
        if head and head == self._seen:
            return
        found = load_base(self._place)
        self._damaged = found is None or found[0] < 0
        self.seq, self.fold = (0, None) if found is None or self._damaged else found
        self._seen = b"" if self._damaged else head

    def fits(self, end: int, empty: bool) -> bool:
        """Whether rows may follow it that end before `end`; `empty`: none are sealed yet."""
        return empty or self.seq <= end

    def refuse(self) -> None:
        """It speaks of rows that no segment can have held: it is not of this trace."""
        self._damaged, self.seq, self.fold, self._seen = True, 0, None, b""

    def settle(self, first_seq: int, first_segment: int) -> None:
        """Take note of the first row that is there, and of the number of its segment."""
        gone = first_segment > 0 and first_seq > 0
        self._absent = self._absent and gone
        self.let_go = self.seq if not self._damaged else first_seq if gone else 0

    @property
    def damage(self) -> list[str]:
        """What is wrong with it, one line at most."""
        if self._damaged:
            return [f"{BASE} is damaged: {_UNKNOWN}"]
        return [f"{BASE} is missing, and so are the first segments: {_UNKNOWN}"] if self._absent else []
