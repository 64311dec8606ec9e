"""Readers of Parquet folders see the shards alone, also while they are written and with rejected rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from embrew.corpus import encode_corpus
from tests.corpus.stub import Stub


def by_pandas(folder: Path, cache: Path) -> list[str]:
    import pandas

    return list(pandas.read_parquet(folder)["id"])


def by_pyarrow(folder: Path, cache: Path) -> list[str]:
    import pyarrow.dataset

    return pyarrow.dataset.dataset(folder, format="parquet").to_table()["id"].to_pylist()


def by_datasets(folder: Path, cache: Path) -> list[str]:
    import datasets

    return list(datasets.load_dataset("parquet", data_dir=str(folder), split="train", cache_dir=str(cache))["id"])


def by_polars(folder: Path, cache: Path) -> list[str]:
    polars = pytest.importorskip("polars")
    return polars.read_parquet(f"{folder}/*.parquet")["id"].to_list()


READERS = [by_pandas, by_pyarrow, by_datasets, by_polars]


@pytest.mark.parametrize("read", READERS)
def test_readers_of_parquet_folders_see_the_shards_alone(read, corpus, tmp_path):
    with corpus.open("a") as file:
        file.write("{\n")
    out = tmp_path / "out"
    summary = encode_corpus(Stub(), corpus, out, shard_rows=25, on_bad_rows="skip", max_reject_rate=0.1)
    assert (summary.rows, summary.rejected) == (60, 1)
    assert read(out, tmp_path / "cache") == [f"d{i}" for i in range(60)]
    (out / ".part-00003.parquet.x1").write_bytes(b"half a shard")  # as of a running command
    assert read(out, tmp_path / "cache2") == [f"d{i}" for i in range(60)]
