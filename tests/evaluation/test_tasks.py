import pytest

from embrew.evaluation import find_task
from tests.rows import write_rows


def folder(path, *, rows, files=("test.jsonl",)):
    for file in files:
        write_rows(path / file, [rows])
    return path


STS = {"sentence1": "a", "sentence2": "b", "score": 1.0}


def test_sentence_pairs(tmp_path):
    task = find_task(folder(tmp_path / "STSX", rows=STS, files=("train.jsonl", "dev.jsonl", "test.jsonl")))
    assert (task.name, task.kind, task.split) == ("STSX", "sts", "test")
    assert [file.name for file in task.files] == ["test.jsonl"]
    assert find_task(tmp_path / "STSX", split="train").files[0].name == "train.jsonl"
    assert find_task(tmp_path / "STSX" / "dev.jsonl").split == "test"  # a file has no splits


def test_retrieval_and_its_split(retrieval_folder):
    task = find_task(retrieval_folder)
    assert (task.name, task.kind, task.split) == ("pets", "retrieval", "dev")
    assert [file.name for file in task.files] == ["corpus.jsonl", "queries.jsonl", "dev.tsv"]
    with pytest.raises(FileNotFoundError, match="no qrels for split 'test'; it has dev"):
        find_task(retrieval_folder, split="test")


def test_a_folder_named_after_a_split_takes_its_parents_name(tmp_path):
    assert find_task(folder(tmp_path / "harvest" / "test", rows=STS)).name == "harvest-test"


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ({"sentence1": "a", "sentence2": "b", "label": 1}, "pair_classification"),
        ({"sentence1": "a", "sentence2": "b", "labels": 1}, "pair_classification"),
        ({"text": "a", "label": 1}, "clustering"),
        ({"query": "a", "positive": ["b"], "negative": ["c"]}, "reranking"),
        ({"text": "a", "human_summaries": [], "machine_summaries": [], "relevance": []}, "summarization"),
    ],
)
def test_kinds_follow_from_the_columns(tmp_path, rows, kind):
    assert find_task(folder(tmp_path / "x", rows=rows)).kind == kind


def test_labelled_texts_with_a_train_split_are_to_be_classified(tmp_path):
    rows = {"text": "a", "label": 1}
    task = find_task(folder(tmp_path / "x", rows=rows, files=("train.jsonl", "test.jsonl")))
    assert (task.kind, [file.name for file in task.files]) == ("classification", ["train.jsonl", "test.jsonl"])
    assert find_task(tmp_path / "x", kind="clustering").files == (tmp_path / "x" / "test.jsonl",)
    with pytest.raises(ValueError, match="classification needs a folder with a train and a test split"):
        find_task(tmp_path / "x" / "test.jsonl", kind="classification")


@pytest.mark.parametrize(
    "rows", [{"text": "a"}, {"query": "a", "positive": "b", "negative": "c"}, {"sentence1": "a", "score": 1.0}]
)
def test_rows_that_are_no_task_are_described(tmp_path, rows):
    columns = ", ".join(sorted(rows))
    with pytest.raises(
        ValueError, match=f"no kind of task has rows with the columns {columns}; known are sts .* and retrieval"
    ):
        find_task(folder(tmp_path / "x", rows=rows))


def test_the_kind_can_be_said(tmp_path, retrieval_folder):
    assert find_task(folder(tmp_path / "x", rows={"sentence1": "a"}), kind="sts").kind == "sts"
    with pytest.raises(ValueError, match="kind='clusters'; choose from sts, retrieval"):
        find_task(tmp_path / "x", kind="clusters")
    with pytest.raises(ValueError, match="kind='sts' cannot read it; use retrieval"):
        find_task(retrieval_folder, kind="sts")
    with pytest.raises(FileNotFoundError, match=r"lacks corpus.jsonl or queries.jsonl"):
        find_task(tmp_path / "x", kind="retrieval")


def test_folders_that_cannot_be_judged(tmp_path):
    with pytest.raises(ValueError, match="neither a test nor a dev split; choose split from train"):
        find_task(folder(tmp_path / "x", rows=STS, files=("train.jsonl",)))
    with pytest.raises(FileNotFoundError, match="no data folder"):
        find_task(tmp_path / "missing")
    (tmp_path / "x" / "test.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds no rows"):
        find_task(tmp_path / "x")
