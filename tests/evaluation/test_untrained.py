"""Language models that were not trained as encoders: refused, or read in the way that is best on dev splits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from embrew.cli import app
from embrew.cli.arguments import Pooling
from embrew.evaluation import evaluate, find_task
from embrew.opening import POOLINGS, is_bare, open_model
from embrew.report.comparison import CHOICE
from embrew.report.untrained import QUERIES, ROWS, dev_tasks
from tests.rows import read_rows, write_rows

WORDS = ["cat", "dog", "sat", "ran", "mat", "road", "lake", "river", "deep", "cold", "old", "new", "house", "tree"]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


def pairs(count: int, seed: int) -> list[dict[str, Any]]:
    """Pairs of sentences of different lengths with random scores; no two are the same."""
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(WORDS, draw.integers(3, 12))) for _ in range(2 * count)]
    return [
        {"sentence1": f"{seed} {a}", "sentence2": b, "score": float(draw.uniform(0, 5))}
        for a, b in zip(texts[::2], texts[1::2], strict=True)
    ]


@pytest.fixture
def data(tmp_path) -> Path:
    """Scored pairs with a dev and a test split."""
    write_rows(tmp_path / "pairs" / "dev.jsonl", pairs(40, 1))
    write_rows(tmp_path / "pairs" / "test.jsonl", pairs(20, 2))
    return tmp_path / "pairs"


@pytest.fixture
def untested(tmp_path) -> Path:
    """Scored pairs with a test split only."""
    write_rows(tmp_path / "untested" / "test.jsonl", pairs(20, 3))
    return tmp_path / "untested"


@pytest.fixture
def bare(model_folder) -> Path:
    """The folder of a tiny language model."""
    return model_folder("llama")


def by_hand(folder: Path, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Spearman's correlations on pairs, one text at a time, without embrew."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)

    def states(text: str) -> torch.Tensor:
        ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]
        with torch.no_grad():
            return model.model(torch.tensor([ids])).last_hidden_state[0]

    def weighted(found: torch.Tensor) -> torch.Tensor:  # of the text alone, without BOS
        weights = torch.arange(1, len(found)).float()[:, None]
        return (found[1:] * weights).sum(0) / weights.sum()

    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "last": lambda found: found[-1],
        "mean": lambda found: found.mean(0),
        "weighted_mean": weighted,
    }
    scores = {}
    for name, way in ways.items():
        cosines = [
            torch.cosine_similarity(way(states(row["sentence1"])), way(states(row["sentence2"])), dim=0).item()
            for row in rows
        ]
        scores[name] = float(spearmanr(cosines, [row["score"] for row in rows]).statistic)
    return scores


@pytest.mark.parametrize(
    "command",
    [
        ["encode", "MODEL", "texts.jsonl", "out"],
        ["serve", "MODEL", "--port", "0"],
        ["data", "mine", "MODEL", "pairs.jsonl", "out.jsonl"],
    ],
    ids=lambda command: command[0],
)
def test_verbs_that_need_a_pooling_refuse(command, bare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "texts.jsonl", [{"_id": str(i), "text": f"a cat {i}"} for i in range(3)])
    write_rows(tmp_path / "pairs.jsonl", [{"query": f"which cat {i}", "positive": f"a cat {i}"} for i in range(3)])
    done = run(*[str(bare) if word == "MODEL" else word for word in command])
    assert done.exit_code == 1, done.output
    assert "has no pooling" in done.output and "--pooling" in done.output
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.jsonl").exists()


def test_a_pooling_is_that_of_the_recipe(bare):
    assert set(POOLINGS) == set(get_args(Pooling))
    for pooling, recipe in POOLINGS.items():
        found, expected = open_model(str(bare), pooling=pooling), open_model(recipe, [f"encoder.model={bare}"])
        assert found.weights_hash() == expected.weights_hash()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="choose from last, mean"):
        open_model(str(bare), pooling="median")
    with pytest.raises(ValueError, match=r"pooling='mean', but baselines/mean has a pooling of its own"):
        open_model("baselines/mean", pooling="mean")


def test_what_is_bare(bare, encoder_folder, tmp_path):
    assert is_bare(str(bare)) and is_bare("nano")
    open_model(str(bare), pooling="mean").save_pretrained(tmp_path / "saved", verify="off")  # type: ignore[union-attr]
    assert not any(map(is_bare, (str(tmp_path / "saved"), str(encoder_folder("bert")), "baselines/mean")))
    with pytest.raises(FileNotFoundError):
        is_bare(str(tmp_path / "nothing"))


def test_what_is_no_model_is_one_line(bare, untested, tmp_path):
    def config(name: str, **added: Any) -> Path:
        shutil.copytree(bare, tmp_path / name)
        file = tmp_path / name / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **added}))
        return tmp_path / name

    evaluate(open_model(str(bare), pooling="mean"), [untested], output_dir=tmp_path / "results")  # type: ignore[arg-type]
    for path, words in (
        (tmp_path / "results", "is not a model: the folder has no config.json; embrew runs"),
        (untested / "test.jsonl", "is a file; give the folder of a model"),
        (config("blocks", quantization_config={"load_in_4bit": True}), "is stored quantised"),
        (config("nf4", quantization_config={"quant_method": "bitsandbytes"}), "is stored quantised (bitsandbytes)"),
    ):
        commands = [["evaluate", path, "-d", untested], ["encode", path, untested, tmp_path / "out"]]
        commands += [["recipe", "check", "baselines/mean", f"encoder.model={path}"]] if "quantised" not in words else []
        for command in commands:
            done = run(*command, *(["--pooling", "mean"] if command[0] != "recipe" else []))
            assert done.exit_code == 1 and words in done.output.replace("\n", " "), (command, done.output)
            assert not isinstance(done.exception, AssertionError | TypeError)


@pytest.mark.slow
def test_evaluate_takes_the_best_on_dev(bare, data, tmp_path):
    out = tmp_path / "out"
    done = run("evaluate", bare, "-d", data, "--output", out, "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    chosen, scores = document["pooling"]["pooling"], document["pooling"]["scores"]
    dev = read_rows(data / "dev.jsonl")
    oracle = by_hand(bare, dev)
    assert {name: scores[name] for name in oracle} == pytest.approx(oracle, abs=2e-3)  # near ties may swap ranks
    assert list(scores) == list(POOLINGS) and chosen == max(scores, key=lambda name: scores[name])
    (alone,) = evaluate(open_model(str(bare), pooling=chosen), [data])  # type: ignore[arg-type]
    assert document["results"][0]["main_score"] == pytest.approx(alone.main_score, abs=1e-9)
    assert json.loads((out / "pairs.test.run.json").read_text())["model"]["pooling"]
    again = run("evaluate", bare, "-d", data, "--output", out)
    assert f"{chosen} is the best of" in again.output and "pairs dev (40 pairs)" in again.output
    assert again.output.count("evaluated before") == 6, "the dev scores of five poolings, and the result"


def test_a_pooling_may_be_given(bare, untested, tmp_path):
    done = run("evaluate", bare, "-d", untested, "--pooling", "mean", "--json", "--output", tmp_path / "out")
    (alone,) = evaluate(open_model(str(bare), pooling="mean"), [untested])  # type: ignore[arg-type]
    document = json.loads(done.stdout)
    assert "pooling" not in document and not (tmp_path / "out" / "untrained").exists()
    assert document["results"][0]["main_score"] == pytest.approx(alone.main_score, abs=1e-9)


def test_without_a_dev_split_nothing_is_chosen(bare, untested, tmp_path):
    page = tmp_path / "page.html"
    for command in (["evaluate", bare], ["compare", f"untrained={bare}", "baselines/mean", "--output", page]):
        done = run(*command, "-d", untested)
        assert done.exit_code == 1 and "untested has no dev split to choose one on" in done.output, done.output
    assert not page.exists()


def test_tables_name_the_pooling(bare, data, tmp_path):
    run("evaluate", bare, "-d", data, "--output", tmp_path / "results")
    chosen = json.loads((tmp_path / "results" / CHOICE).read_text())["pooling"]
    assert f"base ({chosen})" in run("table", f"base={tmp_path / 'results'}").stdout


def test_dev_splits_are_read_in_part(tmp_path, bag_of_words):
    write_rows(tmp_path / "many" / "dev.jsonl", pairs(ROWS + 50, 4))
    write_rows(tmp_path / "many" / "test.jsonl", pairs(5, 5))
    count = QUERIES + 30
    write_rows(
        tmp_path / "found" / "corpus.jsonl", [{"_id": f"d{i}", "text": f"the lake {i}"} for i in range(3 * count)]
    )
    write_rows(
        tmp_path / "found" / "queries.jsonl", [{"_id": f"q{i}", "text": f"which lake {i}"} for i in range(2 * count)]
    )
    for split, first in (("dev", 0), ("test", count)):
        rows = "".join(f"q{i}\td{i}\t1\n" for i in range(first, first + count))
        (tmp_path / "found" / f"qrels.{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    found = dev_tasks([find_task(tmp_path / "many"), find_task(tmp_path / "found")])
    results = evaluate(bag_of_words, found)
    assert [result.counts.get("pairs", result.counts.get("queries")) for result in results] == [ROWS, QUERIES]
    assert results[1].counts["documents"] == QUERIES and results[1].counts["queries_without_document"] == 0
