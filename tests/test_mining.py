"""Hard negatives: near, not too near, and never the answer."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from typer.testing import CliRunner

import embrew.opening
from embrew.cli import app
from embrew.data.datasets import load
from embrew.mining import mine


class Angles:
    """Texts are angles in degrees."""

    prompts: dict[str, str] = {}  # noqa: RUF012
    device = torch.device("cpu")

    def encode(self, inputs, **_):
        radians = np.deg2rad([float(text.split()[-1]) for text in inputs])
        return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)

    encode_query = encode_document = encode

    def get_embedding_dimension(self):
        return 2

    def similarity(self, a, b):
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a, b):
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(-1)


QUERIES, POSITIVES = ["q 0", "q 90"], ["p 20", "p 110"]
CORPUS = ["n 10", "n 19", "n 21", "n 30", "n 45", "n 80", "n 170"]


def pairs(**more):
    return Dataset.from_dict({"query": QUERIES, "positive": POSITIVES, **more})


def test_what_is_nearer_than_the_positive_less_a_margin_is_left_out():
    """cos 20° = 0.940; with a margin of 5 % the bound is 0.893 = cos 26.8°."""
    found = mine(Angles(), pairs(instruction=["find", None]), corpus=CORPUS, num_negatives=3)
    first, second = found.rows
    assert first["negatives"] == ["n 30", "n 45", "n 80"]
    assert first["scores"] == pytest.approx(np.cos(np.deg2rad([20, 30, 45, 80])).tolist(), abs=1e-6)
    assert first["instruction"] == "find" and "instruction" not in second
    assert second["query"] == "q 90" and "n 80" not in second["negatives"], "10° away, nearer than its positive"
    assert found.without == 0


def test_other_bounds():
    wider = mine(Angles(), pairs(), corpus=CORPUS, relative_margin=0.0, num_negatives=1)
    assert wider.rows[0]["negatives"] == ["n 21"]
    with pytest.raises(ValueError, match="no negative for any of 1 pairs"):
        mine(Angles(), pairs().select([0]), corpus=["n 1", "n 2"], num_negatives=1)
    with pytest.raises(ValueError, match="no pairs"):
        mine(Angles(), pairs().select([]))


def test_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, pooling: Angles())
    source, output = tmp_path / "pairs.jsonl", tmp_path / "mined.jsonl"
    source.write_text(
        "".join(json.dumps({"ask": q, "positive": p}) + "\n" for q, p in zip(QUERIES, POSITIVES, strict=True))
    )
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"_id": str(i), "text": t}) + "\n" for i, t in enumerate(CORPUS)))

    def run(*more):
        command = ["data", "mine", "any", str(source), str(output), "--corpus", str(corpus), "--num-negatives", "2"]
        return CliRunner().invoke(app, [*command, *more])

    shown = run("--column", "query=ask", "--dry-run")
    assert shown.exit_code == 0, shown.stderr
    assert "it/s" not in shown.stderr  # Sentence-Transformers' own bar
    assert run("--column", "query=ask", "--dry-run", "--quiet").stderr == ""
    assert "n 30" in shown.stdout and "nothing written" in shown.stdout and "similarity" in shown.stdout
    assert not output.exists()
    assert run("--column", "query=ask").exit_code == 0
    rows = load(output, kind="pairs")
    assert sorted(rows["negatives"][i][0] for i in range(2)) == ["n 30", "n 45"]
    again = run("--column", "query=ask")
    assert again.exit_code == 1 and "--overwrite" in again.stderr
    assert run("--column", "ask", "--overwrite").exit_code == 1
