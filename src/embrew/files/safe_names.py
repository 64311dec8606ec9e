"""Names in a folder's own files: they may lead to what is in the folder, and nowhere else."""

from pathlib import Path
from typing import Any

MAX_PART_BYTES = 255  # bytes of one part of a path, on all common file systems
MAX_NAME_BYTES = 200  # bytes; what we add to names (a split, a suffix, a temporary file's prefix) has the rest
CONTROL = frozenset(chr(code) for code in (*range(32), 127))
NOT_IN_NAMES = CONTROL | frozenset('\\:*?"<>|')


def path_inside(folder: Path, name: Any, *, source: str | Path, key: str) -> Path:
    """Return the path of what a folder's JSON file calls `name`: a plain relative name, with `/` between its parts.

    Links in the folder are followed, as Hugging Face's cache stores every file as one: who made the folder, or
    unpacked it, placed them. A name is text of somebody else, and says nothing about other folders.

    Args:
        folder: where the name belongs.
        name: as it was read.
        source: the file that holds it, for the message.
        key: what the file calls it, for the message.

    Raises:
        ValueError: it is no text, is empty or absolute, has a part `.` or `..`, a drive, a backslash or a control
            character, or a part of more than 255 bytes.
    """
    if not is_safe_name(name):
        raise ValueError(
            f"{source}: {key} {str(name)[:80]!r} is not a name within its folder; allowed are names without '..', "
            "backslash, colon or a leading '/'. The file is damaged or hostile: get the folder again from its source"
        )
    return folder / name


def is_safe_name(name: Any) -> bool:
    """Whether something is a relative path that stays within the folder it is read in, on any system.

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
    """Return a name of a task, split or the like that becomes a part of a file's name, if it can.

    Raises:
        ValueError: it is empty, `.` or `..`, has a slash, backslash or control character, or is too long.
    """
    ends = isinstance(name, str) and name.strip() not in ("", ".", "..")
    if not ends or {"/", "\\", *CONTROL} & set(name) or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise ValueError(
            f"{what} {str(name)[:80]!r} becomes a part of a file's name: give 1 to {MAX_NAME_BYTES} bytes without '/', "
            "backslash or control characters"
        )
    return str(name)
