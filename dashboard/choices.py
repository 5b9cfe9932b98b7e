"""What is chosen on a page beside its place: what colours say, the time axis, filters, the settings of a simulation.

A choice is a parameter of the address as the place is, and is left out where it is the default. A page says what it
offers when it is drawn; what a link asks for beyond that is told in one line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import streamlit as st

from kvscope.dashboard.notes import forget, note
from kvscope.dashboard.pages import TIMELESS

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
    if name in NAMES:
        asked()[name] = said
    _from_link().add(name)


def offers(name: str) -> bool:
    """The page has such a choice, which is none of the above; whether a link has asked for it since it last had."""
    st.session_state["offered"].add(name)
    found = name in _from_link()
    _from_link().discard(name)
    return found


def leftover(page: str) -> list[str]:
    """What a link asks for that the page, which has been drawn, has no choice of; it is forgotten."""
    waits = () if page in TIMELESS else EVERYWHERE  # of a page that plays the time bar is not there
    left = [name for name in sorted(_from_link()) if name not in waits]
    _from_link().difference_update(left)
    return [f"{name}={asked().pop(name, st.session_state.get(name))}" for name in left]


def begin() -> None:
    """A run of the script begins."""
    st.session_state["offered"] = set()


def parameters(page: str, *, drawn: bool = False) -> dict[str, str]:
    """Those that a page's link carries; of a page that was `drawn` in this run only what it has."""
    names = (*(() if page in TIMELESS else EVERYWHERE), *ON_PAGE.get(page, ()))
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
        said = _refuse(name, what, [said], by_text, _text(default))
    _from_link().discard(name)
    st.session_state[key] = default if said is None else by_text[said]
    return {"key": key, "on_change": _keep, "args": (name, key, tuple(by_text), _text(default))}


def several(name: str, offered: Sequence[Value], default: Sequence[Value], *, key: str, what: str) -> dict[str, Any]:
    """The same for any number of them, in the order in which they are offered."""
    by_text = {_text(value): value for value in offered}
    said = _said(name)
    wanted = [] if said in (None, _NONE) else str(said).split(",")
    usual, order = ", ".join(map(_text, default)) or "everything", tuple(by_text)
    had = [text for text in order if text in wanted]
    if unknown := [text for text in dict.fromkeys(wanted) if text not in by_text]:
        said = _refuse(name, what, unknown, by_text, ", ".join(had) or usual)
        if had:
            said = ",".join(sorted(had, key=order.index))
            if said != _texts(default, order):
                asked()[name] = said
    _from_link().discard(name)
    st.session_state[key] = list(default) if said is None else [by_text[text] for text in had]
    return {"key": key, "on_change": _keep, "args": (name, key, order, _texts(default, order))}


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
        return
    asked()[name] = text
    if not isinstance(value, list | tuple) and text not in order:  # typed: what it is not is told
        _from_link().add(name)


def _refuse(name: str, what: str, said: Sequence[str], offered: Collection[str], instead: str) -> None:
    """Let go of what this page does not have; say so where a link asked for it."""
    if name in _from_link():
        few = ", ".join(list(offered)[:_MOST_NAMED]) + (" ..." if len(offered) > _MOST_NAMED else "")
        named = ", ".join(f"{text!r:.60}" for text in said[:_MOST_NAMED]) + (" ..." if len(said) > _MOST_NAMED else "")
        were = "was asked for, which is not one of" if len(said) == 1 else "were asked for, which are not among"
        note(f"{what} {named} {were} {few}: {instead} is shown.")
    del asked()[name]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _texts(values: Sequence[Any], order: tuple[str, ...]) -> str:
    return ",".join(sorted(map(_text, values), key=order.index)) or _NONE
