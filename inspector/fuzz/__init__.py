"""Fuzzing of paged allocators: what one must offer (`PagedAllocator`), and what it is checked against."""

from kvscope.inspector.fuzz.protocol import Copy, Factory, OutOfBlocks, PagedAllocator, Violation, Write

__all__ = ["Copy", "Factory", "OutOfBlocks", "PagedAllocator", "Violation", "Write"]
