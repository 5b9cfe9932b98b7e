"""What a client that is refused is told: one line in OpenAI's shape with the field, its value and what is wanted."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from kvscope.engine.server.protocol import MAX_IDS, MAX_MESSAGES, MAX_PROMPTS, MAX_TEXT
from kvscope.engine.server.replies import BadField, error, status_of
from kvscope.errors import KVScopeError

log = logging.getLogger(__name__)

_WANTED = {
    "prompt": "a text, a list of at most 64 texts, token ids, or lists of them",
    "stop": "a text, or at most 4 of them",
    "messages": "a list of {role, content}; content is a text, or parts of type text",
    "stream_options": 'an object such as {"include_usage": true}',
}
_TYPES = {
    "bool_type": "true or false", "int_type": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "finite_number": "a finite number", "string_type": "a text", "list_type": "a list",
    "dict_type": "an object", "model_attributes_type": "an object", "int_parsing": "a whole number",
    "float_parsing": "a number", "bool_parsing": "true or false", "int_parsing_size": "a smaller number",
}  # fmt: skip
_TOO_LONG = "context_length_exceeded"


def speak_plainly(app: FastAPI) -> None:
    """Every error in OpenAI's shape, one line, no traceback; and the schema says so."""

    @app.exception_handler(KVScopeError)
    async def own(_: Request, problem: KVScopeError) -> JSONResponse:
        status = status_of(problem)
        headers = {"retry-after": "1"} if status == 429 else None
        param, code = (problem.param, problem.code) if isinstance(problem, BadField) else (None, None)
        body = error(" ".join(str(problem).split()), status, param=param, code=code)
        return JSONResponse(body, status_code=status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, problem: RequestValidationError) -> JSONResponse:
        message, param, code = complaint(problem.errors(), problem.body)
        return JSONResponse(error(message, 400, param=param, code=code), status_code=400)

    @app.exception_handler(HTTPException)
    async def plain(_: Request, problem: HTTPException) -> JSONResponse:
        headers = {name.lower(): value for name, value in (problem.headers or {}).items()}
        if "GET" in headers.get("allow", ""):
            headers["allow"] += ", HEAD"
        body = error(str(problem.detail), problem.status_code)
        return JSONResponse(body, status_code=problem.status_code, headers=headers)

    @app.exception_handler(Exception)
    async def unknown(_: Request, problem: Exception) -> JSONResponse:
        log.exception("a request failed", exc_info=problem)
        return JSONResponse(error("the server failed on this request; its log says why", 500), status_code=500)

    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _as_it_is(made())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def complaint(errors: Sequence[Any], body: object) -> tuple[str, str | None, str | None]:
    """(one line, the field it is about, OpenAI's code for it) of what is wrong with a request."""
    first = errors[0] if errors else {"loc": (), "msg": "the request is malformed", "type": ""}
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        return "the body is not JSON", None, None
    if not path:
        return "the body is not a JSON object: send one, with content-type: application/json", None, None
    field = path[0]
    if first["type"] == "missing":
        return f"{'.'.join(path)} is missing: it is needed", field, None
    if isinstance(body, dict) and (said := _too_long(field, body.get(field))):
        return said[0], field, said[1]
    if field in _WANTED:
        return f"{field}: wanted {_WANTED[field]}", field, None
    kinds = [_TYPES[each["type"]] for each in errors if each["loc"][:2] == first["loc"][:2] and each["type"] in _TYPES]
    if "a number" in kinds:
        kinds = ["a number"]
    wanted = f"wanted {kinds[0]}" if kinds else str(first["msg"])
    return f"{field} is {_shown(first.get('input'))}: {wanted}", field, None


def _too_long(field: str, value: object) -> tuple[str, str | None] | None:
    """(what is too long, OpenAI's code) of a field's value; None where nothing is."""
    if isinstance(value, str):
        most = {"model": 512, "user": 256}.get(field, MAX_TEXT)
        code = _TOO_LONG if most == MAX_TEXT and field != "stop" else None
        return _over(field, len(value), "characters", most, code)
    if not isinstance(value, list):
        return None
    if field == "messages":
        if said := _over(field, len(value), "messages", MAX_MESSAGES, None):
            return said
        texts = [each.get("content") for each in value if isinstance(each, dict)]
        texts += [
            part.get("text") for text in texts if isinstance(text, list) for part in text if isinstance(part, dict)
        ]
    else:
        if value and isinstance(value[0], int):
            return _over(field, len(value), "tokens", MAX_IDS, _TOO_LONG)
        if field == "prompt" and (said := _over(field, len(value), "prompts", MAX_PROMPTS, None)):
            return said
        if field == "prompt" and (most := max((len(each) for each in value if isinstance(each, list)), default=0)):
            return _over(field, most, "tokens in one list", MAX_IDS, _TOO_LONG)
        texts = value
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    return _over(field, longest, "characters in one text", MAX_TEXT, None if field == "stop" else _TOO_LONG)


def _over(field: str, count: int, of: str, most: int, code: str | None) -> tuple[str, str | None] | None:
    if count <= most:
        return None
    return f"{field} has {count:,} {of}: this server takes at most {most:,}; shorten it", code


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _as_it_is(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with our errors in the place of FastAPI's: what it says of 422 is answered 400 here."""
    refusal = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    for path in schema["paths"].values():
        for operation in path.values():
            responses = operation["responses"]
            if responses.pop("422", None) is not None:
                responses["400"] = {"description": "The request is wrong: the message says how.", **refusal}
            responses["default"] = {"description": "It was refused, or failed: the message says why.", **refusal}
    text = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    fields = {"message": {"type": "string"}, "type": {"type": "string"}, "param": text, "code": text}
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = {
        "type": "object", "required": ["error"],
        "properties": {"error": {"type": "object", "required": list(fields), "properties": fields}},
    }  # fmt: skip
    return schema
