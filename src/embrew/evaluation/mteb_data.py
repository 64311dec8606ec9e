"""Store MTEB's data in a folder, for machines without a network."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embrew.files.names import check_file_name
from embrew.files.reading import BrokenFile, read_json
from embrew.files.writing import atomic_folder

AGAIN = "remove its folder, and fetch the data again (embrew data fetch)"
ABOUT = "mteb-task.json"  # describes the stored task; written last, so it marks a complete folder


def keep(task: Any, folder: Path) -> bool:
    """Load the data of mteb's task and store it in `folder`; return False if that revision is already there."""
    if _revision(folder) == str(task.metadata.revision):
        return False
    shutil.rmtree(folder, ignore_errors=True)  # of another revision
    with atomic_folder(folder, marker=ABOUT) as new:
        parts = {}
        for one in _parts(task):
            one.load_data()
            parts[one.metadata.name] = _save(one.dataset, new / one.metadata.name)
        about = {"task": task.metadata.name, "revision": str(task.metadata.revision), "parts": parts}
        (new / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return True


def use_kept(task: Any, folder: Path) -> None:
    """Load the data that is stored in `folder` into mteb's task.

    Raises:
        ValueError: the folder holds another revision than this version of mteb asks for.
    """
    name, wanted, stored = task.metadata.name, str(task.metadata.revision), _revision(folder)
    if stored != wanted:
        raise ValueError(
            f"{folder} holds revision {stored} of {name}, but this mteb evaluates {wanted}; fetch it again"
        )
    about = read_json(folder / ABOUT, keys=("parts",), repair=AGAIN)
    for one in _parts(task):
        one.dataset = _load(about["parts"][one.metadata.name], folder / one.metadata.name)
        one.data_loaded = True


def _parts(task: Any) -> list[Any]:
    """Return the task itself, or the tasks of an aggregate."""
    return list(getattr(task, "tasks", None) or [task])


def _revision(folder: Path) -> str | None:
    try:
        return str(read_json(folder / ABOUT)["revision"])
    except (OSError, BrokenFile, KeyError):
        return None


def _save(value: Any, path: Path) -> Any:
    """Store nested mappings and data sets; return a JSON description of their structure for `_load`."""
    from datasets import Dataset

    if isinstance(value, Dataset):
        path.parent.mkdir(parents=True, exist_ok=True)
        value.to_parquet(path.with_name(path.name + ".parquet"))
        return "dataset"
    if isinstance(value, Mapping) and _is_plain(value):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name + ".json").write_text(json.dumps(value), encoding="utf-8")
        return "json"
    if isinstance(value, Mapping):
        kinds = {key: _save(item, path / check_file_name(key, what="the part")) for key, item in value.items()}
        return {"kind": "splits" if all(kind == "dataset" for kind in kinds.values()) else "mapping", "parts": kinds}
    if value is None:
        return "none"
    raise TypeError(f"{path.name}: mteb has a {type(value).__name__} here, which cannot be stored")


def _load(kind: Any, path: Path) -> Any:
    from datasets import Dataset, DatasetDict

    if kind == "none":
        return None
    if kind == "dataset":
        return Dataset.from_parquet(str(path.with_name(path.name + ".parquet")), keep_in_memory=True)
    if kind == "json":
        return read_json(path.with_name(path.name + ".json"), repair=AGAIN)
    parts = {key: _load(item, path / check_file_name(key, what="the part")) for key, item in kind["parts"].items()}
    return DatasetDict(parts) if kind["kind"] == "splits" else parts


def _is_plain(value: Any) -> bool:
    """Return whether JSON can represent it, as relevance judgements and rankings by id."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return isinstance(value, str | int | float | bool)
