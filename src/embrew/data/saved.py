"""Folders that `datasets.save_to_disk` wrote: a `Dataset`, or a `DatasetDict` with a folder per split."""

import re
from pathlib import Path
from typing import overload

from embrew.files.reading import Place, content_of, read_json

REPAIR = "save the data set again"


def is_saved(folder: Place) -> bool:
    """Return whether `save_to_disk` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or _is_one(folder)


@overload
def saved_files(folder: Path) -> dict[str, list[Path]]: ...
@overload
def saved_files(folder: Place) -> dict[str, list[Place]]: ...
def saved_files(folder: Place) -> dict[str, list[Path]] | dict[str, list[Place]]:
    """Return the files of each split, in order; a `Dataset` without a split is `train`.

    Raises:
        BrokenFile: the list of splits or files is damaged.
        FileNotFoundError: a split or a file is not there.
    """
    if _is_one(folder):
        return dict([_one(folder)])
    index = folder / "dataset_dict.json"
    names = read_json(index, keys=("splits",), repair=REPAIR)["splits"]
    with content_of(index, repair=REPAIR):
        parts = {str(name): folder / name for name in names}
    missing = next((part for part in parts.values() if not _is_one(part)), None)
    if missing is not None:
        raise FileNotFoundError(f"{missing} is no saved data set, and {index} lists it; {REPAIR}")
    return {name: _one(part)[1] for name, part in parts.items()}


def _is_one(folder: Place) -> bool:
    return all((folder / name).is_file() for name in ("state.json", "dataset_info.json"))


def _one(folder: Place) -> tuple[str, list[Place]]:
    """Return the split and the files of a saved `Dataset`."""
    index = folder / "state.json"
    state = read_json(index, keys=("_data_files",), repair=REPAIR)
    with content_of(index, repair=REPAIR):
        files = [folder / entry["filename"] for entry in state["_data_files"]]
        split = re.match(r"\w+", state.get("_split") or "")
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"{missing} is missing, and {index} lists it; {REPAIR}")
    return split.group() if split else "train", files
