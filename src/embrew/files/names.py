"""Names of files that are safe to read and write, paths that are written by their name alone, and the user's cache."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

MAX_PART_BYTES = 255  # bytes of one part of a path, on all common file systems
MAX_NAME_BYTES = 200  # bytes; the rest is for what embrew adds: a split, a suffix, a temporary file's prefix
CONTROL = frozenset(chr(code) for code in (*range(32), 127))
NOT_IN_NAMES = CONTROL | frozenset('\\:*?"<>|')


def path_inside(folder: Path, name: Any, *, source: str | Path, key: str) -> Path:
    """Return the path of a name in a folder's JSON file; the name is relative, with `/` between its parts.

    Links in the folder are followed: Hugging Face's cache stores every file as a link, and whoever made the folder
    placed them. The name itself comes from an untrusted file.

    Args:
        folder: the folder that the name is relative to.
        name: value from the file.
        source: the file, for the message.
        key: the name's key in the file, for the message.

    Raises:
        ValueError: the name is not a string, is empty or absolute, has a part `.` or `..`, a drive, a backslash or a
            control character, or a part of more than 255 bytes.
    """
    if not is_safe_name(name):
        raise ValueError(
            f"{source}: {key} {str(name)[:80]!r} is not a name within its folder; allowed are names without '..', "
            "backslash, colon or a leading '/'. The file is damaged or malicious: get the folder again from its source"
        )
    return folder / name


def is_safe_name(name: Any) -> bool:
    """Return whether a name is a relative path within its folder, on every operating system.

    >>> (
    ...     is_safe_name("weights/model.safetensors"),
    ...     is_safe_name("../x"),
    ...     is_safe_name("/x"),
    ...     is_safe_name("C:x"),
    ...     is_safe_name(""),
    ... )
    (True, False, False, False, False)
    """
    if not isinstance(name, str) or NOT_IN_NAMES & set(name):
        return False
    try:
        parts = [(part, len(part.encode())) for part in name.split("/")]
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return all(part not in ("", ".", "..") and size <= MAX_PART_BYTES for part, size in parts)


def check_file_name(name: Any, *, what: str) -> str:
    """Return a name that becomes part of a file's name, such as a task's or split's, if it can.

    Raises:
        ValueError: the name is empty, `.` or `..`, has a slash, backslash or control character, or is too long.
    """
    ends = isinstance(name, str) and name.strip() not in ("", ".", "..")
    if not ends or {"/", "\\", *CONTROL} & set(name) or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise ValueError(
            f"{what} {str(name)[:80]!r} becomes a part of a file's name: give 1 to {MAX_NAME_BYTES} bytes without '/', "
            "backslash or control characters"
        )
    return str(name)


LOCAL_PREFIX = "local:"
"""Prefix of the name of a file or folder whose path was left out."""


def from_home(path: str | Path) -> Path:
    """Return a path with the home folder for a leading `~`, unless a file or folder of that name exists."""
    return Path(path) if os.path.lexists(path) else Path(path).expanduser()


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
    if setting.startswith(("/", "~")):
        return public_path(setting)
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


def user_cache() -> Path:
    """Return the folder of what embrew keeps between runs: `$EMBREW_CACHE`, or `embrew` in the user's cache."""
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EMBREW_CACHE") or Path(users) / "embrew")
