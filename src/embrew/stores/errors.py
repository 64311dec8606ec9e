"""Errors of stores: which of them may pass, and messages that name the URL, never a credential."""

from __future__ import annotations

import errno
import re

from embrew.files.writing import DISK

PASSING = (errno.EIO, getattr(errno, "EREMOTEIO", errno.EIO), errno.EBUSY, errno.ETIMEDOUT, errno.EPIPE)
CLIENTS = ("aiobotocore", "aiohttp", "botocore", "gcsfs", "google", "httpcore", "httpx", "requests", "urllib3")
"""Packages whose own errors, which are no `OSError`, report a connection that failed."""

NO_CREDENTIALS = (
    "CredentialRetrievalError",
    "DefaultCredentialsError",
    "LocalTokenNotFoundError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "TokenRetrievalError",
)
REPLACED = ("FileExpired",)
PACKAGES = {"s3": "s3", "gs": "gs"}
"""Extras of embrew by scheme; `hf` needs none."""
SECRETS = (
    (r"\?[^\s\"')]+", "?…"),  # query strings, which may hold signatures
    (r"//[^\s/:@]+:(?!\d+/)\S*@|//[^\s/]*@", "//…@"),  # user and password of a URL, also with a slash in it
    (r"(?i)\b(bearer)\s+[^\s\"',\\]+", r"\1 …"),
    (r"(?i)\b(authorization['\"]?\s*[:=]\s*b?['\"]?)(?!bearer)[^\"',}]+", r"\1…"),
    (r"\bhf_[A-Za-z0-9]+", "hf_…"),
)
"""Patterns of what may hold a credential in an error's message, and what is shown in its place."""


def is_transient(error: Exception) -> bool:
    """Return whether a request may succeed if it is sent again."""
    name, status = type(error).__name__, _status(error)
    if name in (*NO_CREDENTIALS, *REPLACED, "ParamValidationError") or isinstance(
        error, FileNotFoundError | PermissionError | FileExistsError
    ):
        return False
    if status is not None:
        return status >= 500 or status in (408, 429)
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in PASSING
    return type(error).__module__.partition(".")[0] in CLIENTS


def explained(error: Exception, url: str, *, tries: int = 1) -> Exception:
    """Return the error to raise in place of a client's: its message names the URL, the reason and what to do."""
    scheme, _, rest = url.partition("://")
    words, name, status = _reason(error), type(error).__name__, _status(error)
    if isinstance(error, ImportError):
        extra = PACKAGES.get(scheme)
        todo = f'install it with: pip install "embrew[{extra}]"' if extra else "install the package that it names"
        return ImportError(f"{scheme}:// needs a package that is not installed ({words}); {todo}")
    if name in NO_CREDENTIALS:
        return PermissionError(
            f"{url}: no credentials ({words}); give them in the environment or in the configuration files of the store"
        )
    if isinstance(error, PermissionError) or status in (401, 403):
        return PermissionError(
            f"{url}: the store refuses access ({words}); check the credentials, and what they may do in {_bucket(rest)}"
        )
    if isinstance(error, FileNotFoundError) or status == 404:
        return FileNotFoundError(f"{url}: not found ({words}); check the name, and that of {_bucket(rest)}")
    if isinstance(error, FileExistsError):
        return FileExistsError(f"{url}: exists already")
    if name in REPLACED:
        return OSError(f"{url}: it was replaced while it was read; wait until it is written, and try again")
    if isinstance(error, OSError) and error.errno in DISK and error.errno != errno.EIO:
        return error  # the disk of this machine
    if is_transient(error):
        return ConnectionError(
            f"{url}: no answer, or an error of the store, in {tries} tries ({words}); try again later"
        )
    if isinstance(error, ValueError | TypeError):
        return error if _hidden(str(error)) == str(error) else ValueError(f"{url}: {words}")
    return OSError(f"{url}: {words}")


def _bucket(rest: str) -> str:
    return repr(rest.partition("/")[0])


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, without credentials."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _hidden(next(iter(text.splitlines()), "") or type(error).__name__)[:200]


def _hidden(text: str) -> str:
    for pattern, shown in SECRETS:
        text = re.sub(pattern, shown, text)
    return text


def _status(error: Exception) -> int | None:
    """Return the HTTP status that an error reports, if any."""
    for status in (getattr(getattr(error, "response", None), "status_code", None), getattr(error, "code", None)):
        if isinstance(status, int) and not isinstance(status, bool):
            return status
    return None
