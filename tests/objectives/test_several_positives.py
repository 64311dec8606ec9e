"""A text that the data label as a query's positive is nowhere its negative: by hand, over every pair of texts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embrew.data.datasets import load
from embrew.losses import cosent
from embrew.methods import Angle, Contrastive, Epic, InContext, Matryoshka
from embrew.methods.embedding import text_keys
from embrew.training.step import MiniBatchSize, TrainStep
from tests.conftest import by_default
from tests.distributed.launch import in_forks
from tests.objectives.cases import IN_CONTEXT

TAU = 0.5
ROWS = [
    {"query": "how deep", "positive": ["ten metres", "the lake is deep"], "negatives": ["a boat"]},
    {"query": "how wide", "positive": ["two miles", "ten metres"], "negatives": []},
    {"query": "who asks", "positive": ["a child"], "negatives": ["two miles", "the lake is deep"]},
    {"query": "who else", "positive": ["a child"], "negatives": ["a boat"]},
]
LABELLED = {(row["query"], text) for row in ROWS for text in row["positive"]}


def pairs(tmp_path: Path) -> list[dict[str, Any]]:
    """The rows as they are trained on, one per positive."""
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    rows = load(tmp_path / "pairs.jsonl", kind="pairs").to_list()
    assert len(rows) == 6
    return rows


def cosine(one: Any, other: Any) -> float:
    one, other = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def by_hand(rows: Sequence[tuple[str, Any]], columns: Sequence[tuple[str, Any]], own: Sequence[int]) -> float:
    """InfoNCE of texts with vectors; a column of the row's text, or of one of its positives, is left out."""
    total = 0.0
    for (text, vector), positive in zip(rows, own, strict=True):
        right = {q if d == text else d for q, d in LABELLED if text in (q, d)}
        scores = {
            j: cosine(vector, other) / TAU
            for j, (name, other) in enumerate(columns)
            if j == positive or (name != text and name not in right)
        }
        total += math.log(sum(map(math.exp, scores.values()))) - scores[positive]
    return total / len(rows)


def texts_of(encoder: Any, rows: Sequence[dict[str, Any]]) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Queries and documents with their vectors, in the order of a batch."""
    queries = [row["query"] for row in rows]
    documents = [row["positive"] for row in rows] + [text for row in rows for text in row["negatives"]]
    both = zip((queries, documents), (encoder.encode_query(queries), encoder.encode_document(documents)), strict=True)
    one, other = (list(zip(texts, vectors, strict=True)) for texts, vectors in both)
    return one, other


@pytest.mark.parametrize(
    "chunks",
    by_default([None, MiniBatchSize(rows=1)], [None, MiniBatchSize(rows=1), MiniBatchSize(tokens=40)]),
    ids=str,
)
@pytest.mark.parametrize("symmetric", by_default([True], [False, True]))
def test_info_nce(make_encoder, tmp_path, symmetric, chunks):
    encoder, rows = make_encoder(lora={"lora_dropout": 0.0}), pairs(tmp_path)
    objective = Contrastive(temperature=TAU, symmetric=symmetric)
    loss = TrainStep(encoder, objective, chunks)(**objective.collate(rows, encoder))["loss"]
    queries, documents = texts_of(encoder, rows)
    expected = by_hand(queries, documents, range(6))
    if symmetric:
        expected = (expected + by_hand(documents[:6], queries, range(6))) / 2
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_every_loss_that_compares_with_the_batch(make_encoder, tmp_path):
    """Nested, in context (no demonstrations are drawn), and with the queries as further candidates."""
    encoder, rows = make_encoder(lora={"lora_dropout": 0.0}), pairs(tmp_path)
    queries, documents = texts_of(encoder, rows)
    expected = by_hand(queries, documents, range(6))
    nested = Matryoshka(base=Contrastive(temperature=TAU), dims=[encoder.get_embedding_dimension()])
    assert float(nested(encoder, nested.collate(rows, encoder))["loss"]) == pytest.approx(expected, rel=1e-5)
    both = Contrastive(temperature=TAU, candidates="both")
    with_queries = by_hand(queries, [*documents, *queries], range(6))
    assert float(both(encoder, both.collate(rows, encoder))["loss"]) == pytest.approx(with_queries, rel=1e-5)


@pytest.mark.parametrize(("kind", "compress"), [(InContext, "none"), (Epic, "pair")])
def test_in_context(make_encoder, tmp_path, kind, compress):
    from embrew.settings.encoder import Demonstrations

    settings = {**IN_CONTEXT, "pooling": "last", "demonstrations": Demonstrations(compress=compress)}
    encoder, objective = make_encoder(lora={"lora_dropout": 0.0}, **settings), kind(temperature=TAU, demonstrations=0)
    objective.setup(encoder)
    rows = pairs(tmp_path)
    queries, documents = texts_of(encoder, rows)
    loss = objective(encoder, objective.collate(rows, encoder))["loss"]
    assert float(loss.detach()) == pytest.approx(by_hand(queries, documents, range(6)), rel=1e-5)


def test_own_negatives_are_those_of_the_row(make_encoder, tmp_path):
    """Without in-batch negatives, a row's loss does not depend on the rows beside it."""
    encoder = make_encoder(lora={"lora_dropout": 0.0})
    rows = [row for row in pairs(tmp_path) if row["negatives"]]
    rows[0]["negatives"] = [rows[1]["positive"]]
    assert rows[0]["query"] == rows[1]["query"]
    objective = Contrastive(temperature=TAU, in_batch_negatives=False)
    batches = [objective.collate(some, encoder) for some in (rows, *([row] for row in rows))]
    together, *alone = (float(objective(encoder, batch)["loss"].detach()) for batch in batches)
    assert together == pytest.approx(sum(alone) / len(rows), rel=1e-5)


def vectors(count: int, seed: int) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch of pairs without an encoder."""
    counts = [len(row["negatives"]) for row in rows]
    owners = [*range(len(rows)), *(i for i, count in enumerate(counts) for _ in range(count))]
    documents = [row["positive"] for row in rows] + [text for row in rows for text in row["negatives"]]
    return {
        "query_keys": text_keys([row["query"] for row in rows]),
        "document_keys": text_keys(documents),
        "query_indices": torch.tensor(owners),
    }


def test_angle_and_cosent_of_pairs(tmp_path):
    """A hard negative that another row has as the positive is not ranked either."""
    rows = pairs(tmp_path)
    rows[0]["negatives"] = ["a boat", "the lake is deep"]  # the positive of row 1, of the same query
    batch, documents = batch_of(rows), [row["positive"] for row in rows]
    documents += [text for row in rows for text in row["negatives"]]
    q, d = vectors(6, 0), vectors(len(documents), 1)
    parts = Angle(rows="pairs", temperature=TAU).loss({"query": q, "document": d}, batch)
    texts = list(zip([row["query"] for row in rows], q.numpy(), strict=True))
    columns = list(zip(documents, d.numpy(), strict=True))
    assert float(parts["in_batch"]) == pytest.approx(by_hand(texts, columns[:6], range(6)) / 2, rel=1e-9)
    assert float(parts["hard_negatives"]) == pytest.approx(by_hand(texts, columns, range(6)) / 2, rel=1e-9)
    owners = batch["query_indices"].tolist()
    right = range(6)
    wrong = [j for j in range(6, len(documents)) if (rows[owners[j]]["query"], documents[j]) not in LABELLED]
    assert len(wrong) == len(documents) - 6 - 1
    terms = (math.exp((cosine(q[owners[i]], d[i]) - cosine(q[j], d[j])) / TAU) for i in wrong for j in right)
    assert float(parts["cosine"]) == pytest.approx(math.log(1 + sum(terms)), rel=1e-9)
    left = q[[owners[i] for i in (*right, *wrong)]]
    grades = torch.tensor([1.0] * 6 + [0.0] * len(wrong))
    assert float(parts["cosine"]) == pytest.approx(float(cosent(left, d[[*right, *wrong]], grades, temperature=TAU)))


SCORED = [("a", "b", 1.0), ("a", "c", 0.4), ("d", "c", 0.7), ("a", "e", 0.0), ("f", "g", 0.5)]


def scored_by_hand(x: Tensor, graded: Sequence[tuple[str, str, float]]) -> float:
    """Each text of a graded pair against all others, its partners of the other pairs left out."""
    names = [pair[side] for side in (0, 1) for pair in graded]
    partners = {(a, b) for one, other, grade in graded if grade for a, b in ((one, other), (other, one))}
    total, size = 0.0, len(graded)
    for i in (i for i in range(2 * size) if graded[i % size][2]):
        partner = (i + size) % (2 * size)
        scores = {
            j: cosine(x[i], x[j]) / TAU
            for j in range(2 * size)
            if j == partner or (names[j] != names[i] and (names[i], names[j]) not in partners)
        }
        total += math.log(sum(map(math.exp, scores.values()))) - scores[partner]
    return total / (2 * size)


def scored_batch(pairs: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
    grades = torch.tensor([grade for *_, grade in pairs])
    names = [pair[side] for side in (0, 1) for pair in pairs]
    return {"text_keys": text_keys(names), "grades": grades, "graded": np.flatnonzero(grades.repeat(2))}


def test_angle_of_scored_pairs():
    x = vectors(10, 2)
    found = Angle(cosine_weight=0, angle_weight=0, temperature=TAU).loss({"text": x}, scored_batch(SCORED))
    assert float(found["loss"]) == pytest.approx(scored_by_hand(x, SCORED), rel=1e-9)


def test_across_processes(tmp_path):
    """The rows of one query are in two processes: the mean of their losses is that of one batch of all, by hand."""
    out = tmp_path / "losses.json"
    in_forks(2, "tests.objectives.several_positives_worker", str(out), timeout=120)
    found = json.loads(out.read_text())
    rows = pairs(tmp_path)
    queries = list(zip([row["query"] for row in rows], vectors(6, 0).numpy(), strict=True))
    names = [row["positive"] for row in rows] + [text for row in rows for text in row["negatives"]]
    documents = list(zip(names, vectors(len(names), 1).numpy(), strict=True))
    there, back = by_hand(queries, documents, range(6)), by_hand(documents[:6], queries, range(6))
    positives = by_hand(queries, documents[:6], range(6))
    expected = {
        "contrastive": there,
        "symmetric": (there + back) / 2,
        "angle": (positives + there) / 2,
        "scored": scored_by_hand(vectors(10, 2), SCORED),
    }
    assert found == {name: pytest.approx(loss, rel=1e-9) for name, loss in expected.items()}
