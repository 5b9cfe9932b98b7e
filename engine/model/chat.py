"""Renders chat templates, which come with a model and are not trusted: in Jinja's immutable sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kvscope.engine.model.text import one_line
from kvscope.errors import ModelError, UsageError


class _Refused(Exception):
    """The template called raise_exception."""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's Jinja chat template (None: it has none) and the special tokens that it may name."""

    name: str
    source: str | None
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render the conversation up to where the model answers.

        Raises:
            ModelError: there is no template, or it is broken.
            UsageError: the template refuses these messages.
        """
        if self.source is None:
            raise ModelError(f"model {self.name} has no chat template; give it a plain prompt instead")
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        # The same environment as transformers' chat templates, which model makers test against.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            template = environment.from_string(self.source)
            return template.render(messages=list(messages), add_generation_prompt=True, **self.tokens)
        except _Refused as error:
            raise UsageError(f"the chat template of {self.name} refuses these messages: {error}") from None
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise ModelError(f"the chat template of {self.name} cannot be rendered: {one_line(error)}") from None
        except (RecursionError, MemoryError) as error:
            raise ModelError(f"the chat template of {self.name} does not end: {type(error).__name__}") from None


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: object) -> NoReturn:
    raise _Refused(one_line(message))


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
