"""Read what an adaptation is given: pairs and documents, in the forms that training reads and in those of users."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.adapting.preparation.documents import read_folder
from embrew.analysis.qa import QA, read_as_trained, read_qa
from embrew.data.beir import Document
from embrew.data.datasets import load
from embrew.data.reading import HUB_ID, expand, public_name
from embrew.recipe import DataConfig
from embrew.settings.validation import check_fields
from embrew.settings.yaml_files import parse_yaml

REFUSED_KEYS = (
    "weight",
    "ratio",
    "instruction",
    "instructions",
    "instruct",
    "max_tokens",
    "on_bad_rows",
    "max_reject_rate",
)


@dataclass(frozen=True)
class DataSource:
    """A data set that a user names: a path or Hub id, or a recipe's `data` keys.

    Attributes:
        config: path and other keys.
        columns: our names of columns -> theirs, of questions and answers.
    """

    config: DataConfig
    columns: Mapping[str, str]

    @property
    def path(self) -> Path | None:
        """The file or folder; None: a data set of the Hub."""
        path = Path(expand(self.config.paths[0]))
        return path if path.exists() else None

    @property
    def name(self) -> str:
        """Its name without the folders of this machine."""
        return public_name(self.config.paths[0])[0]

    @property
    def options(self) -> dict[str, Any]:
        """The keys besides the path that are given."""
        return self.config.model_dump(exclude_unset=True, exclude={"path"})

    @property
    def public(self) -> dict[str, Any]:
        """What a manifest holds of it."""
        return {"path": self.name, **self.options, "columns": {**self.config.columns, **self.columns}}


def data_source(
    source: str | Path | Mapping[str, Any], role: str, *, columns: Mapping[str, str] | None = None
) -> DataSource:
    """Return the data set that a user names.

    Args:
        source: a path or Hub id; or the keys of a recipe's `data`, as a mapping or as YAML `{path: …, where: …}`.
        role: `pairs` or `documents`.
        columns: `question`, `answer`, `choices`, `negatives` or `source` -> column in the file.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: unknown keys, several paths.
    """
    values: Any = source
    if isinstance(source, str) and source.lstrip().startswith("{") and not os.path.lexists(source):
        values = parse_yaml(source, source=role)
    if not isinstance(values, Mapping):
        values = {"path": str(values)}
    config = check_fields(DataConfig, values, message_prefix=f"{role}: ")
    wrong = next((name for name in REFUSED_KEYS if name in config.model_fields_set), None)
    if wrong is not None or len(config.paths) > 1:
        raise ValueError(f"{role}: {wrong or 'several paths'} cannot be given here; write the rows into one file first")
    path = Path(expand(config.paths[0]))
    if not path.exists() and not HUB_ID.fullmatch(config.paths[0]):
        raise FileNotFoundError(f"{role}: no file or folder {path}")
    return DataSource(config, dict(columns or {}))


def read_pairs(source: DataSource) -> list[QA]:
    """Return the pairs of a data set; errors as of `read_qa`."""
    options = source.options
    if not options:
        return read_qa(source.config.paths[0], columns=source.columns)
    if source.columns:
        raise ValueError("pairs: columns are given twice; name them in the keys of the data alone")
    return read_as_trained(source.config.paths[0], **options)


def read_documents(source: DataSource) -> list[Document]:
    """Return the documents of a folder, of a file of rows, or of a data set of the Hub.

    Raises:
        FileNotFoundError, ValueError: as of `read_folder`, or of `embrew.data.datasets.load`.
    """
    options = source.options
    if source.path is not None and not options:
        return read_folder(source.config.paths[0])
    rows = load(source.config.paths[0], kind="text", **options)
    return [Document(f"{number}", text, "") for number, text in enumerate(rows["text"])]
