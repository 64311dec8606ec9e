"""Where model and data of results were: what `paths.json` holds, and what it keeps."""

import pytest

from embrew.evaluation import MtebTask, find_task
from embrew.evaluation.results import Paths, read_paths, write_paths


def test_paths_are_absolute_and_those_of_other_tasks_are_kept(sts_folder, retrieval_folder, tmp_path, monkeypatch):
    results = tmp_path / "results"
    results.mkdir()
    assert read_paths(results) == Paths(None, {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    write_paths(results, "model", [find_task("STS"), MtebTask("SciFact", "SciFact")])
    assert read_paths(results) == Paths(tmp_path / "model", {"STS.test": sts_folder})
    write_paths(results, "no-folder", [find_task("pets"), find_task("STS/test.jsonl")])
    data = {"STS.test": sts_folder, "pets.dev": retrieval_folder, "test.test": sts_folder / "test.jsonl"}
    assert read_paths(results) == Paths(None, data)


def test_each_cell_of_a_grid_has_its_data(retrieval_folder, tmp_path):
    write_paths(tmp_path, "nano", [find_task(retrieval_folder, kind="rag", dims=[1, 2])])
    assert read_paths(tmp_path).data == {f"pets-d{size}.dev": retrieval_folder for size in (1, 2)}


def test_a_damaged_file_is_replaced(sts_folder, tmp_path):
    (tmp_path / "paths.json").write_text('{"format": 1')
    with pytest.raises(ValueError, match="paths.json cannot be read: .*; remove it; results do not need it"):
        read_paths(tmp_path)
    write_paths(tmp_path, "nano", [find_task(sts_folder)])
    assert read_paths(tmp_path) == Paths(None, {"STS.test": sts_folder})
