"""How a path of this machine is written into a file that others read: by its name, without its folders."""

from __future__ import annotations

from pathlib import PurePosixPath

BY_NAME = "local:"
"""Stands before the name of a file or folder whose path was left out."""


def public_path(path: str) -> str:
    """Return a path as it is saved: relative ones and those that begin with a variable as they are, others by name.

    Examples:
        >>> public_path("/home/me/pairs.jsonl"), public_path("~/models/qwen/"), public_path("$DATA/STSB")
        ('local:pairs.jsonl', 'local:qwen', '$DATA/STSB')
    """
    return BY_NAME + last_part(path) if path.startswith(("/", "~")) else path


def last_part(path: str) -> str:
    """Return the name at the end of a path or Hub id, however the path was written.

    Examples:
        >>> last_part("/data/STSB/"), last_part("local:STSB"), last_part("sentence-transformers/stsb")
        ('STSB', 'STSB', 'stsb')
    """
    text = path.removeprefix(BY_NAME)
    return PurePosixPath(text).name or text


def check_not_by_name(path: str, key: str = "") -> None:
    """Raise where a path was saved by its name.

    Args:
        path: as a recipe has it.
        key: the recipe's key, for the message.

    Raises:
        FileNotFoundError: it was.
    """
    if path.startswith(BY_NAME):
        what = f"{key}: {path!r}" if key else repr(path)
        raise FileNotFoundError(
            f"{what} was stored by name, without the folder it was in; say where it is here: {key or 'PATH'}=FOLDER/"
            f"{last_part(path)}"
        )
