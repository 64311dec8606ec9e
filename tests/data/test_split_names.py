"""The split that a file's name tells: in any case, with words before and after it, and numbers."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from embrew.adapting.preparation.sources import data_source, read_pairs
from embrew.corpus import encode_corpus
from embrew.data import load
from embrew.data.reading import split_files, splits
from embrew.evaluation.find import find_task
from tests.corpus.stub import Stub


def folder(path: Path, *names: str) -> Path:
    """A folder of such files, each with a row that says which file it is in."""
    path.mkdir()
    for name in names:
        separator = "\t" if name.endswith(".tsv") else ","
        content = f"question{separator}answer\nq {name}{separator}a {name}\n"
        if name.endswith(".jsonl"):
            content = f'{{"question": "q {name}", "answer": "a {name}"}}\n'
        (path / name).write_text(content)
    return path


@pytest.mark.parametrize(
    ("names", "train", "others"),
    [
        (["Test.csv", "Train.csv"], ["Train.csv"], {"test": ["Test.csv"]}),
        (["train_data.csv", "test_data.csv"], ["train_data.csv"], {"test": ["test_data.csv"]}),
        (["my-train.csv", "my-dev.csv", "my-test.csv"], ["my-train.csv"], {"dev": ["my-dev.csv"]}),
        (["data.train.jsonl", "data.val.jsonl"], ["data.train.jsonl"], {"val": ["data.val.jsonl"]}),
        (["TRAIN.tsv", "VALIDATION.tsv"], ["TRAIN.tsv"], {"validation": ["VALIDATION.tsv"]}),
        (["qaTrain.jsonl", "qaTest.jsonl"], ["qaTrain.jsonl"], {"test": ["qaTest.jsonl"]}),
        (["training.csv", "testing.csv"], ["training.csv"], {"test": ["testing.csv"]}),
        (
            ["Train-00000-of-00002.csv", "Train-00001-of-00002.csv", "Test-00000-of-00001.csv"],
            ["Train-00000-of-00002.csv", "Train-00001-of-00002.csv"],
            {"test": ["Test-00000-of-00001.csv"]},
        ),
        (["x_train_1.csv", "x_train_2.csv", "x_test_1.csv"], ["x_train_1.csv", "x_train_2.csv"], {}),
        (["train.jsonl", "train_small.jsonl"], ["train.jsonl"], {"train_small": ["train_small.jsonl"]}),
        (["train_data.csv", "test_data.csv", "labels.csv"], ["train_data.csv"], {"test": ["test_data.csv"]}),
        (["Train.csv", "my_test.csv", "labels.csv"], ["Train.csv"], {"test": ["my_test.csv"]}),
        (["part-0.jsonl", "part-1.jsonl"], ["part-0.jsonl", "part-1.jsonl"], {}),
        (["latest.csv"], ["latest.csv"], {}),
    ],
)
def test_names_tell_splits(names, train, others, tmp_path):
    place = folder(tmp_path / "data", *names)
    assert sorted(load(place, kind="pairs")["query"]) == [f"q {name}" for name in train]
    assert sorted(pair.question for pair in read_pairs(data_source(place, "pairs"))) == [f"q {name}" for name in train]
    for split, files in others.items():
        assert split in splits(place)
        assert list(load(place, kind="pairs", split=split)["query"]) == [f"q {name}" for name in files]


@pytest.mark.parametrize(
    "names", [["a.csv", "b.csv"], ["train_a.csv", "train_b.csv"], ["train_dev.jsonl", "holdout.jsonl"]]
)
def test_several_candidates_are_refused_by_name(names, tmp_path):
    place = folder(tmp_path / "data", *names)
    with pytest.raises(ValueError, match=f"several files that could be the split 'train': {', '.join(sorted(names))}"):
        load(place, kind="pairs")
    place = folder(tmp_path / "tested", *names, "test.csv")
    with pytest.raises(FileNotFoundError, match=f"has no split 'train'; it has .*{names[-1].split('.')[0]}"):
        load(place, kind="pairs")


def test_a_file_in_two_formats_is_refused(tmp_path):
    place = folder(tmp_path / "data", "train.csv", "train.tsv")
    with pytest.raises(ValueError, match="the split 'train' twice: train.csv, train.tsv; keep one of them"):
        load(place, kind="pairs")


def test_files_that_are_not_read_are_named_once(tmp_path, caplog):
    place = folder(tmp_path / "data", "train.jsonl", "Test.csv", "more.jsonl", "notes.csv", "._train.jsonl")
    for _ in range(2):
        assert load(place, kind="pairs")["query"] == ["q train.jsonl"]
    assert [one.message for one in caplog.records if one.levelno == logging.WARNING] == [
        f"{place}: not read: more.jsonl, notes.csv"
    ]
    caplog.clear()
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("corpus.jsonl", "corpus.csv"):
        (corpus / name).write_text('{"text": "a"}\n')
    encode_corpus(Stub(), corpus, tmp_path / "out")
    assert f"{corpus}: not read: corpus.csv" in caplog.text


def test_hidden_files_are_no_data(tmp_path):
    """As macOS writes beside each file."""
    place = folder(tmp_path / "data", "a.jsonl")
    (place / "._a.jsonl").write_bytes(b"\0\5\26\7")
    assert [file.name for file in split_files(place, "train")] == ["a.jsonl"]
    assert encode_corpus(Stub(), place, tmp_path / "out", text_column="answer").rows == 1


def test_a_corpus_is_all_tables_of_a_folder(tmp_path):
    place = folder(tmp_path / "data", "test_questions.csv", "articles.csv")
    assert encode_corpus(Stub(), place, tmp_path / "out", text_column="answer").rows == 2


def test_tasks_are_found_by_the_same_names(tmp_path):
    place = tmp_path / "sts"
    place.mkdir()
    for name in ("my_train.csv", "my_Test.csv"):
        (place / name).write_text("sentence1,sentence2,score\na,b,1\nc,d,0\n")
    task = find_task(place)
    assert (task.kind, task.split, [file.name for file in task.files]) == ("sts", "test", ["my_Test.csv"])
