"""A run, a result folder or an index that is given again with something else: said, scored again or refused."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embrew.corpus import Ranges, encode_corpus
from embrew.corpus.job import quantize
from embrew.cutting import cut
from embrew.data import Document
from embrew.evaluation import evaluate
from embrew.evaluation.dev import dev_sets
from embrew.parity.model_passport import write_model_passport
from embrew.passport.making import client_words
from embrew.recipe import Recipe
from embrew.report import read_folder
from embrew.report.comparison import check_same_data, models_of
from embrew.report.sources import read_sources
from embrew.search import SearchIndex
from embrew.settings.encoder import Pooling
from embrew.sweep import read_sweep
from tests.conftest import SENTENCES
from tests.corpus.stub import Stub
from tests.rows import write_rows
from tests.training.one_stage import one_stage
from tests.training.unverified import train

PAIRS = [{"query": f"{i} {text[:20]}", "positive": text[20:]} for i in range(2) for text in SENTENCES]


@pytest.fixture
def make(model_folder, tmp_path) -> Any:
    """A function that returns a recipe of two steps."""
    pairs = write_rows(tmp_path / "pairs.jsonl", PAIRS)

    def recipe(**options: Any) -> Recipe:
        training = {"max_steps": 2, "learning_rate": 0.05, **options.pop("training", {})}
        return one_stage(model_folder("llama"), pairs, training=training, **options)

    return recipe


def dev_set(folder: Path, shift: int = 0) -> Path:
    rows = [
        {"sentence1": text, "sentence2": SENTENCES[(i + 1) % len(SENTENCES)], "score": float((i * 7 + shift) % 5)}
        for i, text in enumerate(SENTENCES)
    ]
    return write_rows(folder / "dev.jsonl", rows).parent


def base_of(run: Path) -> float:
    return json.loads((run / "run.json").read_text())["scores"]["base"]["dev"]


def test_the_untrained_score_is_that_of_the_encoder_and_the_sets_of_this_call(make, tmp_path):
    sets = dev_sets([dev_set(tmp_path / "similar")])
    run = tmp_path / "run"
    train(make(), run, evaluate=sets)
    before = base_of(run)
    train(make(), run, evaluate=sets, resume=True)
    assert base_of(run) == before
    shutil.rmtree(run / "one")
    train(make(encoder={"pooling": {"mode": "last"}}), run, evaluate=sets, resume=True)
    train(make(encoder={"pooling": {"mode": "last"}}), tmp_path / "fresh", evaluate=sets)
    assert base_of(run) == base_of(tmp_path / "fresh") != before

    other = dev_sets([dev_set(tmp_path / "other" / "similar", shift=3)])
    with pytest.raises(ValueError, match=r"evaluation.dev has changed since one was trained \(similar\)"):
        train(make(encoder={"pooling": {"mode": "last"}}), run, evaluate=other, resume=True)


def test_scores_of_a_guard_that_changed_go(make, tmp_path):
    dev, guard = dev_set(tmp_path / "similar"), tmp_path / "watched"
    sets = dev_sets([dev], [dev_set(guard)])
    train(make(), tmp_path / "run", evaluate=sets)
    dev_set(guard, shift=2)
    train(make(), tmp_path / "run", evaluate=dev_sets([dev], [guard]), resume=True)
    scores = json.loads((tmp_path / "run" / "run.json").read_text())["scores"]
    assert not any(name.startswith("guard") for of in scores.values() for name in of), "those were of the earlier set"
    shutil.rmtree(tmp_path / "run" / "one")
    train(make(), tmp_path / "run", evaluate=dev_sets([dev], [guard]), resume=True)
    train(make(), tmp_path / "fresh", evaluate=dev_sets([dev], [guard]))
    assert (
        json.loads((tmp_path / "run" / "run.json").read_text())["scores"]
        == (json.loads((tmp_path / "fresh" / "run.json").read_text())["scores"])
    )


def test_an_adapter_that_is_continued_is_not_that_of_the_recipe(make, tmp_path, caplog):
    train(make(), tmp_path / "start")
    with caplog.at_level(logging.WARNING):
        train(make(), tmp_path / "same", start=tmp_path / "start")
        assert "its adapter is continued as it is" not in caplog.text
        train(make(encoder={"lora": {"r": 2}}), tmp_path / "other", start=tmp_path / "start")
    assert "its adapter is continued as it is (r: 4), not as encoder.lora says" in caplog.text
    assert [*read_sources([str(tmp_path / "other")])] == ["other/one"], "no untrained one"
    with pytest.raises(FileNotFoundError, match="is no encoder written by embrew"):
        train(make(), tmp_path / "none", start=tmp_path / "nowhere")
    assert not (tmp_path / "none" / "run.json").exists()


def test_kept_steps_of_an_earlier_training_go(make, tmp_path):
    train(make(training={"keep": [1]}), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "one")
    train(make(training={"keep": None, "max_steps": 3}), tmp_path / "run", resume=True)
    assert not (tmp_path / "run" / "one.step-1").exists()


def test_fewer_dimensions_are_not_lost_silently(make_encoder, tmp_path):
    encoder = make_encoder(memory_tokens=0, pooling="mean", template="{text}")
    with pytest.raises(ValueError, match="truncated to 8 dimensions, which its folder does not hold"):
        cut(encoder, truncate_dim=8).save_pretrained(tmp_path / "out")


def test_results_are_of_one_model_and_tables_of_one_version_of_the_data(make_encoder, tmp_path):
    plain = {"memory_tokens": 0, "template": "{text}"}
    one, other = make_encoder(**plain, pooling="mean"), make_encoder(**plain, pooling=Pooling("last"))
    first, second = dev_set(tmp_path / "first"), dev_set(tmp_path / "second")
    evaluate(one, [first], output_dir=tmp_path / "results", split="dev")
    with pytest.raises(FileExistsError, match="is a result of another model; choose another output folder"):
        evaluate(other, [second], output_dir=tmp_path / "results", split="dev")
    evaluate(other, [second], output_dir=tmp_path / "mixed", split="dev")
    for file in (tmp_path / "results").iterdir():
        shutil.copy(file, tmp_path / "mixed")
    with pytest.raises(ValueError, match="holds results of several models"):
        read_folder(tmp_path / "mixed")
    changed = dev_set(tmp_path / "changed" / "first", shift=1)
    evaluate(other, [changed], output_dir=tmp_path / "later", split="dev")
    with pytest.raises(ValueError, match="first dev of later was evaluated on another version of the data than of re"):
        check_same_data(models_of([str(tmp_path / "results"), str(tmp_path / "later")]))
    with pytest.raises(ValueError, match="on another version of the data"):
        models_of([f"seeds={tmp_path / 'results'}", f"seeds={tmp_path / 'later'}"])


def test_rows_of_a_sweep_have_the_same_dev_sets_and_a_stopped_seed_is_seen(make, tmp_path):
    (tmp_path / "recipe.yaml").write_text(make().to_yaml())
    sets = "evaluation.dev=[{}]".format
    rows = [{"name": name, "set": [sets(tmp_path / name)]} for name in ("a", "b")]
    (tmp_path / "sweep.yaml").write_text(json.dumps(rows))
    with pytest.raises(ValueError, match=r"row b has other evaluation.dev or evaluation.guard than row a"):
        read_sweep(tmp_path / "sweep.yaml", tmp_path / "recipe.yaml")


def test_what_is_no_passport_or_index_is_not_replaced_by_one(make_encoder, tmp_path):
    make_encoder(memory_tokens=0, pooling="mean", template="{text}")
    for name, content in (("encoder", "passport.json"), ("site", "manifest.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / content).write_text("{}")
    with pytest.raises(FileExistsError, match=r"holds no check_passport.py, so it was not written by embrew"):
        write_model_passport("nano", tmp_path / "encoder", pooling="mean", overwrite=True)
    index = SearchIndex.build(Stub(), [Document(id="a", text="b")])
    with pytest.raises(FileExistsError, match=r"holds no rows.npy"):
        index.save(tmp_path / "site", overwrite=True)


def test_a_corrected_command_runs_where_nothing_was_encoded(tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"_id": "1", "body": "a"}, {"_id": "2", "body": "b"}])
    with pytest.raises(ValueError, match="text"):
        encode_corpus(Stub(), rows, tmp_path / "out")
    encode_corpus(Stub(), rows, tmp_path / "out", text_column="body")
    with pytest.raises(FileExistsError, match="another text_column"):
        encode_corpus(Stub(), rows, tmp_path / "out")


def test_int8_ranges_of_one_row_and_of_blank_texts():
    drawn = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    _, outside = quantize(drawn, "int8", Ranges.fit(drawn[:1]))
    assert outside >= 49 * 8, "counted, so that the run warns"
    ranges = Ranges.fit(np.concatenate([drawn, np.zeros((1, 8), np.float32)]))
    codes, outside = quantize(np.zeros((1, 8), np.float32), "int8", ranges)
    values = (codes.astype(np.float64) + 128) * np.array(ranges.step) + np.array(ranges.minimum)
    assert outside == 0 and np.abs(values).max() < 1e-12


def test_a_prompt_around_the_text_is_no_words_before_it(make_encoder):
    prompts = {"query": "Say: {text} in a word:", "document": "keep: "}
    encoder = make_encoder(memory_tokens=0, pooling="mean", template="{instruction}{text}", prompts=prompts)
    assert client_words(encoder) == {"": "", "query": None, "document": "keep: "}


def test_an_index_of_other_dimensions_is_not_updated():
    class Narrow(Stub):
        def encode_document(self, inputs: Any, **options: Any) -> np.ndarray:
            return super().encode_document(inputs, **options)[:, :1]

    index = SearchIndex.build(Stub(), [Document(id="a", text="b")])
    index.encoder = Narrow()
    with pytest.raises(ValueError, match="the encoder gives 1 dimensions, the index has 16"):
        index.updated([Document(id="a", text="c")])
