"""What was measured for a report, kept in its folder so that the next report of the same models measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from embrew.files.checksums import digest_of
from embrew.files.reading import BrokenFile, read_json
from embrew.files.writing import atomic_path, write_json

ARRAY = "__array__"  # key of a JSON object in place of an array, whose number it holds


class Cache:
    """Values in files that are named by the hash of everything that the value depends on.

    Args:
        folder: Folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._used: set[str] = set()

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if it is not there."""
        name = self._name(key)
        try:
            entry = read_json(self.folder / f"{name}.json", keys=("value",))
            file = self.folder / f"{name}.npz"
            arrays = dict(np.load(file, allow_pickle=False)) if file.is_file() else {}
            return _unpacked(entry["value"], arrays)
        except (BrokenFile, OSError, KeyError, ValueError):
            return None

    def put(self, key: Any, value: Any) -> Any:
        """Keep a value of JSON types and arrays; return it as `get` does, with lists in place of tuples."""
        name, arrays = self._name(key), dict[str, np.ndarray]()
        packed = _packed(value, arrays)
        self.folder.mkdir(parents=True, exist_ok=True)
        if arrays:
            with atomic_path(self.folder / f"{name}.npz") as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        write_json(self.folder / f"{name}.json", {"key": key, "value": packed})
        return self.get(key)

    def prune(self) -> None:
        """Remove values that neither `get` nor `put` was called for."""
        for file in self.folder.glob("*.*"):
            if file.suffix in (".json", ".npz") and file.stem not in self._used:
                file.unlink()

    def _name(self, key: Any) -> str:
        name = digest_of(key)[:32]
        self._used.add(name)
        return name


def _packed(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[str(len(arrays))] = value
        return {ARRAY: str(len(arrays) - 1)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): _packed(one, arrays) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(one, arrays) for one in value]
    return value


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {ARRAY}:
            return arrays[value[ARRAY]]
        return {name: _unpacked(one, arrays) for name, one in value.items()}
    return [_unpacked(one, arrays) for one in value] if isinstance(value, list) else value
