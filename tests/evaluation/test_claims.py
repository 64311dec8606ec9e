"""Claimed scores: they hold, or a variant of the model explains them. Claims are computed from vectors by hand."""

from __future__ import annotations

import json
from unittest.mock import ANY

import numpy as np
import pytest
from scipy.stats import spearmanr

from embrew.encoder import Encoder
from embrew.evaluation import evaluate, find_task
from embrew.evaluation.claims import Claim, Trial, check_claims, read_claims
from tests.cli.scene import ask
from tests.rows import write_rows

WORDS = ["heron", "water", "list", "train", "river", "cloud", "stone", "window", "paper", "green"]


@pytest.fixture
def folder(tmp_path):
    """Pairs of texts of more than 8 tokens, with scores that no encoder knows."""
    draws = np.random.default_rng(0)
    rows = [
        {
            "sentence1": " ".join(draws.choice(WORDS, 12)),
            "sentence2": " ".join(draws.choice(WORDS, 12)),
            "score": float(number),
        }
        for number in range(60)
    ]
    return write_rows(tmp_path / "STS" / "test.jsonl", rows).parent


def score_by_hand(encoder, folder, **options) -> float:
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    left, right = (encoder.encode([row[name] for row in rows], **options) for name in ("sentence1", "sentence2"))
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    return float(spearmanr(cosines, [row["score"] for row in rows]).statistic)


def checked(encoder, folder, score, **options) -> Claim:
    tasks = [find_task(folder)]
    (claim,) = check_claims(encoder, tasks, evaluate(encoder, tasks), {"STS": score}, **options)
    return claim


def test_variants_explain_claims(make_encoder, folder):
    """The scores are the encoder's own cosines, so that it is right as it is, and any other reading is worse."""
    prompts = {"query": "find: heron ", "document": ""}
    encoder = make_encoder(memory_tokens=0, pooling="mean", max_length=64, prompts=prompts)
    rows = [json.loads(line) for line in (folder / "test.jsonl").read_text().splitlines()]
    for row in rows:
        left, right = encoder.encode([row["sentence1"], row["sentence2"]])
        row["score"] = float(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    write_rows(folder / "test.jsonl", rows)
    assert checked(encoder, folder, 0.9999).trials == (Trial("", pytest.approx(1, abs=1e-4), ANY, ANY),), "it holds"
    for name, options in {"at most 8 tokens": {"max_length": 8}, "prompt query": {"prompt": "find: heron "}}.items():
        score = score_by_hand(encoder, folder, **options)
        assert score < 0.98
        claim = checked(encoder, folder, score, limits=(8, 128))
        assert not claim.holds and claim.explanations == [name] and f"; {name} explains it" in claim.verdict
        tried = {trial.variant: trial.score for trial in claim.trials}
        assert list(tried) == ["", "prompt query", "at most 8 tokens", "at most 128 tokens"]
        assert tried[name] == pytest.approx(score, abs=1e-6) and tried["at most 128 tokens"] == tried[""]
    assert encoder.max_length == {"query": 64, "document": 64}, "as before"
    claim = checked(encoder, folder, -0.5, limits=(8,))
    assert claim.explanations == [] and claim.verdict.endswith("no variant explains it")


def test_sides_of_retrieval(retrieval_folder):
    calls: list[tuple[str, str]] = []

    class Prompted:
        prompts = {"query": "q", "document": "d"}  # noqa: RUF012

        def encode(self, inputs, prompt="", **options):
            return np.array([[1.0, text.startswith("cat") + (prompt == "q")] for text in inputs])

        def encode_query(self, inputs, prompt="q", **options):
            calls.append((prompt, ""))
            return self.encode(inputs, prompt=prompt)

        def encode_document(self, inputs, prompt="d", **options):
            calls[-1] = (calls[-1][0], prompt)
            return self.encode(inputs, prompt=prompt)

    tasks = [find_task(retrieval_folder)]
    (claim,) = check_claims(Prompted(), tasks, evaluate(Prompted(), tasks), {tasks[0].name: -0.5})
    names = [trial.variant for trial in claim.trials]
    assert names == ["", "no prompt", "prompt query", "prompt document", "prompts swapped"]
    assert calls == [("q", "d"), ("", ""), ("q", "q"), ("d", "d"), ("d", "q")]


def test_the_nearest_of_several_is_named_first():
    trials = (
        Trial("", 0.8, 0.79, 0.81),
        Trial("a", 0.6, 0.5, 0.7),
        Trial("b", 0.66, 0.6, 0.7),
        Trial("c", 0.4, 0.3, 0.5),
    )
    claim = Claim("STS", 0.65, trials)
    assert claim.explanations == ["b", "a"] and claim.verdict.endswith("b explains it (so would a)")


@pytest.mark.parametrize("claim", ["STS", "STS=good", "STS=0.82", "STS=820", "=82", "STS=nan", "Other=82"])
def test_bad_claims(claim, folder):
    with pytest.raises(ValueError, match=rf"claim '{claim}'.*(STSB=82.0|choose from STS)"):
        read_claims([claim], [find_task(folder)])
    with pytest.raises(ValueError, match="once per task"):
        read_claims(["STS=82", "STS=83"], [find_task(folder)])


def test_on_the_command_line(model_folder, folder, tmp_path):
    encoder = Encoder.from_pretrained(model_folder("llama"), template="{text}", pooling="mean", max_length=8)
    encoder.save_pretrained(tmp_path / "encoder", verify="off")
    score = 100 * score_by_hand(encoder, folder)
    done = ask(tmp_path, "evaluate", "encoder", "--data", "STS", "--claim", f"STS={score:.1f}", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["claims"][0]["holds"] is True
    done = ask(tmp_path, "evaluate", "encoder", "--data", "STS", "--claim", "STS=99.5", "--json")
    (claim,) = json.loads(done.stdout)["claims"]
    assert done.exit_code == 1 and claim["explanations"] == [] and claim["verdict"].endswith("no variant explains it")
    variants = {trial["variant"] for trial in claim["trials"]}
    assert {"dtype bfloat16", "at most 128 tokens", "at most 512 tokens"} <= variants


def test_normalisation_where_lengths_are_read(make_encoder, tmp_path):
    rows = [{"text": " ".join(WORDS[i % 5 : i % 5 + 1 + i]), "label": str(i % 2)} for i in range(24)]
    for split in ("train", "test"):
        write_rows(tmp_path / "own" / f"{split}.jsonl", rows)
    encoder = make_encoder(memory_tokens=0, pooling="mean", max_length=64)
    tasks = [find_task(tmp_path / "own", kind="classification")]
    (claim,) = check_claims(encoder, tasks, evaluate(encoder, tasks), {"own": 0.0123}, limits=())
    (other,) = evaluate(encoder.with_settings(normalize=not encoder.normalize), tasks)
    assert {trial.variant: trial.score for trial in claim.trials[1:]} == {"other normalisation": other.main_score}
