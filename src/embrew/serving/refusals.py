"""Handlers that answer every refusal with OpenAI's error object; FastAPI's and pydantic's have embrew's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from embrew.serving.errors import SHOWN, ApiError

OF_TEXTS = ("value_error", "list_type")  # errors whose value may be a text; it is not shown


def add_handlers(app: FastAPI) -> None:
    """Let an application answer all refusals as OpenAI does."""
    app.add_exception_handler(ApiError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)  # type: ignore[arg-type]


async def _refused(request: Request, error: ApiError) -> Response:
    if error.param == "input" and request.scope["facts"]["path"] != "/v1/embeddings":
        error.param = "inputs"  # its name on the other routes
    return error.response()


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    first, *others = error.errors()
    where = _field(first)
    if not where:
        return ApiError(400, _of_body(request, first), code="invalid_body").response()
    match first["type"]:
        case "missing":
            unknown = [_field(other) for other in others if other["type"] == "extra_forbidden"]
            but = f"; {unknown[0]} is no field of this request" if unknown else ""
            said = f"{where} is missing, which is required{but}"
        case "extra_forbidden":
            said = f"{where} is no field of this request; leave it out, or see /openapi.json for those that there are"
        case _:
            given = "" if first["type"] in OF_TEXTS else _shown(first["input"])
            said = f"{where}{given}: {first['msg'].removeprefix('Value error, ')}"
    return ApiError(400, said, param=where).response()


async def _http_error(request: Request, error: HTTPException) -> Response:
    method, path, headers = request.method, request.url.path, dict(error.headers or {})
    code: str | None = None
    match error.status_code:
        case 400:
            said, code = f"the body cannot be read: {_encoding(request)}", "invalid_body"
        case 404:
            said, code = f"there is no path {path[:SHOWN]}; see /openapi.json for those that there are", "unknown_path"
        case 405:
            said = f"{method} is not allowed for {path}; use {headers.get('Allow', 'another method')}"
        case _:
            said = str(error.detail)
    return ApiError(error.status_code, said, code=code).response(headers)


def _field(error: Mapping[str, Any]) -> str:
    return ".".join(part for part in error["loc"][1:] if isinstance(part, str))


def _of_body(request: Request, error: Mapping[str, Any]) -> str:
    """Return what is wrong with a body as a whole."""
    if error["type"] == "json_invalid":
        return f"the body is no valid JSON ({error['ctx']['error']}, character {error['loc'][-1]}); send a JSON object"
    if error["type"] == "missing":
        return "the body is empty; send a JSON object"
    if isinstance(error["input"], bytes):
        given = request.headers.get("content-type", "none")
        return f"the content type is {given[:SHOWN]}; send a JSON object with content-type: application/json"
    if error["type"] == "value_error":
        return f"the body has {error['msg'].removeprefix('Value error, ')}"
    if error["type"] == "model_attributes_type":
        return f"the body is a JSON {_kind(error['input'])}; send a JSON object"
    return f"the body has a field whose name is not valid: {error['msg']}"


def _encoding(request: Request) -> str:
    given = request.headers.get("content-encoding")
    if given is not None:
        return f"its content-encoding is {given[:SHOWN]}; send it uncompressed"
    return "send JSON in UTF-8, nested at most a few levels deep, with numbers of a normal length"


def _shown(value: Any) -> str:
    """Return a short plain value as `=VALUE`; "" for others."""
    if not isinstance(value, str | int | float | None):
        return ""
    text = json.dumps(value)
    return f"={text}" if len(text) <= SHOWN else ""


def _kind(value: Any) -> str:
    names = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
