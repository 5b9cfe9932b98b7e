"""HEAD is answered as GET is, without the body: what checks a server for life asks so."""

from __future__ import annotations

import asyncio
from typing import Any


class Head:
    """ASGI middleware: routes see a GET; the body goes nowhere, and one that would never end is broken off."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        over = asyncio.Event()

        async def heads(message: Any) -> None:
            if message["type"] == "http.response.start":
                await send(message)
            elif not over.is_set():
                over.set()
                await send({"type": "http.response.body", "body": b""})

        async def wait() -> Any:
            if not over.is_set():
                first = asyncio.ensure_future(receive())
                ended = asyncio.ensure_future(over.wait())
                done, _ = await asyncio.wait((first, ended), return_when=asyncio.FIRST_COMPLETED)
                if first in done:
                    ended.cancel()
                    return first.result()
                first.cancel()
            return {"type": "http.disconnect"}

        await self.app({**scope, "method": "GET"}, wait, heads)
