"""Switch points in any Python code: before each line, or before each instruction that touches something shared.

The target needs to know nothing of us: `sys.settrace` calls back in our threads alone, and only in functions of the
target's modules. An instruction that works on locals and constants alone commutes with everything another thread does,
so there is no point in front of it: that leaves out nothing.

CPython with a GIL gives it up at function entries, backward jumps, after calls into C, and while a thread waits for a
lock: who takes a lock that another one has goes on when that one has run further. So a switch at a lock, an operation
or an event is one that any build makes; one between other instructions, only a build without a GIL (or another
interpreter, or another version). `Place` says which it was.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Collection
from types import CodeType, FrameType
from typing import Any, NamedTuple

from kvscope.errors import UsageError
from kvscope.inspector.races.control import Control
from kvscope.inspector.races.worker import Label

_LOCAL = (
    "LOAD_FAST", "LOAD_CONST", "STORE_FAST", "DELETE_FAST", "POP_TOP", "POP_EXCEPT", "PUSH_", "NOP", "CACHE", "COPY",
    "SWAP", "RESUME", "PRECALL", "KW_NAMES", "EXTENDED_ARG", "RETURN_", "BUILD_TUPLE", "BUILD_LIST", "BUILD_MAP",
    "JUMP", "POP_JUMP", "MAKE_CELL", "MAKE_FUNCTION", "COPY_FREE_VARS", "IS_OP", "LOAD_CLOSURE", "RERAISE", "END_FOR",
    "LOAD_SMALL_INT", "NOT_TAKEN", "RETURN_GENERATOR", "LOAD_ASSERTION_ERROR", "RAISE_VARARGS", "CHECK_EXC_MATCH",
)  # fmt: skip
_GIVES_GIL = ("CALL", "JUMP_BACKWARD", "RESUME", "BEFORE_WITH")
_PLAIN = ("line", "opcode", "try")  # points that are no call: the instruction in front of them decides
CRASHING = (3, 12)  # a Python that crashes while threads are traced
_CRASHES = sys.version_info[:2] == CRASHING
_OURS = (
    "control", "worker", "locks", "pylevel", "hooks", "history", "player", "shared", "flights", "allocators", "kinds",
)  # fmt: skip
_MACHINERY = frozenset(f"{__package__}.{name}" for name in _OURS)


class Place(NamedTuple):
    """Where a point is. gil: whether a switch here can happen under a GIL."""

    file: str
    line: int
    function: str
    gil: bool


class SharedCode:
    """Which instructions of a code object touch something shared; looked at once per code object."""

    def __init__(self) -> None:
        self._known: dict[CodeType, frozenset[int]] = {}
        self._names: dict[CodeType, dict[int, str]] = {}

    def offsets(self, code: CodeType) -> frozenset[int]:
        """Offsets of these instructions."""
        found = self._known.get(code)
        if found is None:
            found = frozenset(i.offset for i in dis.get_instructions(code) if not i.opname.startswith(_LOCAL))
            self._known[code] = found
        return found

    def name(self, code: CodeType, offset: int) -> str:
        """The instruction at an offset."""
        if code not in self._names:
            self._names[code] = {i.offset: i.opname for i in dis.get_instructions(code)}
        return self._names[code].get(offset, "")


class Tracer:
    """Makes points of the lines, or instructions, that our threads run in some modules.

    Args:
        control: whose points they are.
        modules: names of the modules whose functions are looked at.
        opcodes: before instructions; else before lines.

    Raises:
        UsageError: this Python crashes while threads are traced by instruction (seen with CPython 3.12.1; 3.11 and 3.13
            do not).
    """

    def __init__(self, control: Control, modules: Collection[str], *, opcodes: bool) -> None:
        if _CRASHES:
            raise UsageError(
                "races between lines or instructions: CPython 3.12 crashes while threads are traced; use Python 3.11 "
                "or 3.13, or do without them: kvscope races --level hook, kvscope fuzz --threads 1"
            )
        self.control, self.modules, self.opcodes = control, frozenset(modules), opcodes
        self.code = SharedCode()
        self.watching = False  # note down every instruction, for `gil`
        self._last: dict[int, tuple[FrameType, int]] = {}  # thread -> what it ran last that is not local

    def install(self) -> None:
        """From here on in this thread."""
        self._last.pop(self._thread(), None)
        sys.settrace(self._call)

    @staticmethod
    def remove() -> None:
        """No longer in this thread."""
        sys.settrace(None)

    def place(self, thread: int, label: Label) -> Place:
        """Where the point is that this thread has just reached."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and _inside(frame):
            frame = frame.f_back
        if frame is None:
            return Place("", 0, "", True)
        return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname,
                     label[0] not in _PLAIN or self._gil(frame, thread))  # fmt: skip

    def _gil(self, frame: FrameType, thread: int) -> bool:
        last = self._last.get(thread)
        if last is None or not self.watching or last[0] is not frame:
            return last is None or not self.watching  # back from a Python function: its return gives nothing up
        return self._gives(frame, last[1])

    def _gives(self, frame: FrameType, offset: int) -> bool:
        return self.code.name(frame.f_code, offset).startswith(_GIVES_GIL)

    def _thread(self) -> int:
        me = self.control.mine()
        return me.number if me is not None else -1

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_globals.get("__name__") not in self.modules:
            return None
        if self.watching:
            self._every_instruction(frame, self._watch)
            self._last.pop(self._thread(), None)  # a function has been entered: that gives the GIL up
            return self._watch
        if self.opcodes:
            self._every_instruction(frame, self._opcode)
            frame.f_trace_lines = False
            return self._opcode
        return self._line

    def _every_instruction(self, frame: FrameType, trace: Callable[[FrameType, str, Any], Any]) -> None:
        """Trace the instructions of a frame from here on: a schedule would differ when it is played again, if the first
        call of a function were not."""
        frame.f_trace = trace  # 3.13 looks whether there is one when `f_trace_opcodes` is set
        frame.f_trace_opcodes = True

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.control.point(("line", frame.f_code.co_name, frame.f_lineno))
        return self._line

    def _opcode(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code, offset = frame.f_code, frame.f_lasti
            if offset in self.code.offsets(code):
                self.control.point(("opcode", code.co_name, offset))
        return self._opcode

    def _watch(self, frame: FrameType, event: str, arg: Any) -> Any:
        """As `_line` and `_opcode`, and note what runs."""
        if event == "opcode":
            if self.opcodes:
                self._opcode(frame, event, arg)
            # What is local moves behind the switch, or in front of it: only what gives the GIL up counts of it.
            if frame.f_lasti in self.code.offsets(frame.f_code) or self._gives(frame, frame.f_lasti):
                self._last[self._thread()] = (frame, frame.f_lasti)
        elif event == "line" and not self.opcodes:
            self._line(frame, event, arg)
        return self._watch


def _inside(frame: FrameType) -> bool:
    """Whether a frame is the explorer's, a recorder's, or of `threading`: never what the user wants to see."""
    name = str(frame.f_globals.get("__name__", ""))
    return name == "threading" or name in _MACHINERY or name.startswith("kvscope.traces.")


def place_of(_thread: int, _label: Label) -> Place:
    """Where a point is, where no tracer runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _inside(frame):
        frame = frame.f_back
    if frame is None:
        return Place("", 0, "", True)
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname, True)
