"""Errors of the Hub as messages that say what to do. A token appears in none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import HTTPError

AGAIN = "give the same command again; what was uploaded is not uploaded again"
SAID = 200  # characters of the Hub's own message that are shown


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an error; None: there was no answer."""
    return getattr(getattr(error, "response", None), "status_code", None)


@contextmanager
def explained(repo: str, token: str) -> Iterator[None]:
    """Turn errors of huggingface_hub and of the network into `OSError` with a message for users.

    Args:
        repo: `USER/NAME`.
        token: is removed from what the Hub says.

    Raises:
        OSError: a request failed.
    """
    try:
        yield
    except (HTTPError, ConnectionError, RuntimeError) as error:  # RuntimeError: of a file's upload, with its cause
        cause: BaseException = error
        while status_of(cause) is None and cause.__cause__ is not None:
            cause = cause.__cause__
        raise OSError(_message(repo, cause).replace(token, "…")) from None


def _message(repo: str, error: BaseException) -> str:
    status, owner = status_of(error), repo.partition("/")[0]
    said = " ".join(str(getattr(error, "server_message", None) or "").split())[:SAID]
    heard = f" ({said})" if said else ""
    match status:
        case None:
            reason = " ".join(str(error).split())[:SAID] or type(error).__name__
            return f"the Hub at {constants.ENDPOINT} does not answer ({reason}); check the network, then {AGAIN}"
        case 401:
            return (
                f"the Hub does not accept the token (401){heard}; log in again with `hf auth login`, or set HF_TOKEN "
                "to a valid token with write access"
            )
        case 403:
            return (
                f"the token may not write to {repo} (403){heard}; use a token with write access of someone who may "
                f"write to {owner}"
            )
        case 404:
            return f"the Hub finds no user or organisation {owner}, or the token may not see it (404){heard}"
        case 409 | 412:
            return (
                f"{repo} exists and cannot be seen by the token's owner, or was changed at the same time ({status})"
                f"{heard}; {AGAIN}"
            )
        case 429:
            headers = getattr(error, "response").headers  # noqa: B009 -- an error with a status has a response
            wait = headers.get("Retry-After")
            when = f"in {wait} seconds" if wait else "in some minutes"
            return f"too many requests to the Hub (429){heard}; {when}, {AGAIN}"
    if status >= 500:
        return f"the Hub has an error of its own ({status}){heard}; later, {AGAIN}"
    return f"the Hub refuses the upload to {repo} ({status}){heard}"
