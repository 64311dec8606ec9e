"""Names, ids and paths that others wrote: they lead nowhere but into the folder that they belong to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from embrew.corpus import encode_corpus, read_vectors
from embrew.evaluation import evaluate, find_task, read_suite
from embrew.evaluation.mteb_tasks import _load
from embrew.evaluation.results import Result, write_result
from embrew.files.names import is_safe_name, path_inside
from embrew.search import SearchIndex
from embrew.storage.parts import check_name, remove_context, write_context
from embrew.training import checkpoints
from tests.corpus.stub import Stub

BAD = ("", ".", "..", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "./a", "..\\x", "C:x", "a\0b", "a\nb")
IDS = ("../../outside", "/etc/passwd", "..", ".", "a\0b", "C:\\x", "part-00000.parquet", "x" * 3000, "\ud83e", "~root")


def below(root: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*BAD, "é" * 128, None, 3, ["a"], {"a": 1}, "\ud83e"])
def test_names_that_lead_elsewhere_are_refused(name, tmp_path):
    assert not is_safe_name(name)
    with pytest.raises(ValueError, match=r"run.json: final .* is not a name within its folder") as raised:
        path_inside(tmp_path, name, source="run.json", key="final")
    assert len(str(raised.value)) < 400


def test_a_link_in_a_folder_is_followed(tmp_path):
    """Hugging Face's cache has a link for every file; and users keep large stages on other disks."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stage").symlink_to(tmp_path / "elsewhere")
    place = path_inside(tmp_path / "run", "stage", source="run.json", key="final")
    assert place.resolve() == tmp_path / "elsewhere"


REFUSED = ("../../x", "a/b", "/x", "a\0b", ".", "..", ".hidden", "", "-x", "a.", "é", "a b", "x" * 201, "NUL", "con.v2")


@pytest.mark.parametrize("name", [*REFUSED, "Aux", "com1"])
def test_contexts_cannot_have_names_that_are_paths_or_no_folders(name):
    with pytest.raises(ValueError, match=r"^context .*: (a name is letters|folders cannot be called so)") as raised:
        check_name(name)
    assert len(str(raised.value)) < 300


def test_contexts_are_neither_written_nor_removed_through_a_link(tmp_path):
    outside, model = tmp_path / "outside", tmp_path / "model"
    (outside / "mine").mkdir(parents=True)
    (outside / "mine" / "context.json").write_text("{}")
    model.mkdir()
    (model / "contexts").symlink_to(outside)
    with pytest.raises(ValueError, match="is a link, or below one"):
        remove_context(model, "mine")
    with pytest.raises(ValueError, match="is a link, or below one"):
        write_context(model, "new", None, overwrite=True)  # type: ignore[arg-type]
    assert list(below(outside)) == ["mine/context.json"]


def test_ids_of_rows_never_become_names_of_files(tmp_path):
    """`id` is a text as any other: in shards, indexes and results it stands in files, not in their names."""
    given = [name for name in IDS if name.isprintable() or "\0" in name]
    rows = [{"_id": name, "text": f"text {i}"} for i, name in enumerate(given)]
    corpus = tmp_path / "deep" / "corpus.jsonl"
    corpus.parent.mkdir()
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    encode_corpus(Stub(), corpus, tmp_path / "deep" / "vectors", shard_rows=2)
    assert read_vectors(tmp_path / "deep" / "vectors").load()[0] == given
    index = SearchIndex.build(Stub(), corpus)
    index.save(tmp_path / "deep" / "index")
    assert {hit.document.id for hit in index.search(["text 1"])[0]} <= set(given)
    ours = r"(part|vectors|documents)-\d{5}\.[a-z]+|corpus\.jsonl|(manifest|vectors|checksums)\.json|rows\.npy"
    names = {path.name for path in (tmp_path / "deep").rglob("*") if path.is_file()}
    assert len(names) > 5 and all(re.fullmatch(ours, name) for name in names), names
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


@pytest.mark.parametrize(
    ("entry", "key"),
    [
        ("{data: sts, name: ../../x}", "name"),
        ("{data: sts, split: ../x}", "split"),
        ("{mteb: STS12, name: /x}", "name"),
        ("{hub: hotpotqa/hotpot_qa, subset: ../../x}", "subset"),
        ("{hub: hotpotqa/hotpot_qa, corpus_splits: [train, ../../x]}", "corpus_splits"),
    ],
)
def test_a_suite_cannot_name_files_elsewhere(entry, key, tmp_path):
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"tasks:\n  - {entry}\n")
    with pytest.raises(ValueError, match=rf"suite.yaml:2: tasks.0.{key}.*becomes a part of a file's name"):
        read_suite(suite, data=tmp_path)


def test_results_are_not_written_elsewhere(tmp_path):
    (tmp_path / "x.test.json").write_text("{}")
    with pytest.raises(ValueError, match="the task '../x' becomes a part of a file's name"):
        write_result(Result("../x", "test", "sts", 0.5, {}, 1.0), tmp_path / "results", {"dataset_revision": ""})
    data = tmp_path / "data" / "test.jsonl"
    data.parent.mkdir()
    rows = [{"sentence1": "a", "sentence2": f"b {i}", "score": i} for i in range(4)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="the task '../x' becomes a part of a file's name"):
        evaluate(Stub(), [find_task(data, name="../x")], output_dir=tmp_path / "results")
    assert set(below(tmp_path)) == {"x.test.json", "data/test.jsonl"}


def test_parts_of_fetched_data_and_files_of_manifests_stay_inside(tmp_path):
    with pytest.raises(ValueError, match="the part '../x' becomes a part of a file's name"):
        _load({"kind": "mapping", "parts": {"../x": "json"}}, tmp_path / "fetched")
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "x").write_text("")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    (tmp_path / "checkpoint-1" / "manifest.json").write_text(json.dumps({"../x": empty}))
    assert not checkpoints.is_complete(tmp_path / "checkpoint-1")


def test_an_index_that_lists_other_files_is_refused(tmp_path):
    documents = tmp_path / "documents.jsonl"
    documents.write_text('{"_id": "1", "text": "a text"}\n')
    SearchIndex.build(Stub(), documents).save(tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    for files in ({}, {**manifest["files"], "../documents.jsonl": "0"}):
        path.write_text(json.dumps({**manifest, "files": files}))
        with pytest.raises(ValueError, match="build the index again|manifest.json"):
            SearchIndex.load(tmp_path / "index", Stub())
