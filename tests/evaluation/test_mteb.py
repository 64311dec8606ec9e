"""The same scores as mteb's on the same rows, mteb's tasks run by mteb, and its mock tasks for the protocol."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from embrew.evaluation import MtebTask, evaluate, mteb_tasks, read_suite
from embrew.evaluation.mteb_tasks import MtebEncoder, load_task
from embrew.text_encoder import vectors_hash
from tests.conftest import by_default
from tests.evaluation.conftest import BagOfWords
from tests.rows import write_rows

pytestmark = pytest.mark.skipif(find_spec("mteb") is None, reason="install mteb to test it")


class Projected(BagOfWords):
    """Bags of words in few dimensions: no two cosines are equal, where float noise would decide."""

    def _vectors(self, side, inputs, options):
        matrix = np.random.default_rng(0).standard_normal((self.dimensions, 24)).astype(np.float32)
        return np.tanh(super()._vectors(side, inputs, options) @ matrix)

    def weights_hash(self) -> str:
        return "abc"


@pytest.fixture
def encoder():
    return Projected()


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    words = ["cat", "dog", "fish", "river", "city", "moon", "house", "paper", "light", "green"]
    return [" ".join(rng.choices(words, k=rng.randint(2, 9))) + f" {i}" for i in range(count)]


def task_metadata(name: str, kind: str, score: str):
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        name=name, description="x", type=kind, dataset={"path": "local/x", "revision": "1"}, eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score=score,
    )  # fmt: skip


def local_task(base, metadata, rows: dict[str, list[dict]], **settings):
    """A task of mteb whose rows are given."""
    from datasets import Dataset, DatasetDict

    def load_data(self, num_proc=None, **kwargs):
        self.dataset = DatasetDict({split: Dataset.from_list(some) for split, some in rows.items()})
        self.data_loaded = True

    kind = type("Local", (base,), {"metadata": metadata, "load_data": load_data, **settings})
    return kind()


def theirs(encoder, task) -> float:
    import mteb

    model = MtebEncoder(encoder, name="x", options={})
    result = mteb.evaluate(model, [task], cache=None, show_progress_bar=False)
    return result.task_results[0].get_score()


def write(folder: Path, rows: dict[str, list[dict]]) -> Path:
    for split, some in rows.items():
        write_rows(folder / f"{split}.jsonl", some)
    return folder


def test_sts_is_mtebs(encoder, tmp_path):
    from mteb.abstasks.sts import AbsTaskSTS

    rng = np.random.default_rng(1)
    sides = texts(120, 1), texts(120, 2)
    rows = [
        {"sentence1": a, "sentence2": b, "score": float(s)}
        for a, b, s in zip(*sides, rng.uniform(0, 5, 120), strict=True)
    ]
    task = local_task(
        AbsTaskSTS, task_metadata("LocalSTS", "STS", "cosine_spearman"), {"test": rows}, min_score=0, max_score=5
    )
    (ours,) = evaluate(encoder, [write(tmp_path / "x", {"test": rows})])
    assert ours.main_score == pytest.approx(theirs(encoder, task), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("samples", [8, 3])
def test_classification_is_mtebs(encoder, tmp_path, samples):
    from mteb.abstasks.classification import AbsTaskClassification

    labelled = [{"text": text, "label": len(text) % 12} for text in texts(400, 3)]
    rows = {"train": labelled[:250], "test": labelled[250:]}
    metadata = task_metadata("LocalClassification", "Classification", "accuracy")
    task = local_task(AbsTaskClassification, metadata, rows, samples_per_label=samples)
    from embrew.evaluation import find_task

    (ours,) = evaluate(encoder, [find_task(write(tmp_path / "x", rows), samples_per_label=samples)])
    assert 0.05 < ours.main_score < 0.9
    assert ours.main_score == pytest.approx(theirs(encoder, task), abs=1e-4)


def test_pair_classification_is_mtebs(encoder, tmp_path):
    from mteb.abstasks.pair_classification import AbsTaskPairClassification

    left, right = texts(80, 5), texts(80, 6)
    rows = [{"sentence1": a, "sentence2": b, "labels": (len(a) + len(b)) % 2} for a, b in zip(left, right, strict=True)]
    task = local_task(
        AbsTaskPairClassification, task_metadata("LocalPairs", "PairClassification", "cosine_ap"), {"test": rows}
    )
    (ours,) = evaluate(encoder, [write(tmp_path / "x", {"test": rows})])
    assert ours.main_score == pytest.approx(theirs(encoder, task), abs=1e-4)


@pytest.mark.slow
def test_the_protocol_holds_for_mtebs_mock_tasks(encoder):
    import mteb

    results = mteb.mock_run(MtebEncoder(encoder, name="x", options={}))
    ran = {name for name, result in results.items() if isinstance(result, mteb.TaskResult)}
    assert results.all_passed
    assert {"MockSTSTask", "MockRetrievalTask", "MockClassificationTask", "MockSummarizationTask"} <= ran
    assert {side for side, _, _ in encoder.calls} == {"text", "query", "document"}


@pytest.fixture
def mock_sts(monkeypatch):
    from mteb.mocks.mock_tasks import MockSTSTask

    monkeypatch.setattr("embrew.evaluation.runs.load_task", lambda task: MockSTSTask())
    monkeypatch.setattr(mteb_tasks, "load_task", lambda task: MockSTSTask())
    return MtebTask("STS", "MockSTSTask", instruction="Find: ")


def test_a_task_of_mteb_is_judged_kept_and_not_judged_again(encoder, mock_sts, sts_folder, tmp_path):
    local, theirs = evaluate(encoder, [sts_folder / "test.jsonl", mock_sts], output_dir=tmp_path / "out")
    assert (theirs.task, theirs.kind, local.kind) == ("STS", "sts", "sts")
    assert -1 <= theirs.main_score <= 1
    assert all(options["prompt"] == "Find: " for side, _, options in encoder.calls[1:])
    run = json.loads((tmp_path / "out" / "STS.test.run.json").read_text())
    assert run["settings"]["instruction"] == "Find: "
    (cached,) = (tmp_path / "out" / "mteb").rglob("MockSTSTask.json")
    assert cached.parent.name == vectors_hash(encoder)  # the revision
    encoder.calls.clear()
    again = evaluate(encoder, [sts_folder / "test.jsonl", mock_sts], output_dir=tmp_path / "out")
    assert [result.main_score for result in again] == [local.main_score, theirs.main_score]
    assert not encoder.calls


def test_unknown_tasks_splits_and_subsets_are_named():
    with pytest.raises(ValueError, match="SciFac' not found.*SciFact"):
        load_task(MtebTask("x", "SciFac"))
    with pytest.raises(ValueError, match="split='dev'; choose from test"):
        load_task(MtebTask("x", "STS17", split="dev"))
    with pytest.raises(ValueError, match="No subsets were found for STS17 with filters: .*'en'"):
        load_task(MtebTask("x", "STS17", subset="en"))
    with pytest.raises(ValueError, match="type InstructionReranking; supported are STS"):
        load_task(MtebTask("x", "Core17InstructionRetrieval"))
    assert load_task(MtebTask("x", "STS17")).hf_subsets == ["en-en"]


@pytest.mark.parametrize(
    ("name", "count"), [("llm2comp", 14), ("autoregembed", 10), ("ese", 7), ("epic", 56), ("epic-26", 26)]
)
def test_suites_of_the_papers_are_known_to_mteb(name, count):
    suite = read_suite(f"papers/{name}")
    tasks = [task for task in suite.tasks if isinstance(task, MtebTask)]
    assert len(tasks) == count
    for task in tasks:
        load_task(task)
    if name in ("llm2comp", "epic", "epic-26"):
        assert all(task.instruction for task in tasks)
    prompts = {"llm2comp": "Given a claim, find documents that refute the claim: ",
               "epic": "Instruct: Given a claim, find documents that refute the claim\nQuery: "}  # fmt: skip
    if name in prompts:
        (arguana,) = (task for task in tasks if task.name == "ArguAna")
        assert arguana.instruction == prompts[name]


def test_without_mteb_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mteb", None)
    with pytest.raises(ImportError, match="pip install 'embrew.mteb.'"):
        load_task(MtebTask("x", "STS17"))


MOCKS = [
    "MockSTSTask",
    "MockRetrievalTask",
    "MockRerankingTask",
    "MockClassificationTask",
    "LegacyMockClusteringFastTask",
    "MockPairClassificationTask",
    "MockSummarizationTask",
    "MockMultilingualSTSTask",
]


@pytest.mark.parametrize("name", by_default(["MockRetrievalTask", "MockMultilingualSTSTask"], MOCKS))
def test_fetched_data_gives_the_same_score_without_loading(encoder, name, tmp_path, monkeypatch):
    import mteb.mocks.mock_tasks as mocks
    from mteb.abstasks.abstask import AbsTask

    from embrew.evaluation.mteb_tasks import load_stored, store_task

    made = getattr(mocks, name)
    before = theirs(encoder, made())
    assert store_task(made(), tmp_path / name)
    assert not store_task(made(), tmp_path / name)  # there already
    task = made()
    load_stored(task, tmp_path / name)

    def asked(*args, **kwargs):
        raise AssertionError("the data was loaded again")

    for kind in type(task).__mro__:
        if "load_data" in vars(kind) and kind is not AbsTask:
            monkeypatch.setattr(kind, "load_data", asked)
    assert theirs(encoder, task) == pytest.approx(before)


def test_another_revision_is_refused_and_fetched_again(encoder, tmp_path):
    from mteb.mocks.mock_tasks import MockSTSTask

    from embrew.evaluation.mteb_tasks import ABOUT, load_stored, store_task

    store_task(MockSTSTask(), tmp_path / "x")
    about = json.loads((tmp_path / "x" / ABOUT).read_text())
    (tmp_path / "x" / ABOUT).write_text(json.dumps({**about, "revision": "old"}))
    with pytest.raises(ValueError, match="holds revision old of MockSTSTask.*fetch it again"):
        load_stored(MockSTSTask(), tmp_path / "x")
    assert store_task(MockSTSTask(), tmp_path / "x")
    load_stored(MockSTSTask(), tmp_path / "x")


def test_a_folder_of_others_is_left_alone(tmp_path):
    from mteb.mocks.mock_tasks import MockSTSTask

    from embrew.evaluation.mteb_tasks import store_task

    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="was not written by embrew; it is left alone"):
        store_task(MockSTSTask(), tmp_path / "x")
    assert (tmp_path / "x" / "thesis.txt").read_text() == "precious"


def test_a_suite_finds_what_was_fetched(tmp_path, monkeypatch):
    from mteb.mocks.mock_tasks import MockSTSTask
    from typer.testing import CliRunner

    from embrew.cli import app

    monkeypatch.setattr(mteb_tasks, "load_task", lambda task: MockSTSTask())
    (tmp_path / "s.yaml").write_text("tasks: [{mteb: STS17, subset: en-en}, {mteb: SciFact}, {data: mine}]")
    (tmp_path / "data" / "mine").mkdir(parents=True)
    (tmp_path / "data" / "mine" / "test.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "score": 1}\n')
    done = CliRunner().invoke(app, ["data", "fetch", str(tmp_path / "s.yaml"), "--to", str(tmp_path / "data")])
    assert done.exit_code == 0, done.output
    assert "not downloaded, provide these folders yourself: mine" in done.output
    tasks = read_suite(tmp_path / "s.yaml", data=tmp_path / "data").tasks
    assert [getattr(task, "data", None) for task in tasks] == [
        tmp_path / "data" / "mteb" / "STS17-en-en", tmp_path / "data" / "mteb" / "SciFact", None
    ]  # fmt: skip
