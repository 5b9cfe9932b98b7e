"""What is chosen on a page beside its place: what colours say, the time axis, filters, the settings of a simulation.

A choice is a parameter of the address as the place is, and is left out where it is the default. A page says what it
offers when it is drawn; what a link asks for beyond that is told in one line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

from kvscope.dashboard.notes import forget, note

# The parameters that a page's link carries.
ON_PAGE: Mapping[str, tuple[str, ...]] = {
    "live": ("colour", "speed"), "blocks": ("colour",), "requests": ("part",), "events": ("kinds",),
    "whatif": ("sizes", "pool", "reserving", "sharing", "policy"), "runs": ("run",),
}  # fmt: skip
EVERYWHERE = ("axis",)
NAMES = (*EVERYWHERE, *sorted({name for names in ON_PAGE.values() for name in names}))
_NOT_ON = {("live", "colour"): "owner"}  # it goes on holding on the other pages
_NONE = "none"  # of several: not one of them
_MOST_NAMED = 8  # of what is offered
Value = TypeVar("Value")


def asked() -> dict[str, str]:
    """What is chosen, by parameter, as it stands in the address; what is not there is the default."""
    found: dict[str, str] = st.session_state.setdefault("choices", {})
    return found


def take(name: str, said: str) -> None:
    """A link asks for it: what cannot be had of it is told by the page that has such a choice."""
    asked()[name] = said
    _from_link().add(name)


def begin() -> None:
    """A run of the script begins."""
    st.session_state["offered"] = set()


def parameters(page: str, *, drawn: bool = False) -> dict[str, str]:
    """Those that a page's link carries; of a page that was `drawn` in this run only what it has."""
    names = (*EVERYWHERE, *ON_PAGE.get(page, ()))
    if drawn:
        names = tuple(name for name in names if name in st.session_state["offered"])
    return {name: asked()[name] for name in names if name in asked() and asked()[name] != _NOT_ON.get((page, name))}


def one(name: str, offered: Sequence[Value], default: Value, *, key: str, what: str) -> dict[str, Any]:
    """The arguments of a widget for one of several values, which is set to what is chosen.

    Args:
        offered: what this page has. key: of the widget. what: the choice in words, for what cannot be had.
    """
    by_text = {_text(value): value for value in offered}
    said = _said(name)
    if said is not None and said not in by_text:
        said = _refuse(name, what, said, by_text, _text(default))
    _from_link().discard(name)
    st.session_state[key] = default if said is None else by_text[said]
    return {"key": key, "on_change": _keep, "args": (name, key, tuple(by_text), _text(default))}


def several(name: str, offered: Sequence[Value], default: Sequence[Value], *, key: str, what: str) -> dict[str, Any]:
    """The same for any number of them, in the order in which they are offered."""
    by_text = {_text(value): value for value in offered}
    said = _said(name)
    wanted = [] if said in (None, _NONE) else str(said).split(",")
    usual = ", ".join(map(_text, default)) or "everything"
    if unknown := [text for text in wanted if text not in by_text]:
        said = _refuse(name, what, unknown[0], by_text, usual)
    _from_link().discard(name)
    st.session_state[key] = list(default) if said is None else [v for text, v in by_text.items() if text in wanted]
    return {"key": key, "on_change": _keep, "args": (name, key, tuple(by_text), _texts(default, tuple(by_text)))}


def switch(name: str, default: bool, *, key: str, what: str) -> dict[str, Any]:
    """The same for a switch."""
    return one(name, (True, False), default, key=key, what=what)


def _said(name: str) -> str | None:
    state = st.session_state
    state["offered"].add(name)
    said = asked().get(name)
    elsewhere = said == _NOT_ON.get((state.get("page_drawn", ""), name), "") and name not in _from_link()
    return None if elsewhere else said


def _from_link() -> set[str]:
    found: set[str] = st.session_state.setdefault("from_link", set())
    return found


def _keep(name: str, key: str, order: tuple[str, ...], default: str) -> None:
    """Take over what a widget was set to."""
    value = st.session_state[key]
    text = _texts(value, order) if isinstance(value, list | tuple) else _text(value)
    st.session_state["moved"] = True  # the address that the browser sends with it is the one before
    forget()
    if text == default:
        asked().pop(name, None)
    else:
        asked()[name] = text


def _refuse(name: str, what: str, said: str, offered: Collection[str], instead: str) -> None:
    """Let go of what this page does not have; say so where a link asked for it."""
    if name in _from_link():
        few = ", ".join(list(offered)[:_MOST_NAMED]) + (" ..." if len(offered) > _MOST_NAMED else "")
        note(f"{what} {said!r:.60} was asked for, which is not one of {few}: {instead} is shown.")
    del asked()[name]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _texts(values: Sequence[Any], order: tuple[str, ...]) -> str:
    return ",".join(sorted(map(_text, values), key=order.index)) or _NONE
