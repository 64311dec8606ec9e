"""Folders that earlier versions wrote open and resume; so do those of a run that was killed at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.layout import BESIDE, MANIFEST, REJECTS
from tests.corpus.conftest import edit
from tests.corpus.stub import Stub


def as_before(folder: Path) -> Path:
    """The folder as earlier versions wrote it."""
    for name, old in BESIDE.items():
        if (folder / name).exists():
            (folder / name).replace(folder / old)
    for path in (folder / "__embrew__").glob("*.texts"):
        path.unlink()
    (folder / "__embrew__").rmdir()
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folders_of_earlier_versions_open_and_resume(corpus: Path, tmp_path: Path) -> None:
    with corpus.open("a") as file:
        file.write("{\n")
    settings: dict[str, Any] = {"shard_rows": 25, "on_bad_rows": "skip", "max_reject_rate": 0.1}
    out = tmp_path / "out"
    encode_corpus(Stub(), corpus, out, **settings)
    whole = files(out)
    edit(out, lambda values: values["made_of"].pop("texts"))
    before = files(as_before(out))
    assert {"embrew-vectors.json", "rejects.jsonl"} < before.keys()
    assert read_vectors(out).load()[0] == [f"d{i}" for i in range(60)]
    with pytest.raises(FileExistsError, match="made of another precision"):
        encode_corpus(Stub(), corpus, out, **settings, precision="int8")
    assert files(out) == before, "what is refused is left as it was"
    (out / "part-00001.parquet").unlink()
    (out / ".embrew-vectors.json.x1").write_bytes(b"of a killed run")
    stub = Stub()
    assert encode_corpus(stub, corpus, out, **settings).kept == 2
    assert [asked["rows"] for asked in stub.asked] == [25]
    assert files(out) == whole, "its files are where they are now"


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_missing_shard_of_an_earlier_version_is_made_again(precision: str, tmp_path: Path) -> None:
    """It was made of texts without white space at both ends; what is still there is compared, and refused if so."""
    corpus, out, settings = tmp_path / "c.txt", tmp_path / "out", {"shard_rows": 10, "precision": precision}
    texts = [f"text {i}" for i in range(30)]
    corpus.write_text("".join(f"{text}\n" for text in texts))
    encode_corpus(Stub(), corpus, out, **settings)
    corpus.write_text("".join(f"{'  ' * (i >= 20)}{text}\n" for i, text in enumerate(texts)))
    encode_corpus(Stub(), corpus, tmp_path / "new", **settings)
    files_now = json.loads((tmp_path / "new" / MANIFEST).read_text())["made_of"]["input"]
    edit(out, lambda values: (values["made_of"].pop("texts"), values["made_of"].update(input=files_now)))
    with pytest.raises(ValueError, match="rows 21 to 30 are not those"):
        encode_corpus(Stub(), corpus, out, **settings)
    (out / "part-00002.parquet").unlink()
    stub = Stub()
    assert encode_corpus(stub, corpus, out, **settings).kept == 2
    assert [asked["rows"] for asked in stub.asked] == [10]
    assert files(out) == files(tmp_path / "new")


def test_a_run_killed_before_its_first_shard_can_be_given_again(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "__embrew__").mkdir(parents=True)
    (out / "__embrew__" / ".vectors.json.x1").write_bytes(b"half a manifest")
    assert encode_corpus(Stub(), corpus, out).rows == 60
    assert files(out).keys() == {MANIFEST, "part-00000.parquet", "__embrew__/part-00000.texts"}
    assert not (out / REJECTS).exists()
    shutil.rmtree(out / "__embrew__")
    with pytest.raises(FileExistsError, match="not written by embrew; it is left alone"):
        encode_corpus(Stub(), corpus, out)
