"""One data set in every form that own-data.md knows: the same pairs."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from typing import Any

import pytest
from datasets import Dataset

from embrew.adapting.preparation.sources import data_source, documents_of_source, read_pairs
from tests.rows import write_rows

PAIRS = [(f"what is a number {i}?", f"It is the number {i}, as they say.", f"It is not {i}.") for i in range(3)]
Rows = list[dict[str, Any]]


def passage(text: str) -> dict[str, str]:
    return {"docid": "a", "title": "", "text": text}


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


FORMS: dict[str, Callable[[str, str, str], dict[str, Any]]] = {
    "embrew": lambda q, a, n: {"query": q, "positive": a, "negatives": [n]},
    "questions": lambda q, a, n: {"question": q, "answer": a, "negatives": [n]},
    "triplets": lambda q, a, n: {"anchor": q, "positive": a, "negative": n},
    "choices": lambda q, a, n: {"question": q, "choices": [n, a], "answer": "B"},
    "flagembedding": lambda q, a, n: {"query": q, "pos": [a], "neg": [n], "prompt": "Find: "},
    "tevatron": lambda q, a, n: {
        "query_id": "1",
        "query": q,
        "positive_passages": [passage(a)],
        "negative_passages": [passage(n)],
    },
    "ms-swift": lambda q, a, n: {"messages": user(q), "positive_messages": [user(a)], "negative_messages": [user(n)]},
}


@pytest.mark.parametrize("form", FORMS)
def test_jsonl_forms(form, tmp_path):
    file = write_rows(tmp_path / "pairs.jsonl", [FORMS[form](*pair) for pair in PAIRS])
    read = read_pairs(data_source(file, "pairs"))
    assert [(pair.question, pair.answer, *pair.negatives) for pair in read] == PAIRS


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "saved"])
def test_files_of_other_kinds(kind, tmp_path):
    rows, place = [{"query": q, "positive": a, "negative_1": n} for q, a, n in PAIRS], tmp_path / f"pairs.{kind}"
    if kind == "csv":
        with place.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "json":
        place.write_text(json.dumps(rows))
    elif kind == "parquet":
        Dataset.from_list(rows).to_parquet(place)
    else:
        Dataset.from_list(rows).save_to_disk(place)
    read = read_pairs(data_source(place, "pairs"))
    assert [(pair.question, pair.answer, *pair.negatives) for pair in read] == PAIRS


def test_labelled_sentences_are_filtered_or_refused(tmp_path):
    rows: Rows = [{"sentence1": q, "sentence2": a, "label": 1} for q, a, _ in PAIRS]
    rows += [{"sentence1": q, "sentence2": n, "label": 0} for q, _, n in PAIRS]
    file = write_rows(tmp_path / "sentences.jsonl", rows)
    with pytest.raises(ValueError, match="marks which rows are pairs"):
        read_pairs(data_source(file, "pairs"))
    read = read_pairs(data_source(f"{{path: {file}, where: {{label: 1}}}}", "pairs"))
    assert [(pair.question, pair.answer) for pair in read] == [(q, a) for q, a, _ in PAIRS]


def test_own_names_of_columns(tmp_path):
    file = write_rows(tmp_path / "pairs.jsonl", [{"title": q, "body": a} for q, a, _ in PAIRS])
    by_option = read_pairs(data_source(file, "pairs", columns={"question": "title", "answer": "body"}))
    by_keys = read_pairs(data_source({"path": str(file), "columns": {"query": "title", "positive": "body"}}, "pairs"))
    assert [(p.question, p.answer) for p in by_option] == [(p.question, p.answer) for p in by_keys]
    with pytest.raises(ValueError, match="no column for the question; found title, body"):
        read_pairs(data_source(file, "pairs"))


def test_a_beir_folder_gives_pairs_and_documents(tmp_path):
    write_rows(
        tmp_path / "corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": a} for i, (_, a, _) in enumerate(PAIRS)]
    )
    write_rows(tmp_path / "queries.jsonl", [{"_id": f"q{i}", "text": q} for i, (q, _, _) in enumerate(PAIRS)])
    (tmp_path / "qrels").mkdir()
    lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t1" for i in range(len(PAIRS)))]
    (tmp_path / "qrels" / "train.tsv").write_text("\n".join(lines) + "\n")
    assert [(p.question, p.answer) for p in read_pairs(data_source(tmp_path, "pairs"))] == [(q, a) for q, a, _ in PAIRS]
    documents = documents_of_source(data_source(tmp_path, "documents"))
    assert [document.text for document in documents] == [a for _, a, _ in PAIRS], "queries are no documents"


def test_documents_of_a_table(tmp_path):
    Dataset.from_list([{"text": a, "body": q} for q, a, _ in PAIRS]).to_parquet(tmp_path / "texts.parquet")
    plain = documents_of_source(data_source(tmp_path / "texts.parquet", "documents"))
    assert [document.text for document in plain] == [a for _, a, _ in PAIRS]
    mapped = documents_of_source(
        data_source({"path": str(tmp_path / "texts.parquet"), "columns": {"text": "body"}}, "documents")
    )
    assert [document.text for document in mapped] == [q for q, _, _ in PAIRS]
