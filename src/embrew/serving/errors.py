"""Errors that clients get, always as OpenAI's error object."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

SHOWN = 60  # characters of a value that a message shows
KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}


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

    def response(self, headers: dict[str, str] | None = None) -> Response:
        """Return the answer; its JSON is ASCII, since a text may hold what UTF-8 cannot encode."""
        error = {
            "message": self.message,
            "type": KINDS.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        extra = {} if self.retry_after is None else {"retry-after": str(max(1, round(self.retry_after)))}
        extra |= {"www-authenticate": "Bearer"} if self.status == 401 else {}
        content = json.dumps({"error": error}).encode("ascii")
        return Response(content, self.status, {**extra, **(headers or {})}, media_type="application/json")


def text_too_long(place: int, tokens: int, most: int) -> ApiError:
    """Return the refusal of a text that must not be truncated."""
    said = f"text {place} has {tokens} tokens with its template and prompt; at most {most} are allowed"
    said += ": shorten it, or set truncate to true"
    return ApiError(422, said, param="input", code="text_too_long")


def stopping() -> ApiError:
    """Return the refusal of a request to a server that stops."""
    return ApiError(503, "the server stops; try again later", code="draining", retry_after=5)


def too_many_texts(given: int, most: int) -> ApiError:
    """Return the refusal of a request with too many texts."""
    said = f"{given} texts; at most {most} per request are allowed: send several requests"
    return ApiError(413, said, param="input", code="too_many_texts")


def too_many_characters(what: str, text: str | list[int], most: int) -> ApiError:
    """Return the refusal of a text, or of a prompt, that is too long to be tokenised."""
    unit = "characters" if isinstance(text, str) else "token ids"
    said = f"{what} has {len(text)} {unit}; at most {most} are read: send its beginning, or parts of it"
    return ApiError(413, said, param="prompt" if what == "prompt" else "input", code="too_many_characters")


def too_many_states(given: int, most: int) -> ApiError:
    """Return the refusal of a request for the states of more tokens than a batch has, whose answer would be large."""
    said = f"states of {given} tokens; at most {most} per request are allowed, or one text: send several requests"
    return ApiError(413, said, param="input", code="too_many_states")


class ErrorDetail(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetail


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error answers of a route, for OpenAPI."""
    return {status: {"model": ErrorBody} for status in statuses}
