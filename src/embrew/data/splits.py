"""Find the split that a file's name tells: `train-00000-of-00002`, `Test`, `my-dev`, `data.train`."""

import re
from collections.abc import Iterable

DEV_SPLITS = ("dev", "validation", "valid", "val")
SPLITS = ("train", *DEV_SPLITS, "test")
_ALIASES = {"training": "train", "testing": "test"}
SHARD = r"(-\d+(-of-\d+)?)?"  # train-00000.jsonl.gz, train-00000-of-00002.parquet
_NUMBER = re.compile(r"[-_.]?\d+(-of-\d+)?$")  # also train_1, train1


def words(name: str) -> list[str]:
    """Return the words of a name in lower case, by its separators and capitals: `stsTest_1` gives `sts`, `test`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def names_by_split(stems: Iterable[str]) -> dict[str, list[str]]:
    """Return the stems of a folder's files by split; a name that tells none is a split of its own.

    A split is a name without its number, in any case. If no file has this name, it is the only name with the word
    for the split and for no other one. Several such names tell nothing: each is a split of its own.

    Examples:
        >>> names_by_split(["Train-0", "Train-1", "my_test", "notes"])
        {'train': ['Train-0', 'Train-1'], 'test': ['my_test'], 'notes': ['notes']}
    """
    stems = list(stems)
    names = dict.fromkeys(map(without_number, stems))
    splits = {name: split for name in names if (split := known_split(name))}
    for split in SPLITS:
        having = [name for name in names if name not in splits and {*words(name)} & {*SPLITS} == {split}]
        if split not in splits.values() and len(having) == 1:
            splits[having[0]] = split
    by_split: dict[str, list[str]] = {}
    for stem in stems:
        split = splits.get(without_number(stem)) or re.sub(SHARD + "$", "", stem)
        by_split.setdefault(split, []).append(stem)
    return by_split


def without_number(stem: str) -> str:
    """Return a stem without the number at its end: `train-00000-of-00002` and `train_1` give `train`."""
    return _NUMBER.sub("", stem)


def known_split(name: str) -> str:
    """Return the split that a name is, in any case, or an empty text: `Train` and `training` give `train`."""
    name = _ALIASES.get(name.lower(), name.lower())
    return name if name in SPLITS else ""
