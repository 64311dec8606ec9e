"""Requests to a server, with a key of the environment, and errors that say what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx2

from embrew.runtimes.runtime import Refused

Body = Mapping[str, Any]  # fields of a request
KEY = "EMBREW_API_KEY"
BUSY, FAILED = (429, 503), (500, 502, 504)  # statuses that are asked again
TRIES, WAIT, LONGEST_WAIT = 3, 1, 30  # of such requests; seconds before the second one, which double, and at most
EXCERPT = 300  # characters of a server's message that are shown


class NoAnswer(ValueError):
    """A server cannot be reached, or does not answer in time."""


class Client:
    """Requests to a server. A key is read from the environment variable `EMBREW_API_KEY` and is never shown.

    Args:
        url: the server's address without the path of an API.
        timeout: seconds to wait for an answer.
        tries: requests that are answered 429 or 500 to 504 before one fails.
        if_slow, if_unknown: what to do if no answer comes in time, and if the server does not know the path.

    Raises:
        ValueError: the address has a query or a fragment, which the paths of a server have no place for.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        tries: int = TRIES,
        if_slow: str = "raise --timeout, or look at its log",
        if_unknown: str = "check the address, --model and --kind",
    ) -> None:
        self.tries, self.if_slow, self.if_unknown = tries, if_slow, if_unknown
        parts = urlsplit(url)
        self.base, self.timeout = url.rstrip("/"), timeout
        netloc = parts.netloc.rpartition("@")[2]
        self.address = urlunsplit(parts._replace(netloc=netloc, query="", fragment="")).rstrip("/")
        if parts.query or parts.fragment:
            raise ValueError(f"an address with a query or fragment; give {self.address}, without them")
        self.key = os.environ.get(KEY, "").strip()
        if not (self.key.isascii() and self.key.isprintable()):
            raise ValueError(f"the key in {KEY} has characters that no key has; copy it again")
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        self.http = httpx2.Client(timeout=timeout, headers=headers)

    def answer(self, path: str, body: Body | None = None) -> Any:
        """Return the JSON that a path answers a GET with, or a POST of a body.

        Raises:
            NoAnswer: the server cannot be reached, or does not answer in time.
            Refused: status 400, 413 or 422.
            ValueError: any other failure.
        """
        for attempt in range(self.tries):
            response = self._send(path, body)
            if response.status_code not in (*BUSY, *FAILED) or attempt + 1 == self.tries:
                break
            seconds = response.headers.get("retry-after", "")
            time.sleep(min(int(seconds) if seconds.isdecimal() else WAIT * 2**attempt, LONGEST_WAIT))
        if response.status_code >= 300:
            raise self._error(response, self.address + path)
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise ValueError(
                f"{self.address}{path} answers with invalid JSON: {self._without_key(response.text)}"
            ) from error

    def not_of_api(self, answer: object, path: str, api: str, *, advice: str = "check --kind") -> ValueError:
        """Return the error for an answer that is none of an API's, with the server's message."""
        message = self._without_key(_message(answer))
        return ValueError(f"{self.address}{path} does not answer as {api} does; {advice}. It says: {message}")

    def _send(self, path: str, body: Body | None) -> httpx2.Response:
        try:
            return self.http.request("GET" if body is None else "POST", self.base + path, json=body)
        except httpx2.TimeoutException as error:
            raise NoAnswer(f"{self.address} gives no answer within {self.timeout:g} seconds; {self.if_slow}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = self._without_key(str(error)) or type(error).__name__
            if isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError | httpx2.DecodingError):
                problem = f"{self.address}{path} breaks off, or is no HTTP server ({reason}); look at its log"
            else:
                problem = f"{self.address} cannot be reached ({reason}); is the server running, and there?"
            raise NoAnswer(problem) from error

    def _error(self, response: httpx2.Response, where: str) -> ValueError:
        status = response.status_code
        try:
            message = self._without_key(_message(response.json()))
        except (ValueError, RecursionError):
            message = self._without_key(response.text)
        if status in (400, 413, 422):
            return Refused(f"{where} answers {status}: {message}")
        if status in (401, 403):
            advice = f"set the environment variable {KEY} to its key"
            message = f"(not allowed): {f'the key in {KEY} is not accepted' if self.key else advice}. {message}"
        elif status in (*BUSY, *FAILED):
            what = "busy" if status in BUSY else "an error of its own"
            message = f"{self.tries} times ({what}); try again later, or look at its log. {message}"
        elif status < 400:
            to = self._without_key(response.headers.get("location", "nowhere"))
            message = f"(redirects to {to}), which is not followed; give that address"
        elif status == 404:
            message = f"({message}); {self.if_unknown}"
        else:
            message = f"(error): {message}"
        return ValueError(f"{where} answers {status} {message}".rstrip(" ."))

    def _without_key(self, text: str) -> str:
        text = text.replace(self.key, "***") if self.key else text
        return " ".join(text.split())[:EXCERPT]


def _message(answer: Any) -> str:
    """Return the message in an error's JSON."""
    for key in ("error", "message", "detail"):
        answer = answer.get(key, answer) if isinstance(answer, dict) else answer
    return str(answer)
