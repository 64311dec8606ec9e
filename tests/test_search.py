import copy
import json
import zlib
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from embrew import search
from embrew.data import Document
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
)
def test_search_is_exact(texts, top_k, block):
    """The scores are those of all cosines, sorted."""
    encoder = BagOfWords(16)
    documents = [Document(id=str(i), text=text) for i, text in enumerate(texts)]
    with mock.patch.object(search, "BLOCK", block):
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
        "documents.jsonl",
        "index.faiss",
        "manifest.json",
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
    file = tmp_path / "index" / "documents.jsonl"
    file.write_text(file.read_text().replace("dogs", "cats"))
    with pytest.raises(ValueError, match="documents.jsonl is missing or has changed"):
        SearchIndex.load(tmp_path / "index", BagOfWords())
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
    """To the byte the index of a new build, and only new texts are embedded."""
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
    for name in ("index.faiss", "documents.jsonl", "manifest.json"):
        assert (tmp_path / "index" / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    loaded = SearchIndex.load(tmp_path / "index", Counts())
    assert loaded.search(["birds", "cats"]) == index.search(["birds", "cats"])
