"""What a report is about: the comparison, the texts behind it, and what was measured with the encoders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from embrew.comparison import Comparison
from embrew.evaluation.task import GridCache

if TYPE_CHECKING:
    from embrew.evaluation.task import Task
    from embrew.report.source import Source
    from embrew.text_encoder.interface import TextEncoder


class Overlaps(NamedTuple):
    """Lines about training rows that hold a text of a task, and about data that could not be checked, with reasons."""

    found: tuple[str, ...]
    not_checked: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        comparison: Models and the tasks that they have alike; the first model is the base.
        data: Data folder of a task, by task name and split, only where its files are those of the results.
        without_data: Why the data that were stored with the results of a task are not used, by task name and split.
        measured: What `measure` of each section returned, by section and model; a model whose encoder is not known is
            missing.
        sources: Folders and runs of each model, one per seed, by model.
        overlaps: Texts of the tasks among the training rows, by model; empty if they were not looked for.
        map_method: `pca` or `tsne`.
        command: The command that made the report.
        cache: Data of retrieval tasks that several sections of a page read.
    """

    comparison: Comparison
    data: Mapping[tuple[str, str], Task] = field(default_factory=dict)
    without_data: Mapping[tuple[str, str], str] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    overlaps: Mapping[str, Overlaps] = field(default_factory=dict)
    map_method: str = "pca"
    command: str = ""
    cache: GridCache = field(default_factory=GridCache, compare=False)


Measure = Callable[["TextEncoder", Subject], Any]
"""Measure something with a model's encoder, which is opened once for all sections."""
