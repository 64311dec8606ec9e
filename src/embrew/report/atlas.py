"""Write the maps as Parquet files that Embedding Atlas opens."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embrew.files.names import check_file_name
from embrew.files.writing import atomic_path

if TYPE_CHECKING:
    from embrew.report.maps import TextMap
    from embrew.report.sample import Text


def write_atlas(maps: Sequence[TextMap], folder: Path) -> list[str]:
    """Write a file per task, `TASK.SPLIT.parquet`; return commands that open the first model's maps offline.

    Columns: `id`, `text` (whole), `label`, `rank_change` (below 0: found earlier), `x_MODEL` and `y_MODEL`. Columns
    that are empty for a task are left out.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    commands = []
    for one in maps:
        file = folder / f"{check_file_name(one.task.replace(' ', '.'), what='the task')}.parquet"
        names = dict(zip(one.points, _column_names(list(one.points)), strict=True))
        with atomic_path(file) as temporary:
            pq.write_table(pa.table(_columns(one, names)), temporary)
        first = next(iter(names.values()))
        columns = ["--text", "text", "--x", f"x_{first}", "--y", f"y_{first}"]
        commands.append(shlex.join(["embedding-atlas", str(file), *columns, "--duckdb", "server"]))
    return commands


def _columns(one: TextMap, names: dict[str, str]) -> dict[str, Any]:
    columns: dict[str, Any] = {"id": list(one.sample.ids), "text": list(map(_written, one.sample.texts))}
    if one.sample.labels:
        columns["label"] = list(one.sample.labels)
    if any(change is not None for change in one.changes):
        columns["rank_change"] = list(one.changes)
    for model, points in one.points.items():
        for axis in (0, 1):
            columns[f"{'xy'[axis]}_{names[model]}"] = points[:, axis]
    return columns


def _written(text: Text) -> str:
    """Return a text that Parquet can hold: lone surrogates are replaced."""
    return text.text.encode("utf-8", errors="replace").decode("utf-8")


def _column_names(models: Sequence[str]) -> list[str]:
    """Return names for columns: lower-case letters, digits and underscores; with numbers if two would be the same."""
    plain = [re.sub(r"\W+", "_", model, flags=re.ASCII).strip("_").lower()[:60] for model in models]
    is_unique = len(set(plain)) == len(plain) and all(plain)
    return plain if is_unique else [f"{number}_{name}" for number, name in enumerate(plain, start=1)]
