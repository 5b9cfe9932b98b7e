"""The one exception tree of KVScope.

    KVScopeError                 anything a user can act on; printed as one line
    ├── UsageError               a value the caller gave makes no sense (size, flag, prompt)
    ├── ModelError               a model cannot be found, read or is not supported
    ├── OutOfBlocks              the pool cannot give what was asked; nothing was changed
    ├── FaultyCall               an operation on a block or sequence that is not in the right state
    ├── Stalled                  nothing can go on any more; names who waits for whom
    ├── Sanitized                the sanitizer found a broken rule and was told to stop the engine
    ├── CheckNotRun              a check that was asked for has looked at nothing; that is not a clean run
    ├── TraceError               a trace cannot be read or written
    ├── Busy                     a server has as much to do as it may have
    ├── EngineFailed             the engine behind a server has stopped; says why
    └── MissingDependency        an optional package is not installed

A message says what happened, the value, the limit and what to do.
"""

from __future__ import annotations


class KVScopeError(Exception):
    """Base of every error a user of KVScope can act on."""


class UsageError(KVScopeError):
    """A given value makes no sense: change the call."""


class ModelError(KVScopeError):
    """A model cannot be found, read, or is of a kind that is not supported."""


class OutOfBlocks(KVScopeError):
    """The pool cannot hand out what was asked; the state is exactly as before the call."""

    def __init__(self, needed: int, available: int, message: str) -> None:
        super().__init__(message)
        self.needed = needed
        self.available = available


class FaultyCall(KVScopeError):
    """An operation that the state of a block or sequence does not allow (double free, unknown id)."""


class Stalled(KVScopeError):
    """The scheduler has work and nothing can move: what is waited for will never be given back."""


class Sanitized(KVScopeError):
    """The sanitizer stopped the engine at a broken rule; `finding` is what it found."""

    def __init__(self, message: str, finding: object) -> None:
        super().__init__(message)
        self.finding = finding


class CheckNotRun(KVScopeError):
    """A check that was asked for did not run, or compared nothing: the run must not pass for a clean one."""


class TraceError(KVScopeError):
    """A trace cannot be opened, is of an unknown version, or cannot be written."""


class Busy(KVScopeError):
    """A server has as many requests as it may have, or is shutting down; nothing was queued."""


class EngineFailed(KVScopeError):
    """The engine behind a server has stopped: a step failed, or it was shut down."""


class MissingDependency(KVScopeError):
    """An optional package is needed for this and not installed; the message names the extra."""
