"""Settings of an encoding job, shared by both engines, and the files of its output folder beside the shards.

Most readers of a folder read every file as Parquet. They ignore a folder whose name begins with two underscores; one
underscore is not enough for `datasets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from embrew.corpus.precision import Precision
from embrew.data.rejects import MAX_RATE, OnBadRows
from embrew.stores import Place, place_of

Side = Literal["query", "document"]

ABOUT = "__embrew__"
MANIFEST = f"{ABOUT}/vectors.json"
REJECTS = f"{ABOUT}/rejects.jsonl"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One corpus, one output folder, one way to encode.

    Attributes:
        input: a `.jsonl`, `.json`, `.csv`, `.tsv`, `.txt` (all may be `.gz`) or `.parquet` file, a folder of them, a
            folder of `datasets.save_to_disk`, or a BEIR folder; a path, or a URL (`s3://`, `gs://`, `hf://`, `file://`).
        output: the folder of shards; a path, or a URL.
        prompt_name: prompt and length limit of documents or of queries.
        precision: data type of the stored vectors; `int8` needs 1/4 of the bytes of `float32`, `binary` (signs) 1/32.
        truncate_dim: number of leading dimensions to keep; default: all.
        num_layers: number of layers to run; default: all.
        batch_tokens: tokens per batch, with padding; default: 16384, on a CPU 2048.
        shard_rows: rows per shard; a killed run loses at most one shard.
        id_column: column of the ids; default: `_id` or `id`, else the number of the line or row.
        text_column: column of the texts; default: `text`, after `title` where there is one.
        on_bad_rows: `strict` stops at a row that cannot be encoded; `skip` writes it to `__embrew__/rejects.jsonl` and
            continues.
        max_reject_rate: with `skip`, stop when more than this share of the rows is bad, or of 100 rows if there are
            fewer; 0: at the first.
    """

    input: str | Place
    output: str | Place
    prompt_name: Side = "document"
    precision: Precision = "float32"
    truncate_dim: int | None = None
    num_layers: int | None = None
    batch_tokens: int | None = None
    shard_rows: int = 32_768
    id_column: str | None = None
    text_column: str | None = None
    on_bad_rows: OnBadRows = "strict"
    max_reject_rate: float = MAX_RATE

    def __post_init__(self) -> None:
        for name, allowed in (("prompt_name", Side), ("precision", Precision), ("on_bad_rows", OnBadRows)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(f"{name}={getattr(self, name)!r}; choose from {', '.join(get_args(allowed))}")
        for name in ("shard_rows", "truncate_dim", "num_layers", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}; give 1 or more")
        if not 0 <= self.max_reject_rate <= 1:
            raise ValueError(f"max_reject_rate={self.max_reject_rate}; give a share from 0 to 1")

    @property
    def folder(self) -> Place:
        """`output` as a place."""
        return place_of(self.output)

    @property
    def local_folder(self) -> Path:
        """`output` as a folder of this machine.

        Raises:
            ValueError: it is in a store.
        """
        folder = self.folder
        if not isinstance(folder, Path):
            raise ValueError(
                f"{folder} is in a store, which cannot replace a folder in one step; update a folder of this machine, "
                "or encode into a new one"
            )
        return folder
