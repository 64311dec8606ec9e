"""Every file of a folder of vectors and of an index, damaged in every way: noticed, or listed as harmless and why."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from embrew.corpus import encode_corpus, read_vectors, texts_of
from embrew.corpus.job import MANIFEST
from embrew.data import Document
from embrew.search import SearchIndex
from tests.corpus.stub import Stub

TEXTS = [f"text {i}" for i in range(25)]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Two folders of vectors and two indexes, of two corpora; files are swapped between them."""
    place = tmp_path_factory.mktemp("made")
    for name in ("one", "other"):
        rows = [json.dumps({"id": f"{name} {i}", "text": f"{name} {text}"}) for i, text in enumerate(TEXTS)]
        (place / f"{name}.jsonl").write_text("\n".join([*rows, "{", '{"text": "last"}\n']))
        settings = {"shard_rows": 10, "on_bad_rows": "skip", "max_reject_rate": 0.1}
        encode_corpus(Stub(), place / f"{name}.jsonl", place / f"vectors-{name}", precision="int8", **settings)
        documents = [Document(id=f"{name} {i}", text=f"{name} {text}") for i, text in enumerate(TEXTS)]
        index = SearchIndex.build(Stub(), documents)
        if name == "other":  # the same files, but for the order of the documents
            index, _ = index.updated(documents[::-1])
        index.save(place / f"index-{name}")
    return place


VECTORS = [
    *(f"part-0000{i}.parquet" for i in range(3)),
    *(f"__embrew__/part-0000{i}.texts" for i in range(3)),
    "__embrew__/rejects.jsonl",
    "__embrew__/vectors.json",
]
INDEX = ["documents-00000.arrow", "manifest.json", "rows.npy", "vectors-00000.npy"]
FIRST_READ = ("documents-00000.arrow", "vectors-00000.npy")  # files that are verified then
HARMLESS = {
    **{
        f"__embrew__/part-0000{i}.texts": "verified when an update reads it, which encodes the shard's rows again; "
        "reading vectors needs none, and the same encode writes it again"
        for i in range(3)
    },
    "__embrew__/rejects.jsonl": "a list for people, which no command reads; the same encode writes it again",
}


def flipped(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def missing(path: Path, other: Path) -> None:
    path.unlink()


def swapped(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


DAMAGES = [flipped, missing, swapped]


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_every_file_is_there(made):
    assert files(made / "vectors-one") == sorted(VECTORS) and files(made / "index-one") == INDEX
    assert len(VECTORS) == 8 and len(INDEX) == 4


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", VECTORS)
def test_damage_to_a_folder_of_vectors(name, damage, made, tmp_path):
    folder = tmp_path / "vectors-one"
    shutil.copytree(made / "vectors-one", folder)
    whole = read_vectors(folder).load()
    damage(folder / name, made / "vectors-other" / name)
    settings = {"shard_rows": 10, "on_bad_rows": "skip", "max_reject_rate": 0.1, "precision": "int8"}
    if name in HARMLESS:
        ids, vectors = read_vectors(folder).load()
        assert ids == whole[0] and np.array_equal(vectors, whole[1])
        assert len(texts_of(read_vectors(folder), made / "one.jsonl")) == 26
        stub = Stub()
        encode_corpus(stub, made / "one.jsonl", folder, **settings)
        assert stub.asked == [] and (folder / name).read_bytes() == (made / "vectors-one" / name).read_bytes()
        return
    shard = name.startswith("part")
    with pytest.raises((ValueError, FileNotFoundError)) as read:
        read_vectors(folder).load()
    message = str(read.value)
    assert (name in message or str(folder) in message) and "\n" not in message
    if shard and damage is missing:
        assert encode_corpus(Stub(), made / "one.jsonl", folder, **settings).kept == 2, "it is made again"
        return
    with pytest.raises((ValueError, FileExistsError), match="part-0000" if shard else ".") as again:
        encode_corpus(Stub(), made / "one.jsonl", folder, **settings)
    assert str(folder) in str(again.value) and "\n" not in str(again.value)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", INDEX)
def test_damage_to_an_index(name, damage, made, tmp_path):
    folder = tmp_path / "index-one"
    shutil.copytree(made / "index-one", folder)
    damage(folder / name, made / "index-other" / name)
    for verify in ("fast", "full"):
        with pytest.raises((ValueError, FileNotFoundError), match="index-one") as raised:
            index = SearchIndex.load(folder, Stub(), verify=verify)
            assert verify == "fast" and name in FIRST_READ and damage is not missing
            for _ in range(2):
                with pytest.raises(ValueError, match=f"{name} is missing or has changed since it was written"):
                    index.search(["one"])
            index.search(["one"])
        assert "\n" not in str(raised.value) and (damage is swapped or name in str(raised.value))
    swap = made / "index-other"
    if name != "manifest.json" and damage is missing:  # a file of another index, with its manifest
        shutil.copyfile(swap / name, folder / name)
        shutil.copyfile(swap / "manifest.json", folder / "manifest.json")
        with pytest.raises(ValueError, match="is missing or has changed since it was written; build the index again"):
            SearchIndex.load(folder, Stub(), verify="full")


@pytest.mark.parametrize(("key", "value"), [("dimensions", 12), ("rows", 3), ("complete", False), ("rejected", 9)])
def test_a_changed_manifest_is_noticed(key, value, made, tmp_path):
    folder = tmp_path / "vectors-one"
    shutil.copytree(made / "vectors-one", folder)
    values = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**values, key: value}))
    with pytest.raises(ValueError, match=r"vectors\.json cannot be read: it has changed since it was written"):
        read_vectors(folder)


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "shards": 3}'])
def test_a_manifest_of_another_shape_is_one_line(content, made, tmp_path):
    for folder, name, opened in (
        (tmp_path / "vectors-one", MANIFEST, read_vectors),
        (tmp_path / "index-one", "manifest.json", lambda folder: SearchIndex.load(folder, Stub())),
    ):
        shutil.copytree(made / folder.name, folder)
        (folder / name).write_text(content)
        with pytest.raises(ValueError, match=name) as raised:
            opened(folder)
        assert "\n" not in str(raised.value)
