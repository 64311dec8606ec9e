"""Every way to a vector reads a text unchanged: live, exported, encoded to disk from any format, indexed, evaluated."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer
from typer.testing import CliRunner

from embrew.cli import app
from embrew.corpus import encode_corpus, read_vectors
from embrew.data.beir import Document
from embrew.encoder import Encoder
from embrew.evaluation import Task
from embrew.evaluation.runs import prepare
from embrew.export.exporting import export_encoder
from embrew.search import SearchIndex
from tests.corpus.stub import Stub
from tests.hard_texts import HARD_TEXTS

FILLED = [text for text in HARD_TEXTS if text.strip()]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def corpora(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """The hard texts in every format that holds them; an empty CSV cell is a missing text, a text file has lines."""
    texts, rows = list(HARD_TEXTS), [{"_id": str(i), "text": text} for i, text in enumerate(HARD_TEXTS)]
    pq.write_table(pa.table({"_id": [row["_id"] for row in rows], "text": texts}), folder / "c.parquet")
    with open(folder / "c.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["_id", "text"])
        writer.writeheader()
        writer.writerows(rows[1:])
    lines = [text for text in FILLED if "\n" not in text]
    (folder / "c.txt").write_bytes("".join(f"{line}\r\n" for line in lines).encode())
    return {
        "jsonl": (jsonl(folder / "c.jsonl", rows), texts),
        "parquet": (folder / "c.parquet", texts),
        "csv": (folder / "c.csv", texts[1:]),
        "txt": (folder / "c.txt", lines),
    }


@pytest.fixture
def encoder(make_encoder) -> Encoder:
    return make_encoder(prompts={"query": "find: "}, max_length={"query": 64, "document": 64})


def test_live_exported_and_encoded(encoder, tmp_path):
    texts = list(HARD_TEXTS)
    live = encoder.encode_document(texts)
    assert live.shape[0] == 40
    export_encoder(encoder, tmp_path / "stock", verify="off")
    stock = SentenceTransformer(str(tmp_path / "stock"), device="cpu")
    np.testing.assert_allclose(stock.encode_document(texts), live, atol=1e-5)
    np.testing.assert_allclose(stock.encode_query(texts), encoder.encode_query(texts), atol=1e-5)
    for name, (path, held) in corpora(tmp_path).items():
        encode_corpus(encoder, path, tmp_path / name)
        _, vectors = read_vectors(tmp_path / name).load()
        np.testing.assert_allclose(vectors, encoder.encode_document(held), atol=1e-5, err_msg=name)


def test_the_command_line_and_piped_questions(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("embrew.opening.open_model", lambda *args, **options: encoder)
    rows = [{"_id": str(i), "text": text} for i, text in enumerate(HARD_TEXTS)]
    path = jsonl(tmp_path / "corpus.jsonl", rows)
    run = CliRunner().invoke(app, ["encode", "model", str(path), str(tmp_path / "out"), "--prompt-name", "query"])
    assert run.exit_code == 0, run.output
    _, vectors = read_vectors(tmp_path / "out").load()
    np.testing.assert_allclose(vectors, encoder.encode_query(list(HARD_TEXTS)), atol=1e-5)

    asked: list[str] = []
    monkeypatch.setattr(SearchIndex, "search", lambda self, queries, **options: asked.extend(queries) or [[]])
    lines = [text for text in FILLED if not {"\n", "\r"} & set(text)]
    SearchIndex.build(encoder, [Document("a", "b")]).save(tmp_path / "index")
    piped = "".join(f"{line}\n" for line in lines)
    run = CliRunner().invoke(app, ["search", "model", "--index", str(tmp_path / "index")], input=piped)
    assert run.exit_code == 0 and asked == lines, "piped questions keep their white space"


class Recorder:
    """An encoder that notes what reaches it."""

    def __init__(self) -> None:
        self.prompts: dict[str, str] = {}
        self.seen: dict[str, set[str]] = {"query": set(), "document": set(), "text": set()}

    def _vectors(self, side: str, inputs: list[str], **options: Any) -> np.ndarray:
        self.seen[side].update(inputs)
        return Stub().encode(inputs)

    def __getattr__(self, name: str) -> Any:
        return partial(self._vectors, {"encode": "text"}.get(name, name.removeprefix("encode_")))


def test_what_an_evaluation_encodes(tmp_path):
    texts, pair = list(HARD_TEXTS), {"sentence1": FILLED, "sentence2": FILLED[::-1]}
    retrieval = tmp_path / "retrieval"
    (retrieval / "qrels").mkdir(parents=True)
    jsonl(retrieval / "corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)])
    jsonl(retrieval / "queries.jsonl", [{"_id": f"q{i}", "text": text} for i, text in enumerate(texts)])
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(40))
    (retrieval / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    columns: dict[str, dict[str, list[Any]]] = {
        "sts": {**pair, "score": [float(i) for i in range(len(FILLED))]},
        "pair_classification": {**pair, "label": [i % 2 for i in range(len(FILLED))]},
        "classification": {"text": FILLED, "label": [i % 2 for i in range(len(FILLED))]},
        "clustering": {"text": FILLED, "label": [i % 2 for i in range(len(FILLED))]},
        "reranking": {"query": FILLED, "positive": [[t] for t in FILLED], "negative": [[t] for t in FILLED[::-1]]},
    }
    for kind, values in columns.items():
        rows = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
        (tmp_path / kind).mkdir()
        for split in ("train", "test"):
            jsonl(tmp_path / kind / f"{split}.jsonl", rows)
    for kind in ("retrieval", *columns):
        recorder, folder = Recorder(), tmp_path / kind
        files = () if kind == "retrieval" else (folder / "test.jsonl",)
        prepare(Task(kind, kind, "test", folder, files))(recorder, {})
        expected = set(texts if kind == "retrieval" else FILLED)
        for side, seen in recorder.seen.items():
            assert seen in (set(), expected), (kind, side, seen ^ expected)
        assert any(recorder.seen.values()), kind


def test_a_title_is_joined_and_a_blank_text_is_a_text(encoder):
    assert Document("a", " text ", " title ").content == " title   text "
    assert (Document("a", " text ").content, Document("a", "", "title").content) == (" text ", "title")
    index = SearchIndex.build(encoder, [Document("full", "a b"), Document("blank", " "), Document("empty", "")])
    assert len(index.search([""], top_k=3)[0]) == 3
