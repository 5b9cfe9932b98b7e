"""The limits of the HTTP side; needs neither FastAPI nor torch, so that a wrong one is refused at once."""

from __future__ import annotations

from dataclasses import dataclass

from kvscope.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Limits of the HTTP side.

    max_body: bytes of a request. body_timeout_s: in which it must have come, and head_timeout_s what stands before it,
    where the server is uvicorn with `connections.patient_for`. max_tokens: of one answer. token: the
    bearer token that clients must send; None asks for none. grace_s: what running requests get at shutdown.
    """

    max_body: int = 4 << 20
    body_timeout_s: float = 30.0
    head_timeout_s: float = 15.0
    max_tokens: int = 4096
    token: str | None = None
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 << 10 <= self.max_body <= 1 << 30:
            raise UsageError(f"max_body is {self.max_body}: must be 1,024..{1 << 30:,} bytes")
        for name, seconds in (("body_timeout_s", self.body_timeout_s), ("head_timeout_s", self.head_timeout_s)):
            if not 0 < seconds <= 3600:
                raise UsageError(f"{name} is {seconds}: must be above 0, at most 3,600")
        if not 0 <= self.grace_s <= 3600:
            raise UsageError(f"grace is {self.grace_s}: must be 0..3,600 seconds")
        if not 1 <= self.max_tokens <= 1 << 20:
            raise UsageError(f"max_tokens is {self.max_tokens}: must be 1..{1 << 20}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise UsageError("the bearer token is empty or holds odd characters: take printable ASCII")
