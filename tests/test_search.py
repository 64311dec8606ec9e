import copy
import hashlib
import json
import os
import random
import threading
import zlib
from typing import ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from embrew import search
from embrew.data import Document, blocks
from embrew.files.checksums import digest_of
from embrew.search import Changes, SearchIndex


class BagOfWords:
    """Counts of words, hashed into buckets."""

    prompts: ClassVar[dict[str, str]] = {}

    def __init__(self, dimensions=256):
        self.dimensions = dimensions

    def weights_hash(self):
        return f"bag of words {self.dimensions}"

    def encode(self, inputs, **_):
        vectors = np.zeros((len(inputs), self.dimensions), dtype=np.float32)
        for row, text in enumerate(inputs):
            for word in text.lower().split():
                vectors[row, zlib.crc32(word.encode()) % self.dimensions] += 1
        return vectors

    encode_query = encode_document = encode


DOCUMENTS = [
    Document(id="a", title="Cats", text="sleep all day"),
    Document(id="b", text="dogs bark"),
    Document(id="c", text="dogs sleep"),
]


def test_nearest_first_with_cosines():
    (hits,) = SearchIndex.build(BagOfWords(), DOCUMENTS).search(["dogs bark"], top_k=2)
    assert [hit.document.id for hit in hits] == ["b", "c"]
    assert [hit.score for hit in hits] == pytest.approx([1.0, 0.5])  # two of two words, one of two


@settings(deadline=None, max_examples=30)
@given(
    texts=st.lists(st.text("abc ", min_size=1).filter(str.strip), min_size=1, max_size=12),
    top_k=st.integers(1, 15),
    block=st.integers(1, 5),
    rows=st.integers(1, 5),
)
def test_search_is_exact(texts, top_k, block, rows):
    """The scores are those of all cosines, sorted, whatever is encoded at once and however many rows a block has."""
    encoder = BagOfWords(16)
    documents = [Document(id=str(i), text=text) for i, text in enumerate(texts)]
    with mock.patch.object(search, "BLOCK", block), mock.patch.object(blocks, "ROWS", rows):
        (hits,) = SearchIndex.build(encoder, documents).search(["a b ab"], top_k=top_k)
    unit = encoder.encode(["a b ab", *texts])
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = sorted((unit[1:] @ unit[0]).tolist(), reverse=True)[:top_k]
    assert [hit.score for hit in hits] == pytest.approx(expected, abs=1e-6)
    assert [hit.score for hit in hits] == pytest.approx(
        [float(unit[1 + int(hit.document.id)] @ unit[0]) for hit in hits]
    )


def test_save_and_load(tmp_path):
    index = SearchIndex.build(BagOfWords(), DOCUMENTS)
    index.save(tmp_path / "index")
    assert sorted(file.name for file in (tmp_path / "index").iterdir()) == [
        "documents-00000.arrow",
        "manifest.json",
        "rows.npy",
        "vectors-00000.npy",
    ]
    assert json.loads((tmp_path / "index" / "manifest.json").read_text())["encoder_hash"] == "bag of words 256"
    loaded = SearchIndex.load(tmp_path / "index", BagOfWords())
    assert loaded.documents == DOCUMENTS
    assert loaded.search(["dogs", "cats"]) == index.search(["dogs", "cats"])


def test_another_tokenizer_is_refused(tmp_path, tokenizer):
    encoder = BagOfWords()
    encoder.tokenizer = copy.deepcopy(tokenizer)
    SearchIndex.build(encoder, DOCUMENTS).save(tmp_path / "index")
    assert SearchIndex.load(tmp_path / "index", encoder).documents == DOCUMENTS
    encoder.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(ValueError, match="with the same weights and another tokenizer"):
        SearchIndex.load(tmp_path / "index", encoder)


def test_a_changed_file_is_named(tmp_path):
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "index")
    file = tmp_path / "index" / "documents-00000.arrow"
    file.write_bytes(file.read_bytes().replace(b"dogs", b"cats"))
    index = SearchIndex.load(tmp_path / "index", BagOfWords())
    for read in (lambda: index.documents[0], lambda: [*index.documents], lambda: index.search(["cats"])):
        with pytest.raises(
            ValueError, match="documents-00000.arrow is missing or has changed since it was written; bu"
        ):
            read()
    with pytest.raises(ValueError, match="documents-00000.arrow is missing or has changed"):
        SearchIndex.load(tmp_path / "index", BagOfWords(), verify="full")
    with pytest.raises(ValueError, match="verify='off'; choose from fast, full"):
        SearchIndex.load(tmp_path / "index", BagOfWords(), verify="off")
    with pytest.raises(FileNotFoundError, match="holds no search index"):
        SearchIndex.load(tmp_path, BagOfWords())


def test_a_hybrid_search_fuses_vectors_and_words():
    """`top_k` and the order of the documents bind as in a search by vectors; words are found that vectors miss."""
    documents = [Document(id=f"d{i}", text=f"w{i} " + "dogs bark " * (i + 1)) for i in range(150)]
    index = SearchIndex.build(BagOfWords(), documents)
    question = "bark bark bark dogs dogs dogs w0"
    places = []
    for hybrid in (False, True):
        (hits,) = index.search([question], top_k=150, hybrid=hybrid)
        places.append([hit.document.id for hit in hits].index("d0"))
    assert places[0] >= 148 and places[1] < 100, "the best by words, the last by vectors"
    assert len(index.search([question], top_k=3, hybrid=True)[0]) == 3
    alone, both = (index.search(["zzz", "dogs"], top_k=5, hybrid=hybrid) for hybrid in (False, True))
    assert [hit.document.id for hit in both[0]] == [hit.document.id for hit in alone[0]], "no word is known"
    assert both[0][0].score == pytest.approx(1 / 61)
    assert len(index.search(["dogs"], top_k=400, hybrid=True)[0]) == 150


def test_a_hybrid_search_needs_texts():
    vectors = BagOfWords().encode(["cats", "dogs"])
    index = SearchIndex.of_vectors(BagOfWords(), [Document(id="a", text=""), Document(id="b", text="")], vectors)
    with pytest.raises(ValueError, match="these documents have no texts; give their corpus"):
        index.search(["cats"], hybrid=True)


def test_what_cannot_be_searched():
    with pytest.raises(ValueError, match="no documents to index"):
        SearchIndex.build(BagOfWords(), [])
    index = SearchIndex.build(BagOfWords(), DOCUMENTS)
    assert index.search(np.array(["cats"])) == index.search(text for text in ["cats"]) == index.search(["cats"])
    with pytest.raises(TypeError, match="give a list of texts"):
        index.search("cats")
    with pytest.raises(ValueError, match="top_k=0"):
        index.search(["cats"], top_k=0)
    assert index.search([]) == []
    index.encoder.dimensions = 8
    with pytest.raises(ValueError, match="the encoder gives 8 dimensions, the index has 256; set truncate_dim"):
        index.search(["cats"])


class Counts(BagOfWords):
    """Keeps the texts that it embedded."""

    def __init__(self, dimensions=256):
        super().__init__(dimensions)
        self.asked = []

    def encode_document(self, inputs, **_):
        self.asked += inputs
        return self.encode(inputs)


def test_an_index_takes_a_newer_version_of_its_documents(tmp_path):
    """It finds what a new build finds, and only new texts are embedded."""
    rows = [{"_id": d.id, "title": d.title, "text": d.text} for d in DOCUMENTS]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    SearchIndex.build(Counts(), corpus).save(tmp_path / "index")
    rows = [
        {"_id": "new", "text": "birds sing"},
        rows[2],
        {"_id": "a", "title": "Cats", "text": "sleep at night"},
        {"_id": "twice", "text": "birds sing"},
        {"_id": "renamed", "text": "dogs bark"},
    ]
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encoder = Counts()
    index, changes = SearchIndex.load(tmp_path / "index", encoder).updated(corpus)
    index.save(tmp_path / "index", overwrite=True)
    assert changes == Changes(kept=1, changed=1, new=3, dropped=1, encoded=2)
    assert sorted(encoder.asked) == ["Cats sleep at night", "birds sing"]
    SearchIndex.build(Counts(), corpus).save(tmp_path / "fresh")
    fresh, loaded = (SearchIndex.load(tmp_path / name, Counts(), verify="full") for name in ("fresh", "index"))
    assert (
        loaded.documents == fresh.documents == [Document(row["_id"], row["text"], row.get("title", "")) for row in rows]
    )
    queries = ["birds", "cats", "dogs sleep"]
    assert loaded.search(queries) == index.search(queries) == fresh.search(queries)


def words(draw, count):
    return [" ".join(draw.choices("abcdefgh", k=3)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_many_updates_find_what_a_new_build_finds(seed, tmp_path):
    """Documents come, go, change, move and are renamed, over blocks of 4 rows and 5 small ones at most."""
    draw, encoder = random.Random(seed), Counts(32)
    documents = [Document(str(i), text) for i, text in enumerate(words(draw, 60))]
    with mock.patch.multiple(search, _SMALL=2, _MOST_SMALL=5), mock.patch.object(blocks, "ROWS", 4):
        SearchIndex.build(encoder, documents).save(tmp_path / "index")
        for version in range(3):
            documents = draw.sample(documents, k=len(documents) - draw.randrange(16))
            for i in draw.sample(range(len(documents)), k=3):
                documents[i] = draw.choice((Document(documents[i].id, "changed"), Document(f"{version} {i}", "new")))
            documents += [Document(f"{version} {text}", text) for text in words(draw, draw.randrange(4))]
            opened = SearchIndex.load(tmp_path / "index", encoder)
            encoder.asked.clear()
            index, changes = opened.updated(documents)
            assert set(encoder.asked) == {d.content for d in documents} - {d.content for d in opened.documents}
            assert len(encoder.asked) == changes.encoded
            index.save(tmp_path / "index", overwrite=True)
            fresh, stored = SearchIndex.build(encoder, documents), SearchIndex.load(tmp_path / "index", encoder)
            assert stored.documents == documents == index.documents
            assert np.array_equal(stored.vectors(0, len(documents)), fresh.vectors(0, len(documents)))
            for top_k in (1, 4, 50):
                found = [one.search(["a b c", "changed", "h"], top_k=top_k) for one in (fresh, index, stored)]
                assert found[0] == found[1] == found[2]
            total = sum(len(np.load(file)) for file in (tmp_path / "index").glob("vectors-*.npy"))
            assert total <= 2 * len(documents)
            assert len([*(tmp_path / "index").glob("vectors-*.npy")]) <= len(documents) // 2 + 6


def inodes(folder):
    return {file.name: file.stat().st_ino for file in folder.iterdir()}


def test_an_update_keeps_files(tmp_path, monkeypatch):
    """What stays is linked, what is new is appended; a block of which more than half is dropped is rewritten."""
    monkeypatch.setattr(blocks, "ROWS", 4)
    documents = [Document(f"d{i}", f"w{i}") for i in range(12)]
    folder = tmp_path / "index"
    SearchIndex.build(Counts(), documents).save(folder)
    before, opened = inodes(folder), SearchIndex.load(folder, Counts())
    newer = [
        Document("new", "w99"),
        *documents[:6],
        *documents[8:9],
    ]  # half of the second, most of the third is dropped
    index, changes = opened.updated(newer)
    assert changes == Changes(kept=7, changed=0, new=1, dropped=5, encoded=1)
    index.save(folder, overwrite=True)
    after, kept = inodes(folder), {f"{name}-0000{i}" for name in ("vectors", "documents") for i in (0, 1)}
    assert {name.split(".")[0] for name in after} == {*kept, "vectors-00002", "documents-00002", "manifest", "rows"}
    assert {name for name in after if after[name] == before[name]} == {f for f in after if f.split(".")[0] in kept}
    assert np.load(folder / "vectors-00002.npy").shape == (2, 256)
    assert np.load(folder / "rows.npy").tolist() == [8, 0, 1, 2, 3, 4, 5, 9]
    again = SearchIndex.load(folder, Counts(), verify="full")
    assert again.documents == newer
    assert [hit.document.id for hit in again.search(["w6"], top_k=12)[0]] == [document.id for document in newer]
    assert opened.documents == documents and opened.search(["w6"], top_k=1)[0][0].document.id == "d6", "as it was"
    index.save(folder, overwrite=True)
    assert inodes(folder)["vectors-00000.npy"] == before["vectors-00000.npy"], "again"
    opened.save(folder, overwrite=True)  # whose files are gone, or have other content
    assert SearchIndex.load(folder, Counts(), verify="full").documents == documents


@pytest.mark.parametrize(
    ("name", "instead"), [("link", mock.Mock(side_effect=PermissionError("no links here"))), ("geteuid", lambda: -1)]
)
def test_without_hard_links_files_are_copied(name, instead, tmp_path, monkeypatch):
    """Also those of another user."""
    SearchIndex.build(Counts(), DOCUMENTS).save(tmp_path / "index")
    before = inodes(tmp_path / "index")
    monkeypatch.setattr(os, name, instead)
    index, _ = SearchIndex.load(tmp_path / "index", Counts()).updated([*DOCUMENTS, Document("d", "more")])
    index.save(tmp_path / "index", overwrite=True)
    assert inodes(tmp_path / "index")["vectors-00000.npy"] != before["vectors-00000.npy"]
    assert SearchIndex.load(tmp_path / "index", Counts(), verify="full").documents[-1].text == "more"


def test_an_update_that_fails_leaves_the_older_index(tmp_path, monkeypatch):
    folder = tmp_path / "index"
    SearchIndex.build(Counts(), DOCUMENTS).save(folder)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    index, _ = SearchIndex.load(folder, Counts()).updated([*DOCUMENTS[:2], Document("d", "more")])
    with mock.patch.object(search, "write_json", side_effect=OSError("stopped")), pytest.raises(OSError, match="stop"):
        index.save(folder, overwrite=True)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [*tmp_path.iterdir()] == [folder]
    assert SearchIndex.load(folder, Counts(), verify="full").documents == DOCUMENTS


def test_equal_scores_are_in_the_order_of_the_documents(monkeypatch):
    """Of all blocks, also where more of them are equal than are asked for, and rows were dropped."""
    monkeypatch.setattr(blocks, "ROWS", 64)
    documents = [Document(f"d{i}", "same words" if i % 3 else f"other {i}") for i in range(300)]
    index = SearchIndex.build(BagOfWords(), documents)
    newer = [document for document in reversed(documents) if int(document.id[1:]) % 5]
    for each, of in ((index, documents), (index.updated(newer)[0], newer)):
        expected = [document.id for document in of if document.text == "same words"]
        for top_k in (1, 7, 150):
            (hits,) = each.search(["same words"], top_k=top_k)
            assert [hit.document.id for hit in hits] == expected[:top_k]


def test_threads_read_a_block_for_the_first_time_at_once(tmp_path, monkeypatch):
    """Each finds what one finds; a file is hashed once."""
    monkeypatch.setattr(blocks, "ROWS", 16)
    built = SearchIndex.build(BagOfWords(), [Document(str(i), f"w{i}") for i in range(200)])
    built.save(tmp_path / "index")
    expected = [hit.document.id for hit in built.search(["w7 w99"], top_k=2)[0]]
    index = SearchIndex.load(tmp_path / "index", BagOfWords())
    hashed, begin, found = [], threading.Barrier(8), []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda data: (hashed.append(id(data)), sha256(data))[1])

    def ask():
        begin.wait()
        found.append([hit.document.id for hit in index.search(["w7 w99"], top_k=2)[0]])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8 and expected[0] == "7"
    assert len(hashed) == len(set(hashed)) == 13 + 2, "all vectors, and documents of two blocks"


def resealed(folder, change=lambda values: None):
    """Write a manifest that agrees with the files of a folder, as someone else may."""
    values = json.loads((folder / "manifest.json").read_text())
    values.pop("sha256")
    values["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in values["files"]}
    change(values)
    (folder / "manifest.json").write_text(json.dumps({**values, "sha256": digest_of(values)}))


ROWS = {
    "out of range": np.array([0, 1, 3]),
    "negative": np.array([0, 1, -1]),
    "twice": np.array([0, 1, 1]),
    "too few": np.array([0, 1]),
    "of another type": np.array([0, 1, 2], dtype=np.int32),
    "objects": np.array([0, 1, None]),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_order_that_does_not_fit_is_refused(name, tmp_path):
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "index")
    np.save(tmp_path / "index" / "rows.npy", ROWS[name], allow_pickle=True)
    resealed(tmp_path / "index")
    with pytest.raises(ValueError, match=r"rows.npy is .*; build the index again"):
        SearchIndex.load(tmp_path / "index", BagOfWords())


def huge(folder):
    """The header of an array that no memory holds."""
    header = {"descr": "<i8", "fortran_order": False, "shape": (10**15,)}
    with (folder / "rows.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)


@pytest.mark.parametrize(
    "change",
    [
        {"dimensions": 10**15},
        {"dimensions": 128},
        {"dimensions": "256"},
        {"documents": 10**15},
        {"documents": True},
        {"blocks": []},
        {"blocks": None},
        {"blocks": [{"number": 0, "rows": 10**15}], "documents": 10**15},
        {"blocks": [{"number": 0, "rows": 3}, {"number": 0, "rows": 3}]},
        {"blocks": [{"number": "../../0", "rows": 3}]},
        {"blocks": [{"number": -1, "rows": 3}]},
        {"blocks": [{"number": 10**400, "rows": 3}]},
        {"files": {"../rows.npy": "0"}},
        {"query_options": {"truncate_dim": "all"}},
        {"query_options": 3},
        {"encoder_hash": 3},
    ],
    ids=str,
)
def test_a_manifest_that_does_not_fit_is_refused(change, tmp_path):
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "index")
    resealed(tmp_path / "index", lambda values: values.update(change))
    with pytest.raises(ValueError, match="build the index again") as raised:
        SearchIndex.load(tmp_path / "index", BagOfWords())
    assert str(tmp_path / "index") in str(raised.value) and "\n" not in str(raised.value)
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "other")
    huge(tmp_path / "other")
    resealed(tmp_path / "other", lambda values: values.update(documents=3))
    with pytest.raises(ValueError, match="rows.npy is missing or has changed"):
        SearchIndex.load(tmp_path / "other", BagOfWords())


def arrow(path, table, batches=1):
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        for _ in range(batches):
            writer.write_table(table)


def broken_offsets(path):
    """Texts that would lie beyond the file."""
    offsets = pa.py_buffer(np.array([0, 10**12, 2, 3], dtype=np.int64))
    text = pa.LargeStringArray.from_buffers(3, offsets, pa.py_buffer(b"abc"))
    fields = [pa.field(name, pa.large_string(), nullable=False) for name in ("id", "title", "text")]
    batch = pa.record_batch([text, text, text], schema=pa.schema(fields))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


TEXTS = pa.table({name: pa.array(["a", "b", "c"], pa.large_string()) for name in ("id", "title", "text")})
STRICT = pa.schema([pa.field(name, pa.large_string(), nullable=False) for name in TEXTS.column_names])
DOCUMENT_FILES = {
    "other columns": lambda path: arrow(path, TEXTS.rename_columns(["id", "title", "body"])),
    "fewer rows": lambda path: arrow(path, TEXTS.cast(STRICT).slice(1)),
    "two batches": lambda path: arrow(path, TEXTS.cast(STRICT), batches=2),
    "null": lambda path: arrow(
        path, pa.Table.from_arrays([pa.array(["a", None, "c"], pa.large_string())] * 3, schema=STRICT)
    ),
    "offsets": broken_offsets,
    "text": lambda path: path.write_text("no Arrow file"),
}


@pytest.mark.parametrize("name", DOCUMENT_FILES)
def test_documents_that_do_not_fit_are_refused(name, tmp_path):
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "index")
    arrow(tmp_path / "index" / "documents-00000.arrow", TEXTS.cast(STRICT))
    resealed(tmp_path / "index")
    assert SearchIndex.load(tmp_path / "index", BagOfWords()).documents[2] == Document("c", "c", "c"), "the control"
    DOCUMENT_FILES[name](tmp_path / "index" / "documents-00000.arrow")
    resealed(tmp_path / "index")
    index = SearchIndex.load(tmp_path / "index", BagOfWords())
    with pytest.raises(ValueError, match=r"documents-00000.arrow is missing or has changed"):
        index.search(["cats"])


VECTORS = {
    "transposed": lambda vectors: np.asfortranarray(vectors),
    "wide": lambda vectors: np.concatenate([vectors, vectors], axis=1),
    "long": lambda vectors: np.concatenate([vectors, vectors]),
    "flat": lambda vectors: vectors.ravel(),
    "double": lambda vectors: vectors.astype(np.float64),
    "big-endian": lambda vectors: vectors.astype(">f4"),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_that_do_not_fit_are_refused(name, tmp_path):
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "index")
    file = tmp_path / "index" / "vectors-00000.npy"
    np.save(file, VECTORS[name](np.load(file)))
    resealed(tmp_path / "index")
    with pytest.raises(ValueError, match=r"vectors-00000.npy is missing or has changed"):
        SearchIndex.load(tmp_path / "index", BagOfWords())


def test_vectors_that_are_not_finite_are_not_found(tmp_path):
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "index")
    file = tmp_path / "index" / "vectors-00000.npy"
    vectors = np.load(file)
    vectors[1] = np.nan
    np.save(file, vectors)
    resealed(tmp_path / "index")
    (hits,) = SearchIndex.load(tmp_path / "index", BagOfWords()).search(["dogs"])
    assert [hit.document.id for hit in hits] == ["c", "a"]


def test_an_older_format_is_refused(tmp_path):
    SearchIndex.build(BagOfWords(), DOCUMENTS).save(tmp_path / "index")
    resealed(tmp_path / "index", lambda values: values.update(format=4))
    with pytest.raises(ValueError, match="a search index of format 4; this embrew reads format 5"):
        SearchIndex.load(tmp_path / "index", BagOfWords())


def test_documents_of_an_index_are_a_sequence(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "ROWS", 4)
    documents = [Document(f"d{i}", f"w{i}", "title" * (i % 2)) for i in range(10)]
    built = SearchIndex.build(BagOfWords(), tuple(documents))
    built.save(tmp_path / "index")
    for found in (built.documents, SearchIndex.load(tmp_path / "index", BagOfWords()).documents):
        assert len(found) == 10 and [*found] == documents == found and found == found[:]
        assert found[-1] == documents[-1] and found[2:9:3] == documents[2:9:3] and documents[5] in found
        assert found != documents[:9] and found != documents[::-1] and found != "d"
        with pytest.raises(IndexError):
            found[10]
