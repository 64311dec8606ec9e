"""Folders of a run that was killed at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from embrew.corpus import encode_corpus
from embrew.corpus.job import MANIFEST, REJECTS
from tests.corpus.stub import Stub


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_killed_before_its_first_shard_can_be_given_again(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "__embrew__").mkdir(parents=True)
    (out / "__embrew__" / ".vectors.json.abcdefgh.partial").write_bytes(b"half a manifest")
    assert encode_corpus(Stub(), corpus, out).rows == 60
    assert files(out).keys() == {MANIFEST, "part-00000.parquet", "__embrew__/part-00000.texts"}
    assert not (out / REJECTS).exists()
    shutil.rmtree(out / "__embrew__")
    with pytest.raises(FileExistsError, match="not written by embrew; it is left alone"):
        encode_corpus(Stub(), corpus, out)
