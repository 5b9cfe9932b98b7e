"""A chat template from a file is somebody else's program: whatever it does, the answer is one line."""

from __future__ import annotations

import pytest

from kvscope.engine.model.chat import ChatTemplate
from kvscope.errors import ModelError

ENDLESS = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"
HUGE = "{{ 'x' * 10**15 }}"


@pytest.mark.parametrize("source", [ENDLESS, HUGE, "{{ nothing.there }}", "{% if %}", "{{ 1 // 0 }}"])
def test_a_bad_template_is_one_line(source: str) -> None:
    with pytest.raises(ModelError) as error:
        ChatTemplate("m", source).render([{"role": "user", "content": "hi"}])
    assert "\n" not in str(error.value)
