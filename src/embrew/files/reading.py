"""Read files that were written earlier; errors name the file, what is wrong and what to do."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias

from safetensors import SafetensorError, safe_open

from embrew.files.checksums import unsealed
from embrew.files.formats import Format, OtherFormat

REPAIR = "get it again from where it came from, or write it again with the command that made it"
CONTENT = (ArithmeticError, AttributeError, LookupError, RecursionError, SafetensorError, TypeError, ValueError)
"""Errors of parsers, and of code that meets a parsed value of an unexpected type."""
KNOWN = ("config.json", "tokenizer.json", "tokenizer_config.json", "adapter_config.json", "modules.json")


class Remote(Protocol):
    """A file or folder that is not on this machine, such as an object of a store, with methods of `Path`."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def suffixes(self) -> list[str]: ...  # noqa: D102
    def __truediv__(self, name: str) -> Remote: ...
    def __lt__(self, other: Any) -> bool: ...
    def __hash__(self) -> int: ...
    def is_file(self) -> bool: ...  # noqa: D102
    def is_dir(self) -> bool: ...  # noqa: D102
    def stat(self) -> Any: ...  # noqa: D102
    def glob(self, pattern: str) -> Iterator[Remote]: ...  # noqa: D102
    def open(self, mode: Literal["rb"]) -> BinaryIO: ...  # noqa: D102
    def read_bytes(self) -> bytes: ...  # noqa: D102
    def unlink(self) -> None: ...  # noqa: D102
    def uploaded(self) -> AbstractContextManager[Path]:
        """Return a context that yields a local file, which becomes this one when it ends without an error."""


Place: TypeAlias = Path | Remote
"""A file or folder."""


class BrokenFile(ValueError):
    """A file whose content cannot be read; the message names the file and says what to do."""


@contextmanager
def content_of(path: Place, *, repair: str = REPAIR, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn errors about a file's content into `BrokenFile`. The block should only contain what interprets the content.

    Args:
        path: the file.
        repair: what the user should do.
        also: further errors that are about the content in this block; see `is_content_error`.

    Raises:
        BrokenFile: a key is missing, a value has another type, or the content cannot be parsed.
    """
    try:
        yield
    except (BrokenFile, OtherFormat):
        raise
    except Exception as error:
        if not is_content_error(error, also=also):
            raise
        raise broken(path, error, repair=repair) from error


def broken(path: Place, error: Exception, *, repair: str = REPAIR) -> BrokenFile:
    """Return the error for a file; for a folder, that of the first broken file in it, if any."""
    in_folder = broken_in(path, repair=repair) if isinstance(path, Path) and path.is_dir() else None
    return in_folder or BrokenFile(f"{path} cannot be read: {reason(error)}; {repair}")


def check_regular(path: Path, *, below: str = "*") -> None:
    """Raise if a file, or one in a folder, is a pipe, a device or a socket: opening such a file may never end.

    Args:
        path: a file or folder, or nothing.
        below: pattern of the files of a folder.

    Raises:
        BrokenFile: it is.
    """
    for file in path.glob(below) if path.is_dir() else (path,):
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise BrokenFile(f"{file} is a pipe, a device or a socket; put a file in its place")


def read_json(
    path: Place,
    *,
    keys: Collection[str] = (),
    repair: str = REPAIR,
    kind: Format | None = None,
    sealed: bool = False,
) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Args:
        path: the file.
        keys: keys that the object must have.
        repair: what the user should do about a broken file.
        kind: the format that is read; checked before the keys.
        sealed: whether the file holds the sha256 of the rest of it, which is compared and left out; files of some
            formats do.

    Raises:
        OSError: there is no such file, it is a folder, or it may not be read.
        BrokenFile: its content is not valid JSON, of another type, has changed, or lacks a key.
        OtherFormat: it has another format number than this embrew reads, or none.
    """
    if isinstance(path, Path) and not path.is_dir():
        check_regular(path)
    content = path.read_bytes()
    with content_of(path, repair=repair):
        text = content.decode("utf-8")
        if not text.strip():
            raise ValueError("it is empty")
        value: Any = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError(f"it holds {'null' if value is None else f'a {type(value).__name__}'}, not an object")
        if kind is not None:
            kind.check(value, path)
        if sealed or (kind is not None and kind.sealed):
            value = unsealed(value, path, path.name if kind is None else f"{kind.file} files")
        missing = [key for key in keys if key not in value]
        if missing:
            raise ValueError(f"it has no {', '.join(missing)}")
    return value


def broken_in(folder: Path, *, repair: str = REPAIR) -> BrokenFile | None:
    """Return the error for the first JSON or safetensors file of a model's folder that no library can read, if any."""
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".json", ".safetensors") or path.parent.name.startswith("."):
            continue
        try:
            if path.suffix == ".safetensors":
                path.open("rb").close()
                safe_open(path, framework="np").keys()
            else:
                _check_known(path.name, json.loads(path.read_bytes()))
        except (OSError, *CONTENT) as error:
            return BrokenFile(f"{path} cannot be read: {reason(error)}; {repair}")
    return None


def _check_known(name: str, value: Any) -> None:
    wanted = list if name == "modules.json" else dict
    if not isinstance(value, list | dict) or (name in KNOWN and not isinstance(value, wanted)):
        raise TypeError(f"it holds {'null' if value is None else f'a {type(value).__name__}'}, not a {wanted.__name__}")
    if name in KNOWN and not value:
        raise ValueError("it holds nothing")


def is_content_error(error: Exception, *, also: tuple[type[Exception], ...] = ()) -> bool:
    """Return whether an error can come from a file's content: `CONTENT`, or the plain `Exception` of Rust's parsers.

    Args:
        error: what was raised.
        also: further types of error that can, unless a device is out of memory.
    """
    return (
        isinstance(error, CONTENT)
        or type(error) is Exception
        or (isinstance(error, also) and "out of memory" not in str(error))
    )


def reason(error: Exception) -> str:
    """Return a parser's error as part of one line."""
    match error:
        case json.JSONDecodeError():
            return f"not valid JSON ({error})"
        case UnicodeDecodeError():
            return f"not valid UTF-8 ({error.reason} at byte {error.start})"
        case RecursionError():
            return "nested too deeply"
        case KeyError():
            return f"it has no {str(error.args[0])[:80]}" if error.args else "a key is missing"
        case EOFError():
            return "it is truncated"
        case OSError(strerror=str(description)):
            return description
        case SafetensorError():
            return f"not a valid safetensors file ({error})"
    lines = str(error).splitlines() or [type(error).__name__]
    first = " ".join(line.strip() for line in lines[: 2 if lines[0].endswith(":") else 1])
    return first[:300]
