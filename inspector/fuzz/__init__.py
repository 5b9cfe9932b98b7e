"""Fuzzing of paged allocators: what one must offer (`PagedAllocator`), and what it is checked against."""

from kvscope.inspector.fuzz.harness import Harness
from kvscope.inspector.fuzz.protocol import Copy, Factory, OutOfBlocks, PagedAllocator, Swap, Violation, Write
from kvscope.inspector.fuzz.target import load_target

__all__ = ["Copy", "Factory", "Harness", "OutOfBlocks", "PagedAllocator", "Swap", "Violation", "Write", "load_target"]
