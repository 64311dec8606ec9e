"""Remove private data from a report: home folders, the user's name, tokens."""

from __future__ import annotations

import getpass
import os
import re
from typing import Any

SECRET = re.compile(r"hf_[A-Za-z0-9]{8,}|(?<=://)[^/\s@]+@")
"""Tokens of the Hugging Face Hub, and user names and passwords in addresses."""

SECRET_NAME = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY)$", re.IGNORECASE)
"""Names of environment variables whose values are never shown."""


def without_private(value: Any) -> Any:
    """Return plain data with `~` for the home folder, `USER` for the user's name in paths, and no tokens."""
    match value:
        case str():
            return _clean(value)
        case dict():
            return {_clean(str(key)): without_private(item) for key, item in value.items()}
        case list() | tuple():
            return [without_private(item) for item in value]
    return value


def _clean(text: str) -> str:
    secrets = [found for name, found in os.environ.items() if SECRET_NAME.search(name) and len(found) >= 8]
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = SECRET.sub("***", text)
    for home in dict.fromkeys(_homes()):
        text = re.sub(rf"{re.escape(home)}(?=/|\W|$)", "~", text)
    user = _user()
    return re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\]|\W|$)", "USER", text) if user else text


def _homes() -> list[str]:
    found = []
    for home in (os.environ.get("HOME"), os.path.expanduser("~")):  # noqa: PTH111 - Path.home() may raise
        if home and len(home) > 1:
            found += [home.rstrip("/"), os.path.realpath(home)]
    return sorted((home for home in found if len(home) > 1), key=len, reverse=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user id without a name, as in some containers
        return ""
