import io
import logging
import sys

import pytest

from embrew.adapting.preparation.sources import read_document_folder, split_into_passages
from embrew.data.beir import Document
from tests.rows import write_rows

MARKDOWN = """Before any heading.

# Cats #

They purr. They sleep.

```python
# no heading
```

## Dogs
They bark.
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "no.txt").write_text("not this")
    (tmp_path / "a.txt").write_text("One line.\nAnother line.")
    (tmp_path / "deep" / "b.md").write_text("# Title\ntext", encoding="utf-8-sig")
    rows = [{"_id": "x", "title": "T", "text": "row x"}, {"text": "row two"}]
    write_rows(tmp_path / "deep" / "er" / "c.jsonl", rows)
    return tmp_path


def test_files_are_documents_and_lines_of_jsonl_too(folder):
    found = {document.id: (document.title, document.text) for document in read_document_folder(folder)}
    assert found == {
        "a.txt": ("", "One line.\nAnother line."),
        "deep/b.md": ("", "# Title\ntext"),
        "deep/er/c.jsonl#x": ("T", "row x"),
        "deep/er/c.jsonl#2": ("", "row two"),
    }
    (single,) = read_document_folder(folder / "a.txt")
    assert single.id == "a.txt"


def test_what_is_left_out_is_said(folder, caplog):
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "empty.txt").write_text(" \n")
    (folder / "twice.txt").write_text("one  line.\nANOTHER line.")
    with caplog.at_level(logging.WARNING):
        assert len(read_document_folder(folder)) == 4
    assert "1 files of other kinds are left out (1 .png)" in caplog.text
    assert "1 empty documents are left out" in caplog.text
    assert "1 documents have the text of another one" in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"\xe9t\xe9", "bad.txt: not valid UTF-8"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "bad.jsonl, line 2: not valid JSON"),
        ("bad.jsonl", b'{"body": "a"}\n', "bad.jsonl, line 1: a document needs a column text"),
        ("empty.md", b"\n", "all documents are empty"),
    ],
)
def test_what_cannot_be_read_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read_document_folder(tmp_path)
    assert message in str(error.value)


def test_no_documents(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no documents; expected files ending in .txt"):
        read_document_folder(tmp_path)
    (tmp_path / "a.docx").write_text("x")
    with pytest.raises(FileNotFoundError, match="it holds .docx files"):
        read_document_folder(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_document_folder(tmp_path / "none")


def pdf(words: str) -> bytes:
    """A PDF of one page that says `words`; none: a page without text, as a scanner makes it."""
    stream = f"BT /F1 12 Tf 40 700 Td ({words}) Tj ET".encode() if words else b""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    start = len(out)
    out += b"xref\n0 5\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % place for place in places)
    return out + b"trailer\n<< /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


def test_pdf(tmp_path):
    pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(pdf("Cats purr."))
    (document,) = read_document_folder(tmp_path)
    assert (document.id, document.text) == ("a.pdf", "Cats purr.")


@pytest.mark.parametrize(
    ("content", "message"),
    [(pdf(""), "a.pdf: 1 pages without text, so probably scanned"), (b"no pdf at all", "cannot be read as PDF")],
)
def test_pdf_without_text(content, message, tmp_path):
    pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(content)
    with pytest.raises(ValueError, match="a.pdf") as error:
        read_document_folder(tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["JBIG2Decode", "NoSuchDecode"])
def test_pdf_with_a_filter_that_is_not_read(name, tmp_path):
    pytest.importorskip("pypdf")
    (tmp_path / "a.pdf").write_bytes(
        pdf("Cats purr.").replace(b"<< /Length", b"<< /Filter /%s /Length" % name.encode())
    )
    with pytest.raises(ValueError, match=r"a.pdf: cannot be read as PDF \(.*\); repair it, or move it away"):
        read_document_folder(tmp_path)


@pytest.mark.parametrize("password", ["", "secret"])
def test_encrypted_pdf(password, tmp_path):
    writer = pytest.importorskip("pypdf").PdfWriter(io.BytesIO(pdf("Cats purr.")))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    writer.write(tmp_path / "a.pdf")
    if password:
        with pytest.raises(ValueError, match="a.pdf: needs a password; save it without one, or move it away"):
            read_document_folder(tmp_path)
    else:
        assert read_document_folder(tmp_path)[0].text == "Cats purr."


def test_pdf_without_pypdf(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)
    (tmp_path / "a.pdf").write_bytes(pdf("Cats purr."))
    with pytest.raises(ValueError, match='pip install "embrew\\[pdf\\]"'):
        read_document_folder(tmp_path)


def test_passages_have_the_heading_above_them():
    found = split_into_passages(Document("doc", MARKDOWN, "Pets"))
    assert [(p.id, p.title, p.text) for p in found] == [
        ("doc/0", "Pets", "Before any heading."),
        ("doc/1", "Cats", "They purr. They sleep.\n```python # no heading ```"),
        ("doc/2", "Dogs", "They bark."),
    ]


def test_passages_lose_nothing_and_are_never_too_long():
    """Whole sentences where they fit; a sentence that does not is cut between words."""
    sentences = [f"Sentence number {i} has {'very ' * (i % 7)}few words." for i in range(60)]
    long = "word " * 100 + "end."
    text = " ".join(sentences[:30]) + "\n\n" + long + "\n\n" + " ".join(sentences[30:])
    found = split_into_passages(Document("doc", text), max_chars=200)
    assert max(len(p.text) for p in found) <= 200
    assert " ".join(" ".join(p.text.split()) for p in found) == " ".join(text.split())
    whole = [p.text for p in found if "word word" not in p.text]
    assert all(text.startswith("Sentence") and text.endswith(".") for text in whole)
    assert sum(len(p.text) for p in found) / len(found) > 100, "passages are filled"
    with pytest.raises(ValueError, match="50 characters or more"):
        split_into_passages(Document("doc", text), max_chars=10)
