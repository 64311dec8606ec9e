"""Evaluation tasks: what one reads (`Task`), what tasks of one kind have in common (`TaskKind`), and how texts get a
task's instruction or context (`Instructed`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from embrew.data.columns import Kind as RowKind
from embrew.data.columns import find_layout
from embrew.text_encoder import EncodeOptions, TextEncoder

PART_PREFIX = "dev-from-"  # prefix of the split's name where rows are split off another split
COMMON_SETTINGS = ("instruction", "context")  # settings of every kind
NamedScores = dict[
    str, Any
]  # scores of a task by name, with `main_score`, `counts` of what was evaluated, and `examples`
EvaluateTask = Callable[[TextEncoder, EncodeOptions], NamedScores]
Columns = Mapping[str, str] | None
TaskColumns = Mapping[str, list[Any]]  # lists of a task's values by column
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """A kind of evaluation task: the data it reads, its settings and its metric.

    Attributes:
        name: Name in suites, results and `--kind`.
        metric: Name of the main score in tables.
        score: Return the scores of an encoder on the data, with `main_score`, `counts` of what was evaluated, and
            `examples` if it has some. It is called with the encoder and the data (then with the `GridCache` of its
            cells if the kind has a `grid`, with the `CorpusChunks` or None if it is `shared`); its keyword-only
            parameters are settings of the kind, further keywords go to the encode methods.
        read: Read the data of a task; its keyword-only parameters are settings too. None: the columns of `rows`, as
            lists by name, those of the training rows with the prefix `train_`.
        rows: Layout of its rows, by whose columns `find_task` recognises the kind if it reads nothing else; None if it
            only reads folders with a corpus.
        about: Text columns that a row is about. A dev row's are excluded from training, a task's may not be
            demonstrations.
        other: Further text columns.
        documents: Text columns that hold the candidates of a query.
        lists: Columns that must hold lists.
        corpus: Whether it reads folders with a corpus, queries and relevance judgements. The first such kind in the
            registry is the default for these folders.
        train: Whether it also reads the training split.
        grid: Settings that may be lists of numbers; each combination becomes a task.
        shared: Whether several processes can share its corpus.
        mteb_types: MTEB's task types of this kind.
        statistic: Main scores of bootstrap samples, `(samples,)`, from the examples by column, the result's scores, and
            how often each example is in each sample, `(examples, samples)`; None if the examples have a column
            `score`, whose mean is the main score.
    """

    name: str
    metric: str
    score: Callable[..., NamedScores]
    read: Callable[..., Any] | None = None
    rows: RowKind | None = None
    about: tuple[str, ...] = ()
    other: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    lists: frozenset[str] = frozenset()
    corpus: bool = False
    train: bool = False
    grid: tuple[str, ...] = ()
    shared: bool = False
    mteb_types: tuple[str, ...] = ()
    statistic: Callable[[Mapping[str, np.ndarray], NamedScores, np.ndarray], np.ndarray] | None = None

    @property
    def layout(self) -> RowKind:
        """Layout of its rows, of a kind that has some."""
        assert self.rows is not None
        return self.rows

    @property
    def settings(self) -> list[str]:
        """Names of the settings that a task of this kind can have."""
        return list(dict.fromkeys([*self.scoring, *self.reading, *COMMON_SETTINGS]))

    @property
    def scoring(self) -> list[str]:
        """Names of the settings of `score`."""
        return _keywords(self.score)

    @property
    def reading(self) -> list[str]:
        """Names of the settings that its data depend on."""
        return ["columns"] if self.read is None else _keywords(self.read)

    def matches(self, values: Mapping[str, Any]) -> bool:
        """Return whether a row with these values is recognised as one of this kind."""
        layout = find_layout(values, self.rows) if self.rows and not self.corpus else None
        return layout is not None and all(isinstance(values[layout[column][0]], list) for column in self.lists)


def _keywords(function: Callable[..., Any]) -> list[str]:
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]


@dataclass(frozen=True)
class DevPart:
    """Dev rows that are split off a folder's training rows.

    Attributes:
        rows: Minimum number of rows; rows with the same first text stay together.
        seed: Seed of the hashes that choose them.
        left_out: Texts that none of them may hold, besides those of the folder's test split.
    """

    rows: int
    seed: int = 42
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """Data that an encoder is evaluated on.

    Attributes:
        kind: Name of its `TaskKind`.
        files: Files that the score depends on.
        settings: Settings of its kind, such as `samples_per_label`.
        part: Evaluate on some of the training rows only.
    """

    name: str
    kind: str
    split: str
    path: Path
    files: tuple[Path, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    part: DevPart | None = None

    @property
    def split_label(self) -> str:
        """The split's name in results and tables."""
        return self.split if self.part is None else f"{PART_PREFIX}{self.split}"


@dataclass(frozen=True)
class MtebTask:
    """A task of MTEB by its name there.

    Attributes:
        name: Its name in tables.
        subset: One of the task's subsets, such as `en-en`; default: the English ones, or all if it is not multilingual.
        split: Default: the task's own.
        instruction: Prefix of texts and queries.
        data: Folder with its fetched data; default: mteb loads it.
    """

    name: str
    mteb: str
    subset: str | None = None
    split: str | None = None
    instruction: str | None = None
    data: Path | None = None

    @property
    def split_label(self) -> str | None:
        """The split's name in results."""
        return self.split


class GridCache:
    """Data, generators and vectors that several tasks of one evaluation share.

    It holds the last value of each name: vectors of two corpora may not fit into memory.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, Any]] = {}

    def get(self, name: str, key: Any, make: Callable[[], T]) -> T:
        """Return the value made for `key`, or make it and drop the previous one of this name."""
        if name not in self._last or self._last[name][0] != key:
            self._last.pop(name, None)
            self._last[name] = key, make()
        value: T = self._last[name][1]
        return value


@dataclass(frozen=True)
class Instructed:
    """`encoder` with `prefix` as the prompt of texts and queries; documents keep their own prompt.

    MTEB evaluates instruction-tuned encoders this way: both sides of symmetric tasks are instructed, and the queries of
    asymmetric ones.

    Attributes:
        prefix: `prompt`, the task's instruction, or `prompt_name`, a context of the encoder.
    """

    encoder: TextEncoder
    prefix: Mapping[str, str]

    @property
    def prompts(self) -> Mapping[str, str]:
        """The encoder's own prompts."""
        return self.encoder.prompts

    def encode(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of texts with the prefix."""
        return self.encoder.encode(inputs, *args, **{**self.prefix, **kwargs})

    def encode_query(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of queries with the prefix."""
        return self.encoder.encode_query(inputs, *args, **{**self.prefix, **kwargs})

    def encode_document(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of documents."""
        return self.encoder.encode_document(inputs, *args, **kwargs)


def instructed(encoder: TextEncoder, settings: Mapping[str, Any]) -> TextEncoder:
    """Return the encoder with the prefix that a task's settings `instruction` and `context` name.

    Raises:
        ValueError: both are set.
    """
    instruction, context = settings.get("instruction"), settings.get("context")
    if instruction is not None and context is not None:
        raise ValueError(f"context={context!r} has its own instruction; leave out instruction={instruction!r}")
    if context is not None:
        return Instructed(encoder, {"prompt_name": context})
    return encoder if instruction is None else Instructed(encoder, {"prompt": instruction})


def without_instruction(encoder: TextEncoder) -> TextEncoder:
    """Return the encoder without a task's instruction or context."""
    return encoder.encoder if isinstance(encoder, Instructed) else encoder
