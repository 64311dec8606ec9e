"""Files that one step writes and a later one reads: a flipped bit is refused by the file's name, or changes nothing."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from safetensors import safe_open
from safetensors.torch import save_file
from typer.testing import CliRunner

from embrew import Encoder
from embrew.cli import app
from embrew.data.beir import read_beir
from embrew.data.fetching import fetch
from embrew.data.formats import read_file
from embrew.data.sets import HubSet
from embrew.evaluation import Result
from embrew.evaluation.processes import CorpusChunks
from embrew.evaluation.results import write_result
from embrew.inspection import inspect
from embrew.recipe import Recipe, build
from embrew.report import read_folder
from embrew.settings.encoder import Pooling
from embrew.sweep import read_sweep, run_sweep
from embrew.training.run import Run
from embrew.training.run_json import RunResults
from tests.adapting.data import prepare
from tests.adapting.test_adapt import TINY, write_data
from tests.conftest import SENTENCES, by_default
from tests.training.one_stage import one_stage
from tests.training.test_stages import equal
from tests.training.unverified import train

FLIPS = 60


def flips(path: Path, count: int = FLIPS, *, seed: int = 0) -> Iterator[str]:
    """Yield for each of some random bits, flipped in a file meanwhile."""
    content, drawn = path.read_bytes(), random.Random(f"{path.name} {seed}")
    for _ in range(count):
        bit = drawn.randrange(8 * len(content))
        wrong = bytearray(content)
        wrong[bit // 8] ^= 1 << bit % 8
        path.write_bytes(wrong)
        yield f"bit {bit} of {path.name}"
    path.write_bytes(content)


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def refusal(read: Callable[[], Any], wanted: Any) -> str:
    """The message with which a read is refused; empty where it gives what was written."""
    try:
        value = read()
    except (ValueError, OSError) as error:
        return str(error)
    assert value == wanted, "read in silence, with another value"
    return ""


# ---- results -----------------------------------------------------------------------------------------------


def result(task: str, main: float, *, kind: str = "sts") -> Result:
    examples = {"predicted": [main, 0.5, 0.25, 1.0], "gold": [4.0, 2.0, 1.0, 5.0]}
    return Result(task, "test", kind, main, {"cosine_spearman": main, "ünïcode": 1.0}, 2.0, {"pairs": 4}, examples)


def write(folder: Path, *results: Result) -> Path:
    for one in results:
        about = {"task": one.task, "split": one.split, "kind": one.kind, "dataset_revision": "1", "settings": {"a": 1}}
        write_result(one, folder, {**about, "model_hash": folder.name})
    return folder


def contents(folder: Path) -> Any:
    return [(one, dict(one.run)) for one in read_folder(folder)]


@pytest.mark.parametrize("part", ["", ".run", ".examples"])
def test_a_bit_of_a_result(part, tmp_path):
    folder = write(tmp_path / "a", result("A", 0.5), result("B", 0.625))
    wanted, file, refused = contents(folder), folder / f"A.test{part}.json", 0
    for what in flips(file):
        message = refusal(lambda: contents(folder), wanted)
        assert not message or str(file) in message or "A.test" in message, what
        refused += bool(message)
    assert refused > FLIPS * 0.8
    assert contents(folder) == wanted
    halved(file)
    assert str(file) in refusal(lambda: contents(folder), wanted)
    file.unlink()
    read = refusal(lambda: contents(folder), wanted[1:])  # without its main file, it is as if it were not finished
    assert str(file) in read if part else read == ""


def test_files_of_two_results_are_exchanged(tmp_path):
    """Of two tasks, and of two models, each file for itself."""
    one, other = (write(tmp_path / name, result("A", main), result("B", 0.75)) for name, main in (("a", 0.5), ("b", 1)))
    for there in (one / "B.test", other / "A.test"):
        for part in (".json", ".run.json", ".examples.json"):
            first, second = one / f"A.test{part}", there.with_name(f"{there.name}{part}")
            if first.read_bytes() == second.read_bytes():
                continue
            shutil.move(first, tmp_path / "kept")
            shutil.move(second, first)
            shutil.move(tmp_path / "kept", second)
            with pytest.raises(ValueError, match=r"A\.test.*another result"):
                read_folder(one)
            shutil.move(first, tmp_path / "kept")
            shutil.move(second, first)
            shutil.move(tmp_path / "kept", second)
    assert [each.main_score for each in (*read_folder(one), *read_folder(other))] == [0.5, 0.75, 1, 0.75]


def test_a_result_written_in_another_way_is_the_same(tmp_path):
    """Other white space, another order of keys, other escapes; the sha256 by hand, with the standard library."""
    folder = write(tmp_path / "a", result("A", 1.0))
    wanted = contents(folder)
    for part in ("", ".run", ".examples"):
        file = folder / f"A.test{part}.json"
        values = json.loads(file.read_text())
        file.write_text(json.dumps(dict(reversed(values.items())), indent=7, ensure_ascii=True))
    assert contents(folder) == wanted
    file = folder / "A.test.json"
    values = json.loads(file.read_text())
    values["scores"]["test"][0]["main_score"] = 0.25
    del values["sha256"]
    rest = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    file.write_text(json.dumps({**values, "sha256": hashlib.sha256(rest).hexdigest()}))
    assert [one.main_score for one in read_folder(folder)] == [0.25]


def test_a_table_of_damaged_results_and_of_some_made_by_hand(tmp_path):
    folder, shown = write(tmp_path / "a", result("A", 0.5), result("B", 0.625)), ["table", str(tmp_path / "a")]
    assert "50.00" in CliRunner().invoke(app, shown).stdout
    file = folder / "A.test.json"
    file.write_text(file.read_text().replace("0.5", "0.9"))
    refused = CliRunner().invoke(app, shown)
    assert refused.exit_code == 1 and "A.test.json" in refused.stderr and "has changed" in refused.stderr
    for each in folder.glob("?.test.json"):
        values = json.loads(each.read_text())
        each.write_text(json.dumps({name: values[name] for name in ("task_name", "scores", "evaluation_time")}))
    command = [sys.executable, "-m", "embrew", *shown]  # a process of its own, in which nothing was said before
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "90.00" in read.stdout and read.stderr.count("has no sha256") == 1


def test_mteb_reads_a_result(tmp_path):
    mteb = pytest.importorskip("mteb")
    folder = write(tmp_path / "a", result("STSBenchmark", 0.5))
    theirs = mteb.results.TaskResult.from_disk(folder / "STSBenchmark.test.json")
    assert theirs.scores["test"][0]["main_score"] == 0.5


# ---- a teacher's vectors -----------------------------------------------------------------------------------


@pytest.fixture
def teach(make_encoder, model_folder, tmp_path) -> Callable[[], np.ndarray]:
    """A function that returns the targets of some texts: vectors of a teacher, from a folder or computed."""
    teacher = Encoder.from_pretrained(model_folder("llama"), device="cpu", pooling=Pooling("mean"))
    teacher.save_pretrained(tmp_path / "big", verify="off")
    student, rows = make_encoder(), [{"text": text} for text in SENTENCES]
    settings = {"teacher": str(tmp_path / "big"), "vectors": str(tmp_path / "vectors"), "fitted": 0}

    def targets() -> np.ndarray:
        objective: Any = build.objective({"type": "embedding_distillation", **settings})
        objective.setup(student)
        objective.precompute(Dataset.from_list(rows), student, tmp_path / "work")
        return np.asarray(objective.collate(rows, student)["text_teacher"])

    return targets


def test_a_bit_of_a_teachers_vectors(teach, tmp_path, caplog):
    """They are computed again, which is said; another text's vector is never a target."""
    wanted = teach()
    (shard,) = (tmp_path / "vectors").glob("*.safetensors")
    written = shard.read_bytes()
    for what in flips(shard, 5):
        caplog.clear()
        np.testing.assert_array_equal(teach(), wanted, err_msg=what)
        assert str(shard) in caplog.text, what
    assert shard.read_bytes() == written
    about = tmp_path / "vectors" / "teacher.json"
    for what in flips(about, 5):
        message = refusal(lambda: teach().tolist(), wanted.tolist())
        assert not message or "teacher.json" in message or "objective.teacher" in message, what
    halved(shard)
    np.testing.assert_array_equal(teach(), wanted)
    shard.unlink()
    np.testing.assert_array_equal(teach(), wanted)


def test_shards_that_are_exchanged_or_of_an_earlier_version(teach, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("embrew.methods.teacher_vectors.SHARD_SIZE", 2)
    wanted = teach()
    first, second, *_ = sorted((tmp_path / "vectors").glob("*.safetensors"))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    np.testing.assert_array_equal(teach(), wanted)
    caplog.clear()
    with safe_open(first, "pt") as file:
        kept = {name: file.get_tensor(name).clone() for name in ("keys", "vectors")}
        about = {"teacher": file.metadata()["teacher"]}
    save_file(kept, first, metadata=about)
    np.testing.assert_array_equal(teach(), wanted)
    assert "damaged" not in caplog.text


# ---- training ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe(model_folder, tmp_path_factory) -> Recipe:
    place = tmp_path_factory.mktemp("pairs")
    pairs = [{"query": f"{i} {text[:20]}", "positive": text[20:]} for i in range(2) for text in SENTENCES]
    (place / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    training = {"max_steps": 3, "learning_rate": 0.01, "save_steps": 1, "keep": [2, 3]}
    return one_stage(model_folder("llama"), place / "pairs.jsonl", training=training)


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory) -> Path:
    """A run without damage."""
    place = tmp_path_factory.mktemp("runs") / "whole"
    train(recipe, place)
    return place


@pytest.fixture(scope="module")
def killed(recipe, tmp_path_factory) -> Path:
    """A run that was killed after its last step, before anything was saved."""

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    place = tmp_path_factory.mktemp("runs") / "killed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "save_pretrained", dies)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, place)
    return place


@pytest.fixture
def stopped(killed, tmp_path) -> Path:
    """A copy of that run."""
    return shutil.copytree(killed, tmp_path / "run")


@pytest.mark.parametrize("how", by_default(["bit", "of another step"], ["bit", "half", "deleted", "of another step"]))
def test_a_kept_step_is_lost(how, recipe, stopped, whole, caplog):
    """The steps up to it are trained again, and the folders are those of a run without damage."""
    file = stopped / "one.work" / "step-2.safetensors"
    if "bit" in how:
        next(flips(file, seed=len(how)))
    elif how == "half":
        halved(file)
    elif how == "deleted":
        file.unlink()
    else:
        shutil.copy(stopped / "one.work" / "step-3.safetensors", file)
    with caplog.at_level(logging.WARNING):
        train(recipe, stopped, resume=True)
    assert "step-2.safetensors" in caplog.text and "not kept" not in caplog.text
    for name in ("one", "one.step-2", "one.step-3"):
        equal(whole / name, stopped / name)


@pytest.mark.parametrize("how", ["bit", pytest.param("deleted", marks=pytest.mark.slow)])
def test_a_kept_step_is_lost_before_it_is_saved(how, recipe, whole, tmp_path, monkeypatch):
    """In the same process: nothing is saved, the file is named, and the run can be resumed."""
    file, score = tmp_path / "run" / "one.work" / "step-2.safetensors", RunResults.score_trained

    def damaged(*given: Any) -> None:
        next(flips(file)) if how == "bit" else file.unlink()
        score(*given)

    with monkeypatch.context() as patch:
        patch.setattr(RunResults, "score_trained", damaged)
        with pytest.raises(ValueError, match=r"step-2\.safetensors .*--resume"):
            train(recipe, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["one.work", "run.json"]
    train(recipe, tmp_path / "run", resume=True)
    for name in ("one", "one.step-2"):
        equal(whole / name, tmp_path / "run" / name)


def test_the_best_step_is_damaged(recipe, tmp_path, monkeypatch):
    """Its file is written and read again within one stage."""
    dev = {"evaluation": {"dev": ["unused"], "every": 1, "metric": "dev"}}
    values = {**recipe.model_dump(), **dev}
    values["stages"][0]["training"].pop("keep")
    values["stages"][0]["training"]["max_steps"] = 2
    scores, file = iter([0.1, 0.9, 0.5]), tmp_path / "run" / "one.work" / "best.safetensors"

    def score(_: Encoder) -> dict[str, float]:
        if file.exists():
            next(flips(file))
        return {"dev": next(scores)}

    with pytest.raises(ValueError, match=r"best\.safetensors"):
        train(Recipe.from_values(values), tmp_path / "run", evaluate=score)


def test_a_bit_of_what_a_run_says_of_itself(recipe, stopped, tmp_path):
    """`run.json`, and `stage.json` of a stage in progress: refused by name when the run is resumed."""

    def begin() -> bool:
        run = Run(recipe, stopped, resume=True, evaluate=None, verify="off")
        return run.settings.holds(stopped / "one.work", 0)

    for name in ("run.json", "one.work/stage.json"):
        file, refused = stopped / name, 0
        wanted = json.loads(file.read_text())
        for what in flips(file):
            message = refusal(begin, True)
            if message:
                assert str(stopped) in message, what
                refused += 1
                continue
            changed = {key for key, value in json.loads(file.read_text()).items() if wanted.get(key, 0) != value}
            assert len(changed) < 2 and not changed & set(wanted), what  # the name of the key sha256
        assert refused > FLIPS * 0.8


# ---- sweeps ------------------------------------------------------------------------------------------------


def test_a_bit_of_a_sweep(recipe, tmp_path):
    pairs = [{"sentence1": text[:40], "sentence2": text[9:], "score": float(i)} for i, text in enumerate(SENTENCES)]
    (tmp_path / "similar.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    values = {**recipe.model_dump(), "evaluation": {"dev": [str(tmp_path / "similar.jsonl")]}}
    values["stages"][0]["training"] = {"max_steps": 1, "use_cpu": True}
    (tmp_path / "recipe.yaml").write_text(Recipe.from_values(values).to_yaml())
    (tmp_path / "sweep.yaml").write_text("- {name: a}\n")
    sweep = read_sweep(str(tmp_path / "sweep.yaml"), str(tmp_path / "recipe.yaml"))
    run_sweep(sweep, tmp_path / "sweep", verify="off")
    for name, read in (("sweep.json", tmp_path / "sweep"), ("a/run.json", tmp_path / "sweep" / "a")):
        file, facts, refused = tmp_path / "sweep" / name, inspect(read).facts, 0
        for what in flips(file, 20):
            contents = inspect(read)
            assert contents.facts == facts or str(file) in " ".join(contents.problems), what
            refused += bool(contents.problems)
        assert refused > 20 * 0.8
        assert inspect(read).facts == facts and inspect(read).state == "finished"


# ---- data --------------------------------------------------------------------------------------------------


def test_a_bit_of_the_data_of_an_adaptation(tmp_path):
    """Each file flipped, halved and deleted: the same call refuses it by its name, and works when it is back."""
    docs, pairs = write_data(tmp_path, 20)
    data = tmp_path / "out" / "data"
    wanted = prepare(docs, pairs, data).manifest
    names = sorted(str(path.relative_to(data)) for path in data.rglob("*") if path.is_file())
    assert {"pairs.jsonl", "passages.jsonl", "manifest.json", "test/qrels/test.tsv"} < set(names)
    for name in names:
        file, content = data / name, (data / name).read_bytes()
        for what in flips(file, 1):
            message = refusal(lambda: prepare(docs, pairs, data).manifest, wanted)
            assert message and (name in message or "checksums.json" in message), what
        halved(file)
        assert name in refusal(lambda: prepare(docs, pairs, data).manifest, None)
        file.unlink()
        if name != "checksums.json":
            assert f"{name} is missing" in refusal(lambda: prepare(docs, pairs, data).manifest, None)
        file.write_bytes(content)
    assert prepare(docs, pairs, data).manifest == wanted
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):  # a reader of one set alone
        next(flips(data / "test" / name))
        with pytest.raises(ValueError, match=name):
            read_beir(data / "test", "test")


@pytest.mark.slow
def test_what_adapt_keeps_of_itself(model_folder, tmp_path):
    """The plan, the recipes and the export: refused by name, or made again."""
    docs, pairs = write_data(tmp_path)
    out, given = tmp_path / "out", ["--quick", *TINY, "adapt.longest=200", "--json"]
    words = ["adapt", str(model_folder("llama")), "--pairs", str(pairs), "--docs", str(docs), "-o", str(out), *given]
    first = CliRunner().invoke(app, words)
    assert first.exit_code == 0, first.stderr
    for name in (
        "starts.json",
        "plans/llama.json",
        "recipes/llama--contrast.yaml",
        "model/llama--contrast/run.json",
        "results/llama--as-is/data-test.test.json",
    ):
        file = out / name
        content = file.read_bytes()
        halved(file)
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 1 and file.name in refused.stderr, (name, refused.stderr)
        file.write_bytes(content)
    weights = next((out / "export").rglob("*.safetensors"))
    content = weights.read_bytes()
    next(flips(weights))
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0 and weights.name in again.stderr and "made again" in again.stderr
    assert weights.read_bytes() == content and json.loads(again.stdout)["models"] == json.loads(first.stdout)["models"]
    summary = inspect(out).summary
    for what in flips(out / "adapted.json", 20):
        assert inspect(out).summary == summary or "adapted.json" in inspect(out).problems[0], what


def test_a_bit_of_downloaded_data(monkeypatch, tmp_path):
    """A reader refuses the file by its name; the same download makes it again."""
    rows = [{"a": f"A man rides {i} horses.", "b": f"He rides {i}.", "c": "He sleeps."} for i in range(20)]
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: rows)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *_, **__: SimpleNamespace(sha="c0ffee"))
    source = HubSet("someone/horses", "About horses.", "cc0", columns={"text": "a", "other": "b"})
    place = tmp_path / "set"
    assert fetch(source, place) and not fetch(source, place)
    file = next(place.glob("*.jsonl.gz"))
    content = file.read_bytes()
    for what in flips(file, 20):
        with pytest.raises(ValueError, match=re.escape(file.name)):
            list(read_file(file))
            pytest.fail(what)
    next(flips(file))
    assert fetch(source, place) and file.read_bytes() == content


def test_a_bit_of_a_part_of_a_corpus_that_was_ranked(tmp_path):
    """It is left out with a message, so that its part is ranked again, or has the values that were written."""
    scores, documents = np.random.default_rng(0).random((3, 10)), np.arange(30).reshape(3, 10)
    CorpusChunks(folder=tmp_path).add(0, scores, documents, 10)
    (file,) = tmp_path.glob("*.npz")
    for what in flips(file):
        chunks = CorpusChunks(folder=tmp_path)
        if list(chunks.remaining(1)):
            assert not file.exists(), what
        else:
            np.testing.assert_array_equal(chunks.best(1, 10), documents, err_msg=what)
