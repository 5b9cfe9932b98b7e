"""Links into the dashboard, whoever serves it: the URL is the state of a view."""

from __future__ import annotations

from urllib.parse import urlencode

DEFAULT_PORT = 8501


def url(
    *,
    port: int = DEFAULT_PORT,
    host: str = "127.0.0.1",
    trace: str | None = None,
    seq: int | None = None,
    block: int | None = None,
    page: str | None = None,
) -> str:
    """The link that shows one page at one place: `http://127.0.0.1:8501/?page=blocks&seq=812&block=5`.

    Args:
        trace: the trace's name as the sidebar shows it; left out where there is only one.
        page: one of the paths in docs/dashboard.md, such as `live`, `blocks` or `findings`.
    """
    given = {"page": page, "trace": trace, "seq": seq, "block": block}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?{query}" if query else "")
