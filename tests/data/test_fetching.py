"""Data sets of the Hub become folders that every stage of the shipped recipes can read."""

from __future__ import annotations

import gzip
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.data.demonstrations import read_demonstrations
from embrew.data.fetching import MAKE, SHORTEST, fetch
from embrew.data.sets import FileSet, HubSet, data_sets
from embrew.evaluation import find_task
from embrew.recipe import Recipe, build, list_recipes

HUB_SETS = {name: source for name, source in data_sets().items() if isinstance(source, HubSet)}
COMMIT = "c0ffee" * 6 + "c0ff"
CONTEXT = "The Rhine rises in the Alps. It flows through Basel and Bonn. In Bonn it is wide. Ships sail on it."
LONG = " ".join(f"Paragraph {i} is about the river and its towns, of which there are many." for i in range(10))


def squad(question: str, *answers: str, context: str = CONTEXT) -> dict[str, Any]:
    starts = [context.index(answer) for answer in answers]
    answered = {"text": list(answers), "answer_start": starts}
    return {"id": "1", "title": "Rhine", "context": context, "question": question, "answers": answered}


HUB: dict[tuple[str, str | None], list[dict[str, Any]]] = {
    ("sentence-transformers/all-nli", "triplet"): [
        {"anchor": f"A man rides {i} horses.", "positive": f"He rides {i}.", "negative": "He sleeps."}
        for i in range(11)
    ],
    ("rajpurkar/squad", None): [
        squad("Where does the Rhine rise?", "the Alps"),
        squad("Which town is it wide in?", "Bonn"),  # in two sentences
        squad("What sails on the Rhine?", "Ships", "Ships sail"),
        squad("What is short?", "This", context="This one has no other sentence."),
    ],
    ("wikimedia/wikipedia", "20231101.simple"): [
        {
            "id": "1",
            "url": "",
            "title": "Rhine",
            "text": f"{LONG}\n\nSources\n\n{'b' * SHORTEST}\n\n{'c' * (SHORTEST - 1)}",
        },
    ],
    ("lavita/MedQuAD", None): [
        {"question": "What is gout?", "answer": "A disease of the joints.", "category": None},
        {"question": "What is aspirin?", "answer": None, "category": None},
    ],
    ("mteb/stsbenchmark-sts", None): [
        {"sentence1": "a b", "sentence2": f"b {i}", "score": i, "sid": i} for i in range(6)
    ],
    ("mteb/biosses-sts", None): [{"sentence1": "p53", "sentence2": f"gene {i}", "score": i} for i in range(5)],
}


@pytest.fixture
def hub(monkeypatch) -> list[tuple[Any, ...]]:
    """The Hub as it is for these data sets; what is asked for is listed."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, name: str | None, *, split: str, revision: str) -> list[dict[str, Any]]:
        asked.append((path, name, split, revision))
        return HUB[path, name]

    def dataset_info(_: object, path: str, *, revision: str | None) -> SimpleNamespace:
        return SimpleNamespace(sha=revision or COMMIT)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    return asked


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.open(file, "rt", encoding="utf-8")]


EXPECTED = {
    "nli-triplets": [HUB["sentence-transformers/all-nli", "triplet"][i] for i in (0, 5, 10)],
    "squad-pairs": [
        {
            "query": "Where does the Rhine rise?",
            "positive": "The Rhine rises in the Alps.",
            "negative": "It flows through Basel and Bonn.",
        },
        {
            "query": "What sails on the Rhine?",
            "positive": "Ships sail on it.",
            "negative": "The Rhine rises in the Alps.",
        },
    ],
    "squad-instruct": [
        {"context": CONTEXT, "instruction": "Where does the Rhine rise?", "target": "the Alps"},
        {"context": CONTEXT, "instruction": "Which town is it wide in?", "target": "Bonn"},
        {"context": CONTEXT, "instruction": "What sails on the Rhine?", "target": "Ships"},
        {"context": "This one has no other sentence.", "instruction": "What is short?", "target": "This"},
    ],
    "wiki-paragraphs": [{"text": LONG, "title": "Rhine"}, {"text": "b" * SHORTEST, "title": "Rhine"}],
    "medquad": [{"query": "What is gout?", "positive": "A disease of the joints."}],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_rows_of_the_hub_become_rows_of_the_folder(name, hub, tmp_path):
    source = HUB_SETS[name]
    assert fetch(source, tmp_path / name)
    assert rows(tmp_path / name / "train.jsonl.gz") == EXPECTED[name]
    commit = source.revision or COMMIT
    assert hub == [(source.hub, source.config, "train", commit)]
    about = json.loads((tmp_path / name / "source.json").read_text())
    assert about["commit"] == commit and about["rows"] == {"train": len(EXPECTED[name])}
    assert about["source"]["hub"] == source.hub and about["source"]["licence"] == source.licence


def test_test_sets_have_their_splits(hub, tmp_path):
    for name, tested, count in (("stsb", "test", 6), ("biosses", "test", 5)):
        fetch(HUB_SETS[name], tmp_path / name)
        task = find_task(tmp_path / name)
        assert (task.kind, task.split, task.name) == ("sts", tested, name)
        assert len(rows(task.files[0])) == count
    assert rows(tmp_path / "stsb" / "validation.jsonl.gz")[1] == {"sentence1": "a b", "sentence2": "b 1", "score": 1}
    assert [asked[2] for asked in hub] == ["train", "validation", "test", "test"]


def test_a_set_is_downloaded_once_and_equal_rows_are_equal_files(hub, tmp_path, monkeypatch):
    source = HUB_SETS["medquad"]
    assert fetch(source, tmp_path / "a")
    assert not fetch(source, tmp_path / "a")
    assert len(hub) == 1
    monkeypatch.setattr(time, "time", lambda: 2e9)
    assert fetch(source, tmp_path / "b")
    assert (tmp_path / "a" / "train.jsonl.gz").read_bytes() == (tmp_path / "b" / "train.jsonl.gz").read_bytes()
    newer = HubSet(source.hub, source.about, source.licence, columns={"query": "question", "answer": "answer"})
    assert fetch(newer, tmp_path / "a")  # the package defines it otherwise now
    assert rows(tmp_path / "a" / "train.jsonl.gz") == [{"query": "What is gout?", "answer": "A disease of the joints."}]


def test_what_cannot_be_fetched_leaves_nothing(hub, tmp_path, monkeypatch):
    other = HubSet("rajpurkar/squad", "", "", columns={"query": "asked"})
    with pytest.raises(ValueError, match="rajpurkar/squad train, row 1 has no column asked, but id, title, context"):
        fetch(other, tmp_path / "x")
    empty = HubSet("lavita/MedQuAD", "", "", columns={"query": "category"})
    with pytest.raises(ValueError, match=f"lavita/MedQuAD at {COMMIT} has no rows that can be used"):
        fetch(empty, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError):
        fetch(HUB_SETS["medquad"], tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["train.jsonl"]

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("offline")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    with pytest.raises(FileNotFoundError, match=r"data set lavita/MedQuAD of the Hub .*\(offline\).* with a network"):
        fetch(HUB_SETS["medquad"], tmp_path / "x")


def test_the_command_fetches_several_sets_below_data(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["data", "fetch", "medquad", "squad-pairs"])
    assert done.exit_code == 0, done.stderr
    assert "data/medquad: downloaded, 1 rows of train" in done.stdout
    assert f"rajpurkar/squad at {COMMIT}; licence: CC BY-SA 4.0" in done.stdout
    again = CliRunner().invoke(app, ["data", "fetch", "squad-pairs", "--to", "data"])
    assert "data/squad-pairs: already there, 2 rows of train" in again.stdout
    unknown = CliRunner().invoke(app, ["data", "fetch", "squad-pair"])
    assert unknown.exit_code == 1
    assert all(name in unknown.stderr for name in (*data_sets(), "papers/ese-rag", "did you mean 'squad-pairs'?"))


def test_demonstrations_are_fetched_from_files(tmp_path, monkeypatch):
    """As bge-en-icl's files are; a local folder stands for the server."""
    (tmp_path / "there").mkdir()
    pairs = [{"query": f"q{i}", "response": "“r”", "other": 1} for i in range(3)]
    for name in ("STS12", "NQ"):
        (tmp_path / "there" / f"{name}.json").write_text(json.dumps(pairs))
    source = FileSet(f"file://{tmp_path}/there/{{name}}.json", "pairs", "MIT", ["query", "response"], ["STS12", "NQ"])
    monkeypatch.setattr("embrew.data.sets.data_sets", lambda: {"mine": source})
    done = CliRunner().invoke(app, ["data", "fetch", "mine", "--to", str(tmp_path)])
    assert done.exit_code == 0 and "downloaded, 2 files" in done.stdout and "licence: MIT" in done.stdout
    read, _ = read_demonstrations(tmp_path / "mine" / "NQ.jsonl")
    assert [(one.query, one.passage) for one in read] == [(f"q{i}", "“r”") for i in range(3)]
    assert json.loads((tmp_path / "mine" / "source.json").read_text())["rows"] == {"STS12": 3, "NQ": 3}
    assert not fetch(source, tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match=r"absent\.json cannot be downloaded .*with a network"):
        fetch(replace(source, files=["absent"]), tmp_path / "other")
    with pytest.raises(ValueError, match="is no JSON list of rows with text"):
        fetch(replace(source, columns=["text"]), tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("value", [[], {}, None, {"a": {"b": 1}}, ["a"], True])
def test_what_is_no_text_is_refused(value, tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text(json.dumps([{"query": "q", "response": "r"}, {"query": "q", "response": value}]))
    source = FileSet(f"file://{tmp_path}/{{name}}.json", "pairs", "MIT", ["query", "response"], ["a"])
    with pytest.raises(ValueError, match=r"a\.json is no JSON list of rows with query, response .*response holds"):
        fetch(source, tmp_path / "out")
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: SimpleNamespace(sha=COMMIT))
    answered = squad("Where?", "Bonn")
    hub_rows = {
        "medquad": {"question": "What is gout?", "answer": value},
        "squad-pairs": {**answered, "question": value},
        "squad-instruct": {**answered, "answers": value},
        "wiki-paragraphs": {"title": "t", "text": value},
    }
    for name, row in hub_rows.items():
        monkeypatch.setattr("datasets.load_dataset", lambda *_, row=row, **__: [row])
        with pytest.raises(ValueError, match=r"row 1: \w+ holds|has no rows that can be used"):
            fetch(HUB_SETS[name], tmp_path / name)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    "text", ["[]", "{}", "null", "3", "[" * 100_000, '[{"query": 1, "query": 2}]', '{"a": ' * 100_000]
)
def test_a_file_without_rows_is_refused(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    source = FileSet(f"file://{tmp_path}/{{name}}.json", "pairs", "MIT", ["query"], ["a"])
    with pytest.raises(ValueError, match=r"a\.json is no JSON list of rows with query"):
        fetch(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_sets_are_defined_whole():
    (icl,) = (source for source in data_sets().values() if isinstance(source, FileSet))
    assert data_sets()["bge-en-icl"] is icl
    assert len(set(icl.files)) == 56 and re.search(r"/[0-9a-f]{40}/.*/\{name\}\.json$", icl.url)
    assert {"nli-triplets", "squad-pairs", "squad-instruct", "wiki-paragraphs", "medquad"} < set(HUB_SETS)
    for name, source in HUB_SETS.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
        assert bool(source.columns) != (source.make in MAKE), name
        assert source.about and source.licence
        assert source.revision is None or re.fullmatch("[0-9a-f]{40}", source.revision)


def test_every_shipped_recipe_reads_the_hub_files_of_its_user_or_what_can_be_fetched(hub, tmp_path, monkeypatch):
    """Rows of every stage that names a fetched folder are read from it, with the columns and limits of the recipe."""
    monkeypatch.chdir(tmp_path)
    for name, source in HUB_SETS.items():
        fetch(source, tmp_path / "data" / name)
    used = set()
    for name in list_recipes():
        recipe = Recipe.load(name)
        for stage in recipe.stages:
            objective = build.objective(stage.objective)
            for config in stage.datasets:
                assert not any("EMBREW_D" in path for path in config.paths), name
                if str(config.path).startswith("data/"):
                    used.add(config.path)
                    assert len(build.rows(config, objective, max_rows=5)), f"{name}: {config.path}"
        for one in [*recipe.evaluation.dev, *recipe.evaluation.guard] if recipe.evaluation else ():
            used.add(one)
            assert find_task(str(one)).kind == "sts", name
    assert used == {f"data/{name}" for name in HUB_SETS}


@pytest.mark.network
@pytest.mark.parametrize("name", HUB_SETS)
def test_the_real_hub_has_the_rows(name, tmp_path):
    """Downloads up to some hundred MB; needs HF_HUB_OFFLINE=0."""
    source = HUB_SETS[name]
    assert fetch(source, tmp_path / name)
    about = json.loads((tmp_path / name / "source.json").read_text())
    assert set(about["rows"]) == set(source.splits)
    assert about["rows"].get("train", 10_000) > 5000
