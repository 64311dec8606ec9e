"""Refusals, always OpenAI's error object; those of FastAPI and pydantic get embrew's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

EXCERPT = 60  # characters of a value that a message shows
TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
TEXT_ERRORS = ("value_error", "list_type", "invalid_unicode")  # errors whose value may be a text; it is not shown
JSON_TYPES = {list: "array", str: "string", bool: "boolean", type(None): "null"}


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail


class ApiError(Exception):
    """A refusal.

    Attributes:
        status: HTTP status.
        message: what was given, what is allowed, what to do.
        param: name of the field that is wrong.
        code: a word for programs.
        retry_after: seconds after which the client may try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry_after = retry_after

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """Return the answer; its JSON is ASCII, since a text may hold what UTF-8 cannot encode."""
        error_type = TYPES.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": error_type, "param": self.param, "code": self.code}
        extra = {} if self.retry_after is None else {"retry-after": str(max(1, round(self.retry_after)))}
        extra |= {"www-authenticate": "Bearer"} if self.status == 401 else {}
        content = json.dumps({"error": error})
        return Response(content, self.status, {**extra, **(headers or {})}, media_type="application/json")


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
    field = _field(first)
    if not field:
        return ApiError(400, _body_error(request, first), code="invalid_body").response()
    match first["type"]:
        case "missing":
            unknown = [_field(other) for other in others if other["type"] == "extra_forbidden"]
            hint = f"; {unknown[0]} is no field of this request" if unknown else ""
            message = f"{field} is missing, which is required{hint}"
        case "extra_forbidden":
            message = (
                f"{field} is no field of this request; leave it out, or see /openapi.json for those that there are"
            )
        case kind:
            value = "" if kind in TEXT_ERRORS else _excerpt(first["input"])
            message = f"{field}{value}: {first['msg'].removeprefix('Value error, ')}"
    code = "invalid_unicode" if first["type"] == "invalid_unicode" else None
    return ApiError(400, message, param=field, code=code).response()


async def _http_error(request: Request, error: HTTPException) -> Response:
    path, headers = request.url.path, dict(error.headers or {})
    code, message = None, str(error.detail)
    if error.status_code == 400:
        code, message = "invalid_body", f"the body cannot be read: {_encoding(request)}"
    elif error.status_code == 404:
        code = "unknown_path"
        message = f"there is no path {path[:EXCERPT]}; see /openapi.json for those that there are"
    elif error.status_code == 405:
        message = f"{request.method} is not allowed for {path}; use {headers.get('Allow', 'another method')}"
    return ApiError(error.status_code, message, code=code).response(headers)


def _field(error: ErrorDetails) -> str:
    return ".".join(part for part in error["loc"][1:] if isinstance(part, str))


def _body_error(request: Request, error: ErrorDetails) -> str:
    """Return what is wrong with a body as a whole."""
    match error["type"]:
        case "json_invalid":
            reason, character = error["ctx"]["error"], error["loc"][-1]
            return f"the body is no valid JSON ({reason}, character {character}); send a JSON object"
        case "missing":
            return "the body is empty; send a JSON object"
        case _ if isinstance(error["input"], bytes):
            content_type = request.headers.get("content-type", "none")
            return (
                f"the content type is {content_type[:EXCERPT]}; send a JSON object with content-type: application/json"
            )
        case "value_error":
            return f"the body has {error['msg'].removeprefix('Value error, ')}"
        case "model_attributes_type":
            return f"the body is a JSON {JSON_TYPES.get(type(error['input']), 'number')}; send a JSON object"
    return f"the body has a field whose name is not valid: {error['msg']}"


def _encoding(request: Request) -> str:
    encoding = request.headers.get("content-encoding")
    if encoding is not None:
        return f"its content-encoding is {encoding[:EXCERPT]}; send it uncompressed"
    return "send JSON in UTF-8, nested at most a few levels deep, with numbers of a normal length"


def _excerpt(value: Any) -> str:
    """Return a short plain value as `=VALUE`; "" for others."""
    text = json.dumps(value) if isinstance(value, str | int | float | None) else ""
    return f"={text}" if 0 < len(text) <= EXCERPT else ""
