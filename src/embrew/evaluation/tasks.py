"""From a data folder to a task: its name, what is to be judged (by its columns), and the split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from embrew.data.beir import is_beir, qrels_file, qrels_files
from embrew.data.reading import SPLITS, expand, find_file, read_file, split_files, splits, stem

Kind = Literal["sts", "retrieval"]


@dataclass(frozen=True)
class Task:
    """What to judge an encoder on. `files` are what the score depends on."""

    name: str
    kind: Kind
    split: str
    path: Path
    files: tuple[Path, ...]


def find_task(path: str | Path, *, split: str | None = None, kind: str | None = None) -> Task:
    """The task of a folder (or of one file of sentence pairs).

    Args:
        split: Default: `test` where there is one, else `dev` (or `validation`, `valid`).
        kind: `sts` or `retrieval`, where the columns should not decide.
    """
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r}; choose from {', '.join(get_args(Kind))}")
    place = Path(expand(path))
    if not place.exists():
        raise FileNotFoundError(f"no data folder {place}")
    if place.is_file():
        return Task(stem(place), _known(kind or _kind_of(place), place), split or "test", place, (place,))
    name = f"{place.resolve().parent.name}-{place.name}" if place.name in SPLITS else place.resolve().name
    if is_beir(place):
        if kind == "sts":
            raise ValueError(f"{place} holds a corpus and queries: kind='sts' cannot be; use retrieval")
        split = split or _default_split(place, sorted(qrels_files(place)))
        files = [find_file(place, "corpus"), find_file(place, "queries"), qrels_file(place, split)]
        return Task(name, "retrieval", split, place, tuple(file for file in files if file))
    if kind == "retrieval":
        raise FileNotFoundError(f"{place} lacks corpus.jsonl or queries.jsonl (gz or not), which retrieval needs")
    split = split or _default_split(place, splits(place))
    paths = tuple(split_files(place, split))
    return Task(name, _known(kind or _kind_of(paths[0]), place), split, place, paths)


def _default_split(folder: Path, names: list[str]) -> str:
    for split in ("test", "dev", "validation", "valid"):
        if split in names:
            return split
    raise ValueError(f"{folder} has neither a test nor a dev split; name one of {', '.join(names) or 'none'} as split")


def _kind_of(file: Path) -> str:
    record = next(read_file(file), None)
    if record is None:
        raise ValueError(f"{file} holds no rows")
    columns = set(record.values)
    if {"sentence1", "sentence2", "score"} <= columns:
        return "sts"
    if {"sentence1", "sentence2"} <= columns and columns & {"label", "labels"}:
        return "pair classification"
    if {"text", "label"} <= columns:
        return "classification or clustering"
    if {"query", "positive", "negative"} <= columns:
        return "reranking"
    return f"unknown (columns {', '.join(sorted(columns))})"


def _known(kind: str, place: Path) -> Kind:
    if kind in get_args(Kind):
        return cast(Kind, kind)
    raise ValueError(
        f"{place}: tasks of the kind {kind} are not evaluated; supported are sts (sentence1, sentence2, score) and "
        "retrieval (corpus, queries, qrels)"
    )
