"""Requests to a store, through fsspec: those that fail for a moment are sent again, a limited number of times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from embrew.stores.errors import explained, is_transient

logger = logging.getLogger(__name__)

TRIES = 5  # each of them with the retries of the store's client
PAUSE = 0.5  # seconds before the second try; doubled for each further one

Value = TypeVar("Value")

guards: dict[str, Callable[[], None]] = {}
"""By URL of a prefix, what is called before each write under it: raises if this process may no longer write there."""


def repeated(url: str, call: Callable[[], Value], *, writes: bool = False) -> Value:
    """Return what `call` returns; call it again where it fails for a moment.

    Args:
        url: the object, for guards and messages.
        call: the request.
        writes: whether it changes the object; the guards of prefixes that hold it are called before each try.

    Raises:
        OSError, ImportError: it failed `TRIES` times, or for good; the message names the URL, and says what to do.
    """
    for number in range(1, TRIES + 1):
        for guard in [check for prefix, check in guards.items() if writes and url.startswith(f"{prefix}/")]:
            guard()
        try:
            return call()
        except Exception as error:
            if not is_transient(error) or number == TRIES:
                raise explained(error, url, tries=number) from None
            logger.info("%s: try %d of %d failed: %s", url, number, TRIES, explained(error, url, tries=number))
        time.sleep(PAUSE * 2 ** (number - 1))
    raise AssertionError("the last try returns or raises")


def opened(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it; listings are not cached."""
    from fsspec.core import url_to_fs

    store, path = url_to_fs(url, use_listings_cache=False)
    if url.startswith("hf://"):  # keeps listings all the same
        store.invalidate_cache(str(path))
    return store, str(path)
