"""From a data folder to a task: its name, its kind (by its columns), the split, and settings of its kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from embrew.data.beir import is_beir, qrels_file, qrels_files
from embrew.data.reading import SPLITS, expand, find_file, read_file, split_files, splits, stem

Kind = Literal[
    "sts",
    "retrieval",
    "pair_classification",
    "classification",
    "clustering",
    "reranking",
    "summarization",
    "rag",
    "generation",
]
PART_OF = "dev-from-"  # the split of rows that are split off another one
# What a folder of rows is, by its columns. Labelled texts are to be classified where there is something to learn from.
COLUMNS: dict[Kind, frozenset[str]] = {
    "sts": frozenset({"sentence1", "sentence2", "score"}),
    "pair_classification": frozenset({"sentence1", "sentence2", "label"}),
    "summarization": frozenset({"text", "human_summaries", "machine_summaries", "relevance"}),
    "classification": frozenset({"text", "label"}),
    "reranking": frozenset({"query", "positive", "negative"}),
}


@dataclass(frozen=True)
class Part:
    """Rows that are split off a folder's training rows, to choose on.

    Attributes:
        rows: minimum number of rows; rows with the same first text stay together.
        seed: of the hashes that choose them.
        left_out: texts that none of them may hold, besides those of the folder's test split.
    """

    rows: int
    seed: int = 42
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What to judge an encoder on.

    Attributes:
        files: What the score depends on.
        settings: Keywords of the kind's evaluation, such as `samples_per_label`.
        part: Where only some of the training rows are judged on.
    """

    name: str
    kind: Kind
    split: str
    path: Path
    files: tuple[Path, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    part: Part | None = None

    @property
    def shown_split(self) -> str:
        """The split's name in results and tables."""
        return self.split if self.part is None else f"{PART_OF}{self.split}"


def find_task(
    path: str | Path,
    *,
    split: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    part: Part | None = None,
    **settings: Any,
) -> Task:
    """The task of a folder (or of one file of rows).

    A folder with a corpus, queries and judgements is retrieval, or by `kind` retrieval-augmented answers (`rag`), whose
    setting `answers` names a file relative to the folder, or answers to be written (`generation`).

    Args:
        split: Default: `test` where there is one, else `dev` (or `validation`, `valid`).
        kind: One of `Kind`, where the columns should not decide.
        name: Default: the folder's name.
        part: Some of a folder's rows.
    """
    if kind is not None and kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r}; choose from {', '.join(get_args(Kind))}")
    place = Path(expand(path))
    if not place.exists():
        raise FileNotFoundError(f"no data folder {place}")
    if place.is_file():
        found = _kind_of(place, place, kind)
        if found == "classification":
            raise ValueError(f"{place}: classification needs a folder with a train and a test split, not one file")
        return Task(name or stem(place), found, split or "test", place, (place,), settings)
    name = name or (f"{place.resolve().parent.name}-{place.name}" if place.name in SPLITS else place.resolve().name)
    if is_beir(place):
        if kind not in (None, "retrieval", "rag", "generation"):
            raise ValueError(
                f"{place} holds a corpus and queries: kind={kind!r} cannot be; use retrieval, rag or generation"
            )
        split = split or _default_split(place, sorted(qrels_files(place)))
        files = [find_file(place, "corpus"), find_file(place, "queries"), qrels_file(place, split)]
        if kind == "rag" and settings.get("answers") is not None:
            files.append(_answers_file(place, settings["answers"]))
        found = cast(Kind, kind or "retrieval")
        return Task(name, found, split, place, tuple(file for file in files if file), settings, part)
    if kind in ("retrieval", "rag"):
        raise FileNotFoundError(f"{place} lacks corpus.jsonl or queries.jsonl (gz or not), which {kind} needs")
    split = split or _default_split(place, splits(place))
    paths = split_files(place, split)
    found = _kind_of(paths[0], place, kind)
    if found == "classification":
        paths = [*split_files(place, "train"), *paths]
    return Task(name, found, split, place, tuple(paths), settings, part)


def _answers_file(place: Path, given: Any) -> Path:
    if not isinstance(given, str):
        raise ValueError(f"answers={given!r}; give a file, relative to {place}")
    file = place / expand(given)
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}, which answers={given!r} names; it is relative to the data folder")
    return file


def _default_split(folder: Path, names: list[str]) -> str:
    for split in ("test", "dev", "validation", "valid"):
        if split in names:
            return split
    raise ValueError(f"{folder} has neither a test nor a dev split; name one of {', '.join(names) or 'none'} as split")


def _kind_of(file: Path, place: Path, kind: str | None) -> Kind:
    if kind is not None:
        return cast(Kind, kind)
    record = next(read_file(file), None)
    if record is None:
        raise ValueError(f"{file} holds no rows")
    columns = set(record.values) | ({"label"} if "labels" in record.values else set())
    found: Kind | None = next((name for name, needed in COLUMNS.items() if needed <= columns), None)
    if found == "reranking" and not isinstance(record.values["positive"], list):
        found = None
    if found is None:
        known = "; ".join(f"{name} ({', '.join(sorted(needed))})" for name, needed in COLUMNS.items())
        raise ValueError(
            f"{place}: rows with the columns {', '.join(sorted(record.values))} are no task; known are {known}, and "
            "retrieval (a folder with corpus, queries, qrels)"
        )
    has_train = place.is_dir() and "train" in splits(place)
    return "clustering" if found == "classification" and not has_train else found
