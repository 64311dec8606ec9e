"""Files of one document each for encode, search and adapt; search gives rows the ids that encode gives."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from embrew.adapting.preparation.sources import read_document_folder
from embrew.corpus import encode_corpus, read_vectors
from embrew.corpus.rows import sample_texts
from embrew.search import SearchIndex
from tests.corpus.stub import Stub

PAGE = """<!doctype html><html><head><title>Tax
 law</title><style>p {color: red}</style><script>var x = "<p>no</p>";</script></head>
<body><h1>Income &amp; tax</h1><p>Pay by
 May<br>or June.</p><ul><li>one</li><li>two</li></ul></body></html>"""
FILES = {
    "a.md": "# Tax\n\nIs *due*.\n",
    "b.markdown": "\ufeffMore.\r\n",
    "c.rst": "Last\n====\n",
    "d.html": PAGE,
    "e.HTM": "<p>a</p>",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
    return folder


def ids_of(folder: Path, out: Path) -> list[str]:
    encode_corpus(Stub(), folder, out)
    return list(read_vectors(out).load()[0])


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_one_document_as_for_adapt(name, tmp_path):
    folder = write(tmp_path / "docs", {name: FILES[name]})
    for path in (folder, folder / name):
        (document,) = read_document_folder(path)
        assert sample_texts(path, 9) == (document.content,)
        assert ids_of(path, tmp_path / f"out-{path.name}") == ["1"]
        (indexed,) = SearchIndex.build(Stub(), path).documents
        assert (indexed.text, indexed.title) == (document.text, document.title)


def test_a_page_is_its_text_without_markup(tmp_path):
    (document,) = read_document_folder(write(tmp_path / "docs", {"d.html": PAGE}))
    assert document.title == "Tax law"
    assert document.text.split() == ["Income", "&", "tax", "Pay", "by", "May", "or", "June.", "one", "two"]
    assert [line for line in document.text.split("\n") if line] == [
        "Income & tax",
        "Pay by May",
        "or June.",
        "one",
        "two",
    ]
    broken = write(tmp_path / "broken", {"x.html": "<title>t</title><p>a &lt; b <b>c</div> d &eacute; <unknown>e"})
    assert read_document_folder(broken)[0].text == "a < b c\nd " + html.unescape("&eacute;") + " e"


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"001.txt": "first\n", "002.txt": "second\nthird\n"}, ["001.txt:1", "002.txt:1", "002.txt:2"]),
        ({"a.txt": "first\n", "b.md": "second"}, ["a.txt:1", "b.md:1"]),
        ({"train.jsonl": '{"text": "a"}\n', "test.jsonl": '{"text": "b"}\n'}, ["test.jsonl:1", "train.jsonl:1"]),
        ({"a.jsonl": '{"text": "a", "id": "x"}\n{"text": "b", "id": 7}\n', "README.md": "no data"}, ["x", "7"]),
        ({"a.csv": "text\na\n", "b.tsv": "text\nb\n"}, ["a.csv:1", "b.tsv:1"]),
        ({"corpus.jsonl": '{"text": "a"}\n', "other.jsonl": '{"text": "b"}\n'}, ["1"]),
    ],
)
def test_search_gives_the_ids_of_encode(files, ids, tmp_path):
    folder = write(tmp_path / "docs", files)
    ids = [name.replace(":1", ":2") if name.endswith((".csv:1", ".tsv:1")) else name for name in ids]  # after a header
    assert ids_of(folder, tmp_path / "out") == ids
    index = SearchIndex.build(Stub(), folder)
    assert [document.id for document in index.documents] == ids
    updated, changes = index.updated(folder)
    assert (changes.kept, changes.new) == (len(ids), 0) and len(updated.documents) == len(ids)
