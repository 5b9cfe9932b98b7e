"""How columns of a table stand: numbers end below one another, also where a unit makes them text."""

from __future__ import annotations

from typing import Any

import streamlit as st


def at_right(*columns: str) -> dict[str, Any]:
    """The `column_config` of columns of numbers with units."""
    return {name: st.column_config.Column(alignment="right") for name in columns}
