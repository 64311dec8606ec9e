"""The data sets of the Hub that `embrew data fetch` knows: YAML files in the package's folder `sets`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from embrew.config.yaml_files import list_shipped, parse_yaml, read_shipped

FOLDER = "data"
"""Folder below the working directory that fetched sets are written to, and that shipped recipes read them from."""


@dataclass(frozen=True)
class HubSet:
    """A data set of the Hub, and how its rows become those of a folder.

    Attributes:
        hub: id on the Hub.
        about: what the rows are, for people.
        licence: of the texts.
        config: configuration on the Hub.
        revision: a commit on the Hub; None: the newest.
        splits: splits to write.
        every: take every n-th row.
        columns: column of the folder -> column on the Hub.
        make: in place of `columns`, a function of `embrew.data.fetching`.
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


@cache
def hub_sets() -> dict[str, HubSet]:
    """Return the data sets that can be fetched, by name."""
    texts = {name: read_shipped("sets", name, what="data set") for name in list_shipped("sets")}
    return {name: HubSet(**parse_yaml(text, source=source)) for name, (text, source) in texts.items()}


def fetched_name(path: str) -> str | None:
    """Return the set whose folder a path of a shipped recipe names, None if there is none.

    >>> fetched_name("data/nli-triplets"), fetched_name("someone/nli-triplets")
    ('nli-triplets', None)
    """
    folder, _, name = path.partition("/")
    return name if folder == FOLDER and name in hub_sets() else None
