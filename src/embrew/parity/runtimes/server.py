"""Requests to a server, with errors that say what to do."""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

from embrew.parity.runtimes.runtime import Refused

KEY = "EMBREW_API_KEY"
TRIES, LONGEST_WAIT = 3, 30.0  # of requests that are answered 429 or 503; seconds
MOST = 300  # characters of a server's message that are shown


class Server:
    """A server by its address. A key is read from the environment variable `EMBREW_API_KEY` and is never shown.

    Args:
        url: its address, as users give it.
        timeout: seconds to wait for an answer.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        parts = urlsplit(url)
        self.base = url.rstrip("/")
        self.shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="")).rstrip("/")
        self.timeout = timeout
        self.key = os.environ.get(KEY, "")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self.client = httpx2.Client(timeout=timeout, headers=headers)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON that a path answers a POST with.

        Raises:
            Refused: status 400, 413 or 422.
            ValueError: any other failure.
        """
        return self._answer("POST", path, body)

    def get(self, path: str) -> Any:
        """Return the JSON that a path answers a GET with; errors as `post`."""
        return self._answer("GET", path, None)

    def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        for left in reversed(range(TRIES)):
            response = self._request(method, path, body)
            if response.status_code not in (429, 503) or not left:
                break
            time.sleep(_wait(response))
        if response.status_code >= 300:
            raise self._error(response, path)
        try:
            return response.json()
        except ValueError as error:
            raise ValueError(f"{self.shown}{path} answers with invalid JSON: {self._hidden(response.text)}") from error

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        try:
            return self.client.request(method, self.base + path, json=body)
        except httpx2.TimeoutException as error:
            raise ValueError(
                f"{self.shown} gives no answer within {self.timeout:g} seconds; raise --timeout, or look at its log"
            ) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            what = self._hidden(str(error)) or type(error).__name__
            raise ValueError(f"{self.shown} cannot be reached ({what}); is the server running, and there?") from error

    def _error(self, response: httpx2.Response, path: str) -> ValueError:
        status, said = response.status_code, self._hidden(_message(response))
        where = f"{self.shown}{path}"
        if status in (401, 403):
            what = f"the key in {KEY} is not accepted" if self.key else f"set the environment variable {KEY} to its key"
            return ValueError(f"{where} answers {status} (not allowed): {what}. {said}".rstrip(" ."))
        if status in (429, 503):
            return ValueError(f"{where} answers {status} {TRIES} times (busy); try again later. {said}".rstrip(" ."))
        if status in (400, 413, 422):
            return Refused(f"{where} answers {status}: {said}")
        advice = "; check the address, --model and --kind" if status == 404 else ""
        return ValueError(f"{where} answers {status}: {said}{advice}")

    def _hidden(self, text: str) -> str:
        text = text.replace(self.key, "***") if self.key else text
        return " ".join(text.split())[:MOST]


def _wait(response: httpx2.Response) -> float:
    """Return the seconds that a busy server asks to wait; 1 where it does not say, or says a date."""
    try:
        return min(max(float(response.headers.get("retry-after", "1")), 0.0), LONGEST_WAIT)
    except ValueError:
        return 1.0


def _message(response: httpx2.Response) -> str:
    """Return the message in an error's JSON, or its text."""
    try:
        found = response.json()
    except ValueError:
        return response.text
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return str(found)
