"""Nothing is chosen on a test split."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from embrew.analysis.demonstrations import choose_demonstrations
from embrew.cli import app
from embrew.encoder import Encoder
from embrew.evaluation import evaluate
from embrew.evaluation.dev import dev_sets
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from tests.evaluation.scored import PAIRS, scored, sts_folder, write


@pytest.fixture
def sts(tmp_path) -> Path:
    return sts_folder(tmp_path / "sts")


def test_a_test_split_is_not_taken_for_dev(sts, tmp_path, make_encoder):
    refused = "has no dev split; it has test, train. Nothing is chosen on a test split: give a folder with a dev"
    with pytest.raises(ValueError, match=refused):
        dev_sets([sts])
    with pytest.raises(ValueError, match=refused):
        choose_demonstrations(make_encoder(), Context("find: ", PAIRS), [2], [sts])
    with pytest.raises(ValueError, match=r"test.jsonl is a test split by its name"):
        dev_sets([sts / "test.jsonl"])
    with pytest.raises(ValueError, match=r"train.jsonl is a train split by its name"):
        dev_sets([sts / "train.jsonl"])
    write(tmp_path / "beir" / "corpus.jsonl", {"_id": "1", "title": "", "text": "body"})
    write(tmp_path / "beir" / "queries.jsonl", {"_id": "q", "text": "ask"})
    (tmp_path / "beir" / "qrels.test.tsv").write_text("q\t1\t1\n")
    with pytest.raises(ValueError, match="beir has no dev split; it has test"):
        dev_sets([tmp_path / "beir"])
    named = write(tmp_path / "mine.jsonl", scored(1))
    assert dev_sets([named], [sts]).about["mine"]["split"] == "file"
    assert dev_sets([named], [sts]).about["guard/sts"]["split"] == "test", "a guard set is only reported"
    assert dev_sets([write(tmp_path / "a" / "dev.jsonl", scored(1))]).about["a-dev"]["split"] == "dev"


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        *((stem, "test") for stem in ("TEST", "sts-test", "stsb_test", "test_1", "test1", "test.v1", "test_00000")),
        *((stem, "test") for stem in ("held-out-test", "stsTest", "STSTest", "test-00000-of-00002")),
        *((stem, "train") for stem in ("sts-train", "Train_2")),
        *((stem, "file") for stem in ("latest", "contest", "testimonials", "sts-dev", "retrain", "training-courses")),
        *((stem, stem) for stem in ("dev", "valid", "validation")),
    ],
)
def test_a_word_of_a_file_name_says_that_it_is_a_test_split(stem, split, tmp_path):
    file = write(tmp_path / "sets" / f"{stem}.jsonl", scored(1))
    if split in ("test", "train"):
        with pytest.raises(ValueError, match=f"is a {split} split by its name"):
            dev_sets([file])
        ok = write(tmp_path / "dev.jsonl", scored(1))
        assert [about["split"] for about in dev_sets([ok], [file]).about.values()] == ["dev", split]
    else:
        assert dev_sets([file]).dev[0].split == split


def test_demonstrations_are_not_judged_on(sts, reads_demonstrations):
    reads_demonstrations.add_context("leaks", Context("find: ", (Demonstration("TEST 3", "an answer"), *PAIRS)))
    with pytest.raises(ValueError, match=r"1 of 3 demonstrations are rows of sts test, for example 'TEST 3'"):
        evaluate(reads_demonstrations, [sts], context="leaks")


def test_test_rows_are_not_mined(sts, tmp_path):
    given = ["data", "mine", "nano", str(sts), str(tmp_path / "mined.jsonl"), "--split", "test"]
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 1 and "mined rows are for training; give another split" in " ".join(
        refused.stderr.split()
    )


def test_the_command_names_what_chose(sts, model_folder, tmp_path):
    encoder = Encoder.from_pretrained(
        model_folder("llama"), device="cpu", template="{instruction}{text}{eos}", demonstrations=Demonstrations()
    )
    encoder.save_pretrained(tmp_path / "model", verify="off")
    write(tmp_path / "demos.jsonl", *({"query": pair.query, "response": pair.passage} for pair in PAIRS))
    given = ["context", "add", str(tmp_path / "model"), "task", "--instruction", "find: ", "--choose", "0..2"]
    given += ["--demos", str(tmp_path / "demos.jsonl"), "--dev", str(sts)]
    refused = CliRunner().invoke(app, given)
    assert refused.exit_code == 1 and "has no dev split; it has test, train" in " ".join(refused.stderr.split())
    assert "--dev-from-train N" in " ".join(refused.stderr.split())
    done = CliRunner().invoke(app, [*given, "--dev-from-train", "6"])
    assert done.exit_code == 0, done.stderr
    assert "dev: sts dev-from-train, 6 pairs" in done.stdout and "test: sts test, 12 pairs" in done.stdout
