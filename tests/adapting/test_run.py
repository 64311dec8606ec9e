"""The whole path on a tiny model, from all that users may bring."""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from embrew.cli import app
from embrew.data.beir import read_beir
from embrew.data.fingerprints import normalised
from embrew.adapting.plan import plan
from embrew.adapting.prepare import Prepared, prepare
from embrew.adapting.run import run as run_domain
from embrew.recipe import Recipe
from embrew.training import stages
from tests.conftest import SENTENCES

TINY = (
    "encoder.lora={r: 4, lora_alpha: 8, target_modules: [q_proj, v_proj]}",
    "encoder.max_length={query: 48, document: 64}",
    "stages.learn.training.per_device_train_batch_size=4",
    "stages.represent.batch.size=4",
    "stages.learn.training.use_cpu=true",
    "stages.represent.training.use_cpu=true",
)


def words(i: int) -> str:
    return f"Number {i} is said first. {SENTENCES[i % 5]} Then {i * 7} follows, and nothing else is known of case {i}."


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.md").write_text(f"# Case {i}\n\n{words(i)}\n")
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[int], Path]:
    def pairs(count: int) -> Path:
        rows = [{"question": f"What is known of case {i}?", "answer": words(i)} for i in range(count)]
        (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return tmp_path / "pairs.jsonl"

    return pairs


def texts(path: Path, *columns: str) -> set[str]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {normalised(row[column]) for row in rows for column in columns}


def test_what_is_judged_on_is_not_trained_on(docs: Path, write: Callable[[int], Path], tmp_path: Path) -> None:
    data = prepare(docs, write(40), tmp_path / "data")
    test = read_beir(data.test, "test")
    assert len(test.queries) == 8 and data.count("train_pairs") == 32 and data.count("linked") == 40
    trained = texts(data.pairs, "query", "positive") | texts(data.passages, "text")
    corpus = {document.id: document.content for document in test.corpus}
    for query, grades in test.qrels.items():
        assert normalised(test.queries[query]) not in trained
        for document in grades:
            right = normalised(corpus[document])
            assert not any(right in text or text in right for text in trained)
            alike = [i for i, text in corpus.items() if right in normalised(text)]
            assert alike == [document], "the passage that holds the answer would be right, and count as wrong"
    assert data.count("documents_held_out") == 8 and data.count("train_passages") == 32
    assert prepare(docs, tmp_path / "pairs.jsonl", tmp_path / "data").manifest == data.manifest


def test_killed_while_the_data_was_prepared(tmp_path: Path) -> None:
    """All that is in the output folder is what the killed run was writing; it is no other file."""
    (tmp_path / "out" / ".data.abcd1234.partial" / "new").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="no folder .*docs"):
        run_domain(tmp_path / "docs", None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match="holds other files"):
        run_domain(tmp_path / "docs", None, tmp_path / "out")


def test_changed_files_are_refused(docs: Path, write: Callable[[int], Path], tmp_path: Path) -> None:
    prepare(docs, write(40), tmp_path / "data")
    with pytest.raises(FileExistsError, match="other files or settings \\(max_chars\\)"):
        prepare(docs, tmp_path / "pairs.jsonl", tmp_path / "data", max_chars=100)
    (docs / "0.md").write_text("other words")
    with pytest.raises(FileExistsError, match="other files or settings \\(sha256\\)"):
        prepare(docs, tmp_path / "pairs.jsonl", tmp_path / "data")


def test_wrong_choices_are_negatives_and_are_searched(docs: Path, tmp_path: Path) -> None:
    rows = [{"question": f"Which is it, {i}?", "choices": [f"no {i}", f"yes {i}"], "answer": "B"} for i in range(30)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = prepare(docs, tmp_path / "pairs.jsonl", tmp_path / "data")
    first = json.loads(data.pairs.read_text().splitlines()[0])
    assert first["negatives"] == [first["positive"].replace("yes", "no")]
    test = read_beir(data.test, "test")
    corpus = {document.id: document.content for document in test.corpus}
    for query, (document,) in test.qrels.items():
        number = test.queries[query].split()[-1].rstrip("?")
        assert corpus[document] == f"yes {number}" and f"no {number}" in corpus.values()


@pytest.mark.parametrize(
    ("pairs", "options", "target", "reason"),
    [
        (40, {"min_pairs": 30}, "positive", "32 training pairs, at least 30: the first stage generates answers"),
        (40, {}, "text", "32 training pairs, fewer than 500: the first stage reconstructs documents"),
        (40, {"learn": "rest"}, "rest", None),
        (40, {"learn": "pairs"}, "positive", None),
        (10, {}, "text", "0 training pairs, fewer than 500"),
        (0, {}, "text", "0 training pairs, fewer than 500"),
    ],
)
def test_the_plan_follows_the_data(
    pairs: int,
    options: dict[str, Any],
    target: str,
    reason: str | None,
    docs: Path,
    write: Callable[[int], Path],
    tmp_path: Path,
) -> None:
    data = prepare(docs, write(pairs) if pairs else None, tmp_path / "data")
    made = plan(data, **options)
    learn, represent = made.recipe.stages
    assert learn.objective == {"type": "bottleneck", "target": target}
    assert reason is None or any(reason in line for line in made.reasons)
    rows = 32 if target == "positive" else data.count("train_passages")
    assert learn.training["max_steps"] == -(-3 * rows // 16)
    assert represent.batch is not None and represent.batch.size <= 64
    (tmp_path / "recipe.yaml").write_text(made.to_yaml(tmp_path))
    assert Recipe.load(tmp_path / "recipe.yaml").differing_keys(made.recipe.resolved()) == []
    assert plan(data, steps=10, **options).recipe.stages[1].training["max_steps"] == 3
    changed = plan(data, overrides=["stages.learn.training.learning_rate=0.5"], **options)
    assert changed.recipe.stages[0].training["learning_rate"] == 0.5


def test_a_plan_that_the_data_does_not_allow(docs: Path, write: Callable[[int], Path], tmp_path: Path) -> None:
    data = prepare(docs, write(10), tmp_path / "data")
    with pytest.raises(ValueError, match="learn=pairs, but there is no pair to train on"):
        plan(data, learn="pairs")
    with pytest.raises(ValueError, match="steps=0"):
        plan(data, steps=0)
    none = Prepared(data.folder, {"counts": {**data.manifest["counts"], "train_passages": 0}})
    with pytest.raises(ValueError, match="learn=text, but there is no document"):
        plan(none, learn="text")
    with pytest.raises(ValueError, match="'enkoder"):
        plan(data, overrides=["enkoder=3"])


def test_no_pairs(docs: Path, tmp_path: Path) -> None:
    """First sentences of held-out documents stand in for questions; those of the others are trained on."""
    data = prepare(docs, None, tmp_path / "data")
    assert data.manifest["questions_made"] and data.count("documents_held_out") == 8
    test = read_beir(data.test, "test")
    assert len(test.queries) == 8
    trained = texts(data.pairs, "query") | texts(data.passages, "text")
    for text in test.queries.values():
        assert text.startswith("Number") and normalised(text) not in trained
        assert not any(normalised(text) in passage for passage in trained)


def test_one_document_without_pairs(tmp_path: Path) -> None:
    """Its last passages are held out."""
    (tmp_path / "book.txt").write_text("\n\n".join(words(i) for i in range(40)))
    data = prepare(tmp_path / "book.txt", None, tmp_path / "data", max_chars=200)
    assert not data.manifest["by_document"] and data.count("documents_held_out") == 0
    assert data.count("test_queries") == 8
    trained = texts(data.passages, "text")
    assert not any(normalised(text) in one for text in read_beir(data.test, "test").queries.values() for one in trained)


def test_one_document_with_few_pairs(tmp_path: Path) -> None:
    """A handbook and a few questions: its passages are trained on, but those that hold an answer."""
    (tmp_path / "book.txt").write_text("\n\n".join(words(i) for i in range(40)))
    rows = [{"question": f"What of case {i}?", "answer": words(i), "source": "book"} for i in range(5)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = prepare(tmp_path / "book.txt", tmp_path / "pairs.jsonl", tmp_path / "data", max_chars=200)
    assert data.count("test_queries") == 5 and data.count("train_pairs") == 0
    trained = texts(data.passages, "text")
    held = [normalised(words(i)) for i in range(5)]
    assert len(trained) == 35 and not any(answer in text or text in answer for answer in held for text in trained)


def test_too_little_of_everything(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no documents"):
        prepare(tmp_path / "docs", None, tmp_path / "data")
    (tmp_path / "docs" / "a.txt").write_text("One sentence alone.")
    with pytest.raises(ValueError, match="documents in docs: 1, no pairs; the test would have different questions: 0"):
        prepare(tmp_path / "docs", None, tmp_path / "data")
    with pytest.raises(FileNotFoundError, match="pairs.jsonl"):
        prepare(tmp_path / "docs", tmp_path / "pairs.jsonl", tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("files", "pairs", "said"),
    [
        (3, 0, "documents in docs: 3, no pairs; the test would have different questions: 1, different answers: 1"),
        (3, 1, "documents in docs: 3, pairs in pairs.jsonl: 1; the test would have different questions: 1"),
    ],
)
def test_counts_are_checked_before_a_model_is_opened(
    files: int, pairs: int, said: str, docs: Path, write: Callable[[int], Path], tmp_path: Path
) -> None:
    for file in sorted(docs.iterdir())[files:]:
        file.unlink()
    options = ["--model", str(tmp_path / "no-such-model"), "--output", str(tmp_path / "out")]
    options += ["--pairs", str(write(pairs))] if pairs else []
    result = CliRunner().invoke(app, ["domain", str(docs), *options])
    assert result.exit_code == 1 and said in result.stderr and "needs two or more of each" in result.stderr
    assert not (tmp_path / "out" / "data").exists()
    general = CliRunner().invoke(app, ["domain", str(docs), *options, "--general", str(write(1))])
    assert "pairs.jsonl: different questions: 1, different answers: 1; give two or more of each" in general.stderr


def test_from_documents_to_report(
    docs: Path, write: Callable[[int], Path], model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: Any
) -> None:
    """The command; stopped and given again, it trains what is missing, and gives the same report."""
    trained: list[str] = []
    original = stages.Run.stage

    def counted(self: stages.Run, index: int) -> Any:
        trained.append(self.recipe.stages[index].name)
        return original(self, index)

    monkeypatch.setattr(stages.Run, "stage", counted)
    out = tmp_path / "out"
    given = [str(docs), *TINY, "--pairs", str(write(40)), "--model", str(model_folder("llama")), "--output", str(out)]
    given += ["--steps", "2", "--min-pairs", "30", "--general", str(tmp_path / "pairs.jsonl"), "--no-export"]
    result = CliRunner().invoke(app, ["domain", *given])
    assert result.exit_code == 0, result.stderr
    assert trained == ["learn", "represent"]
    report = json.loads((out / "report.json").read_text())
    names = [step["step"] for step in report["steps"]]
    assert names == ["untrained, memory", "untrained, last token", "untrained, mean", "learn", "represent"]
    page = (out / "report.md").read_text()
    for step in report["steps"]:
        assert f"| {step['step']} | {step['ndcg_at_10']:.3f} | {step['recall_at_10']:.3f} |" in page
    assert "docs" in page and "## Before training" in page and "no verdict from 8 pairs of docs" in page
    for step in report["steps"]:
        assert f"{step['step']}: data-test test: {step['ndcg_at_10']:.4f} in " in result.stderr
    base = max(report["steps"][:3], key=lambda step: step["ndcg_at_10"])
    found = re.search(r"after represent minus .*: (\S+), 95 % interval \[(\S+), (\S+)\]", page)
    assert found is not None and base["step"] == "untrained, memory"
    difference, low, high = (100 * float(value) for value in found.groups())
    verdict = json.loads((out / "comparison.json").read_text())["verdict"]
    about = re.match(
        r"out/untrained-memory and out/represent are not .*difference of (\S+) points \(95 % interval (\S+) to "
        r"([^)]+)\); out/untrained-memory was chosen as the best of 5 on these results",
        verdict[0],
    )
    assert about is not None, verdict[0]
    assert [-float(value) for value in about.groups()] == pytest.approx([difference, high, low], abs=0.05)
    assert verdict[0] in html.unescape((out / "comparison.html").read_text())
    assert "out/represent" in verdict[1] and "out/untrained-memory" in verdict[1]
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
    assert len(report["diagnosis"]["data"]) == 2
    assert str(tmp_path) not in page, "a report has no paths of one machine"

    shutil.rmtree(out / "model" / "represent")
    (out / "report.md").unlink()
    exported: list[torch.dtype] = []
    module = sys.modules["embrew.adapting.run"]
    monkeypatch.setattr(module, "_export", lambda encoder, folder: exported.append(encoder.backbone.dtype))
    again = CliRunner().invoke(app, ["domain", *given[:-1]])
    assert again.exit_code == 0, again.stderr
    assert exported == [torch.float32], "not in the bfloat16 of its training"
    assert trained == ["learn", "represent", "represent"]
    repeated = json.loads((out / "report.json").read_text())
    for one, other in zip(report["steps"], repeated["steps"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}

    other = CliRunner().invoke(app, ["domain", *given, "--steps", "3"])
    assert other.exit_code == 1 and "recipe.yaml has other settings (stages.0.training.max_steps" in other.stderr
    assert stages.train(Recipe.load(out / "recipe.yaml"), out / "model", resume=True).steps == 3
    assert trained == ["learn", "represent", "represent"], "the recipe is the one that was trained"


def test_folders_of_others_are_left_alone(docs: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("x")
    result = CliRunner().invoke(app, ["domain", str(docs), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1 and "holds other files" in result.stderr
