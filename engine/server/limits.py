"""What is checked before any route runs: how large a body is, how long it takes to come, and who asks."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Any

from kvscope.engine.server.replies import error

OPEN_PATHS = ("/healthz",)


class Refused(Exception):
    """The request is answered at once and its body is not read further."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Gate:
    """ASGI middleware: 401 without the token, 413 for a body that is too large, 408 for one that does not come.

    Args:
        app: what stands behind it.
        max_body: bytes of a body, at most; it is counted while it comes, whatever its header says.
        body_timeout_s: seconds in which a body must have come.
        token: the bearer token that every path but `/healthz` needs; None asks for none.
    """

    def __init__(self, app: Any, *, max_body: int, body_timeout_s: float, token: str | None = None) -> None:
        self.app = app
        self.max_body = max_body
        self.body_timeout_s = body_timeout_s
        self._token = None if token is None else token.strip().encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            headers = {name.lower(): value for name, value in scope["headers"]}
            self._check(scope["path"], headers)
            body = await self._body(receive, headers)
        except Refused as refused:
            await _answer(send, refused)
            return
        given = False

        async def replay() -> Any:
            nonlocal given
            if given:
                return await receive()  # nothing but a disconnect can come now
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, replay, send)

    def _check(self, path: str, headers: dict[bytes, bytes]) -> None:
        scheme, _, given = headers.get(b"authorization", b"").strip().partition(b" ")
        wanted = self._token
        known = wanted is None or (scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), wanted))
        if not known and path not in OPEN_PATHS:
            raise Refused(401, "a valid bearer token is needed: Authorization: Bearer TOKEN", "invalid_api_key")
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            raise Refused(400, "the content-length header is not a number", "bad_length")
        if len(length) > 15 or int(length) > self.max_body:
            raise self._too_large()

    async def _body(self, receive: Any, headers: dict[bytes, bytes]) -> bytes:
        if headers.get(b"content-length", b"0").strip(b"0") == b"" and b"transfer-encoding" not in headers:
            return b""
        try:
            async with asyncio.timeout(self.body_timeout_s):
                return await self._collect(receive)
        except TimeoutError:
            raise Refused(408, f"the body did not come within {self.body_timeout_s:g} s", "timeout") from None

    async def _collect(self, receive: Any) -> bytes:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the client left while it sent its request", "disconnected")
            part = message.get("body", b"")
            size += len(part)
            if size > self.max_body:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self.max_body:,} bytes: send less", "body_too_large")


async def _answer(send: Any, refused: Refused) -> None:
    body = json.dumps(error(str(refused), refused.status, code=refused.code)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
               (b"connection", b"close")]  # fmt: skip
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
