"""Paths in files that others read: a path of this machine is written as its name, without its folders."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

LOCAL_PREFIX = "local:"
"""Prefix of the name of a file or folder whose path was left out."""


def public_path(path: str) -> str:
    """Return a path as it is saved: relative paths and paths that begin with a variable unchanged, others as names.

    Examples:
        >>> public_path("/home/me/pairs.jsonl"), public_path("~/models/qwen/"), public_path("$DATA/STSB")
        ('local:pairs.jsonl', 'local:qwen', '$DATA/STSB')
    """
    return LOCAL_PREFIX + base_name(path) if path.startswith(("/", "~")) else path


def shown_path(path: Path) -> str:
    """Return an absolute path as a page shows it: below the working directory relative to it, others by name."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else public_path(str(path))


def public_setting(setting: str) -> str:
    """Return `key=value`, or a path alone, with the paths of this machine by name.

    Examples:
        >>> public_setting("stages.one.data={path: /home/me/pairs.jsonl}"), public_setting("/home/me/mine.yaml")
        ('stages.one.data={path: local:pairs.jsonl}', 'local:mine.yaml')
    """
    key, equals, value = setting.partition("=") if "=" in setting else ("", "", setting)
    return key + equals + re.sub(r"(?<![\w.$}:/-])(?:/|~/)[^\s,\]}\"']+", lambda path: public_path(path[0]), value)


def base_name(path: str) -> str:
    """Return the last part of a path or Hub id.

    Examples:
        >>> base_name("/data/STSB/"), base_name("local:STSB"), base_name("sentence-transformers/stsb")
        ('STSB', 'STSB', 'stsb')
    """
    text = path.removeprefix(LOCAL_PREFIX)
    return PurePosixPath(text).name or text


def check_path_known(path: str, key: str = "") -> None:
    """Raise if only the name of a path was saved.

    Args:
        path: from a recipe.
        key: the recipe's key, for the message.

    Raises:
        FileNotFoundError: the path begins with `local:`.
    """
    if path.startswith(LOCAL_PREFIX):
        what = f"{key}: {path!r}" if key else repr(path)
        raise FileNotFoundError(
            f"{what} was saved by name, without its folder; set {key or 'PATH'}=FOLDER/{base_name(path)}"
        )
