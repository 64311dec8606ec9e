"""The data sets that `embrew data fetch` knows: YAML files in the package's folder `sets`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from embrew.settings.yaml_files import list_shipped, parse_yaml, read_shipped

FOLDER = "data"
"""Folder below the working directory that fetched sets are written to, and that shipped recipes read them from."""


@dataclass(frozen=True)
class HubSet:
    """A data set of the Hub, and how its rows become those of a folder.

    Attributes:
        hub: id on the Hub.
        about: description of the rows, for people.
        licence: licence of the texts.
        config: configuration on the Hub.
        revision: a commit on the Hub; None: the newest.
        splits: splits to write.
        every: number n, where every n-th row is taken.
        columns: names of columns, folder -> Hub.
        make: name of a function of `embrew.data.fetching`, in place of `columns`.
    """

    hub: str
    about: str
    licence: str
    config: str | None = None
    revision: str | None = None
    splits: list[str] = field(default_factory=lambda: ["train"])
    every: int = 1
    columns: dict[str, str] = field(default_factory=dict)
    make: str | None = None


@dataclass(frozen=True)
class FileSet:
    """Small JSON files, each a list of rows, which become files of JSON Lines in one folder.

    Attributes:
        url: address of a file, with `{name}`; it names a commit.
        about: description of the rows, for people.
        licence: licence of the texts.
        columns: columns of every row; others are left out.
        files: names of the files.
    """

    url: str
    about: str
    licence: str
    columns: list[str]
    files: list[str]


@cache
def data_sets() -> dict[str, HubSet | FileSet]:
    """Return the data sets that can be fetched, by name; those with a `url` are files."""
    texts = {name: read_shipped("sets", name, what="data set") for name in list_shipped("sets")}
    values = {name: parse_yaml(text, source=source) for name, (text, source) in texts.items()}
    return {name: FileSet(**fields) if "url" in fields else HubSet(**fields) for name, fields in values.items()}


def fetch_hint(path: str | Path) -> str:
    """Return what to do about a folder that a shipped recipe names and that is missing; empty for other paths.

    >>> fetch_hint("data/nli-triplets"), fetch_hint("someone/nli-triplets")
    ('; run `embrew data fetch nli-triplets`, which downloads it', '')
    """
    folder, _, name = str(path).partition("/")
    return f"; run `embrew data fetch {name}`, which downloads it" if folder == FOLDER and name in data_sets() else ""
