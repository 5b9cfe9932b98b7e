"""Allocators of other engines as `PagedAllocator`s, for `kvscope fuzz NAME`; each imports its engine."""
