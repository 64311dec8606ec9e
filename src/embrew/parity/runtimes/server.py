"""Requests to a server, with errors that say what to do."""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

from embrew.parity.runtimes.runtime import Refused

KEY = "EMBREW_API_KEY"
TRIES, LONGEST_WAIT = 3, 30.0  # of requests that are answered 429 or 503; seconds, else it fails at once
MOST = 300  # characters of a server's message that are shown


class NoAnswer(ValueError):
    """A server cannot be reached, or does not answer in time."""


class Server:
    """A server by its address. A key is read from the environment variable `EMBREW_API_KEY` and is never shown.

    Args:
        url: its address, as users give it.
        timeout: seconds to wait for an answer.

    Raises:
        ValueError: the address has a query or a fragment, which the paths of a server have no place for.
    """

    def __init__(self, url: str, *, timeout: float) -> None:
        parts = urlsplit(url)
        self.base = url.rstrip("/")
        self.shown = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="")).rstrip("/")
        if parts.query or parts.fragment:
            raise ValueError(f"an address with a query or fragment; give {self.shown.partition('#')[0]}, without them")
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
            if response.status_code not in (429, 503) or not left or _wait(response) > LONGEST_WAIT:
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
            raise NoAnswer(
                f"{self.shown} gives no answer within {self.timeout:g} seconds; raise --timeout, or look at its log"
            ) from error
        except (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.DecodingError) as error:
            what = self._hidden(str(error)) or type(error).__name__
            raise NoAnswer(f"{self.shown}{path} breaks off, or is no HTTP server ({what}); look at its log") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            what = self._hidden(str(error)) or type(error).__name__
            raise NoAnswer(f"{self.shown} cannot be reached ({what}); is the server running, and there?") from error

    def _error(self, response: httpx2.Response, path: str) -> ValueError:
        status, said = response.status_code, self._hidden(_message(response))
        where = f"{self.shown}{path}"
        if status in (401, 403):
            what = f"the key in {KEY} is not accepted" if self.key else f"set the environment variable {KEY} to its key"
            return ValueError(f"{where} answers {status} (not allowed): {what}. {said}".rstrip(" ."))
        if status in (429, 503):
            wait = _wait(response)
            often = f"{TRIES} times" if wait <= LONGEST_WAIT else f"and asks to wait {wait:g} seconds"
            return ValueError(f"{where} answers {status} {often} (busy); try again later. {said}".rstrip(" ."))
        if status in (400, 413, 422):
            return Refused(f"{where} answers {status}: {said}")
        if status < 400:
            to = self._hidden(response.headers.get("location", "nowhere"))
            return ValueError(f"{where} answers {status} (redirects to {to}), which is not followed; give that address")
        advice = "; check the address, --model and --kind" if status == 404 else ""
        return ValueError(f"{where} answers {status}: {said}{advice}")

    def foreign(self, answer: object, path: str, api: str) -> ValueError:
        """Return the error for an answer that is none of an API's, with what the server says."""
        said = self._hidden(str(_inner(answer)))
        return ValueError(f"{self.shown}{path} does not answer as {api} does; check --kind. It says: {said}")

    def _hidden(self, text: str) -> str:
        text = text.replace(self.key, "***") if self.key else text
        return " ".join(text.split())[:MOST]


def _wait(response: httpx2.Response) -> float:
    """Return the seconds that a busy server asks to wait; 1 where it does not say, or says a date."""
    try:
        return max(float(response.headers.get("retry-after", "1")), 0.0)
    except ValueError:
        return 1.0


def _message(response: httpx2.Response) -> str:
    """Return the message in an error's JSON, or its text."""
    try:
        found = response.json()
    except ValueError:
        return response.text
    return str(_inner(found))


def _inner(found: Any) -> Any:
    """Return what an error's JSON says."""
    for key in ("error", "message", "detail"):
        found = found.get(key, found) if isinstance(found, dict) else found
    return found
