"""`embrew compare` from models to a page: what is evaluated and measured, what is kept, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, is_offline_mode
from typer.testing import CliRunner

import embrew.opening
from embrew.cli import app
from embrew.inspection import inspect
from tests.evaluation.conftest import BagOfWords


class Words(BagOfWords):
    """A bag of words with a hash, as encoders have it."""

    def weights_hash(self) -> str:
        return f"{self.dimensions:064}"


@pytest.fixture(autouse=True)
def _without_vega(monkeypatch) -> None:
    """No chart is shown here, and the bundle of Vega takes seconds to make."""
    monkeypatch.setattr("embrew.report.page._vega", lambda: "")


@pytest.fixture
def opened(monkeypatch) -> list[str]:
    """Models by name: `folder-N` has vectors of N dimensions. The list names those that were opened, in their order."""
    names: list[str] = []

    def open_model(name: str, *_: object, **__: object) -> Words:
        names.append(Path(name).name)
        return Words(int(name.rpartition("-")[2]))

    monkeypatch.setattr(embrew.opening, "open_model", open_model)
    return names


@pytest.fixture
def model(tmp_path) -> Callable[[int], Path]:
    """A folder that is recognised as a model, and opened as one of N dimensions."""

    def made(dimensions: int) -> Path:
        folder = tmp_path / f"folder-{dimensions}"
        folder.mkdir()
        (folder / "modules.json").write_text(json.dumps([]))
        return folder

    return made


def compare(*arguments: object, **options: Any) -> Any:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)], **options)


def report(output: Path) -> dict[str, Any]:
    return json.loads(output.with_suffix(".json").read_text())


@pytest.mark.slow
def test_models_are_evaluated_once_and_measured(opened, model, sts_folder, retrieval_folder, tmp_path, monkeypatch):
    small, large, page = model(2), model(512), tmp_path / "page.html"
    arguments = (small, f"large={large}", "--data", sts_folder, "--data", retrieval_folder, "-o", page)
    first = compare(*arguments)
    assert first.exit_code == 0, first.output
    assert opened == ["folder-2", "folder-512"] * 2  # to evaluate, then to measure
    (result,) = (tmp_path / "page.files/results/large").glob("STS.test.json")
    assert json.loads(result.read_text())["scores"]["test"][0]["main_score"] == pytest.approx(1.0)  # cosines 1, ½, 0
    document = report(page)
    assert document["scores"]["models"] == ["folder-2", "large"]
    assert [cost["bytes"] for cost in document["cost"]["models"]] == [8, 2048]  # four bytes per dimension
    assert all(cost["milliseconds"] > 0 for cost in document["cost"]["models"])
    assert "8 bytes per vector" in document["verdict"][-1]
    assert "2,048 bytes per vector" in document["verdict"][-1]
    opened.clear()
    with monkeypatch.context() as patched:
        patched.setattr("embrew.evaluation.runs.prepare", lambda *_: pytest.fail("evaluated again"))
        again = compare(*arguments)
    assert again.exit_code == 0, again.output
    assert report(page)["scores"] == document["scores"]


@pytest.mark.slow
def test_what_is_finished_before_a_kill_is_kept(opened, model, sts_folder, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    arguments = (model(2), model(512), "--data", sts_folder, "-o", page)
    encode = Words.encode

    def killed(self: Words, inputs: Any, **options: Any) -> Any:
        if self.dimensions == 512:
            raise KeyboardInterrupt
        return encode(self, inputs, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Words, "encode", killed)
        stopped = compare(*arguments)
    assert stopped.exit_code == 130
    assert "page.files; the same command resumes" in stopped.stderr
    contents = inspect(tmp_path / "page.files")
    assert (contents.kind, contents.state, contents.summary) == (
        "files of a report",
        "stopped",
        "2 models in page.html",
    )
    opened.clear()
    assert compare(*arguments).exit_code == 0
    assert opened == ["folder-2", "folder-512"] * 2  # to evaluate and to measure
    assert inspect(tmp_path / "page.files").state == "finished"


def test_what_cannot_be_compared_is_refused(model, sts_folder, tmp_path):
    page = tmp_path / "page.html"
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "index/manifest.json").write_text(
        json.dumps({"format": 3, "documents": 1, "dimensions": 2, "files": []})
    )
    for arguments, message in (
        ([model(2), "-o", page], "folder-2: no results; give --suite NAME or --data DIR"),
        ([empty, "-o", page], "empty cannot be compared: it holds nothing that embrew wrote"),
        ([tmp_path / "index", "-o", page], "index cannot be compared: it is of the kind 'index'"),
        ([tmp_path / "none", "-o", page], "no folder"),
        (["llm2comp/nano", "--data", sts_folder, "-o", page], "is a recipe with stages"),
        ([tmp_path, "-o", page], "holds several folders; give those that are to be compared"),
        ([sts_folder, "-o", tmp_path / "page.pdf"], "give FILE.html"),
    ):
        refused = compare(*arguments)
        assert refused.exit_code == 1, arguments
        assert message in refused.stderr
    assert not page.exists()


def test_a_missing_package_is_found_before_a_model_is_opened(opened, model, sts_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    page, folder = tmp_path / "page.html", model(2)
    for command in (["compare", folder, "-o", page], ["evaluate", folder, "--report", page]):
        refused = CliRunner().invoke(app, [*map(str, command), "--data", str(sts_folder)])
        assert refused.exit_code == 1
        (error,) = [line for line in refused.stderr.splitlines() if line.startswith("error: ")]
        assert error.startswith("error: a report needs vl-convert-python, which is")
        assert error.endswith("pip install 'embrew[report]'")
    assert (opened, page.exists()) == ([], False)


@pytest.mark.slow
def test_one_model_is_reported_as_it_is_evaluated(opened, model, sts_folder, tmp_path, monkeypatch):
    page = tmp_path / "one.html"
    arguments = ["evaluate", str(model(512)), "--data", str(sts_folder), "--report", str(page)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert opened == ["folder-512"]
    assert report(page)["verdict"][0] == "folder-512 scores 100.00 on STS test, 3 pairs."
    assert "2,048 bytes per vector" in report(page)["verdict"][-1]
    assert list((tmp_path / "one.files/results/folder-512").glob("STS.test.json"))
    monkeypatch.setattr(embrew.opening, "open_model", lambda *_, **__: Words(2))
    CliRunner().invoke(app, [*arguments, "--dtype", "bfloat16", "--overwrite"])
    assert report(page)["cost"]["models"][0]["bytes"] == 8  # not what was measured of another data type


@pytest.fixture
def evaluated(opened, model, sts_folder, tmp_path) -> list[Path]:
    """Results of two models, as `embrew evaluate --output` writes them."""
    folders = []
    for dimensions in (2, 512):
        folders.append(tmp_path / f"results/m{dimensions}")
        arguments = ["evaluate", model(dimensions), "--data", sts_folder, "--output", folders[-1]]
        done = CliRunner().invoke(app, list(map(str, arguments)))
        assert done.exit_code == 0, done.output
    opened.clear()
    return folders


@pytest.mark.slow
def test_results_alone_give_the_whole_page(opened, evaluated, tmp_path, monkeypatch):
    opens, offline = embrew.opening.open_model, list[bool]()
    monkeypatch.setattr(
        embrew.opening, "open_model", lambda name, **_: offline.append(is_offline_mode()) or opens(name)
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("EMBREW_DATA", raising=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    page = Path("page.html")
    done = compare("../results/m2", "../results/m512", "-o", page)
    assert done.exit_code == 0, done.output
    assert opened == ["folder-2", "folder-512"]  # to measure
    assert (offline, is_offline_mode()) == ([True, True], False)  # what results name is not downloaded
    assert [cost["bytes"] for cost in report(page)["cost"]["models"]] == [8, 2048]
    assert "blue sky" in page.read_text() and "Only ids are shown" not in page.read_text()
    assert [entry["folders"] for entry in report(page)["reproduce"]["models"]] == [
        ["local:folder-2"],
        ["local:folder-512"],
    ]
    written = [page.with_suffix(suffix).read_text() for suffix in (".html", ".json")]
    assert not any(str(tmp_path) in text for text in written)  # paths of this machine are in results only
    monkeypatch.chdir(tmp_path)
    assert compare("results/m2", "results/m512", "-o", page).exit_code == 0
    assert [entry["folders"] for entry in report(page)["reproduce"]["models"]] == [["folder-2"], ["folder-512"]]


def test_stored_folders_that_changed_are_not_used(opened, evaluated, sts_folder, tmp_path, monkeypatch):
    monkeypatch.delenv("EMBREW_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    page, stored = tmp_path / "page.html", json.loads((evaluated[0] / "paths.json").read_text())

    def shown(**changes: Any) -> tuple[str, str]:
        (evaluated[0] / "paths.json").write_text(json.dumps({**stored, **changes}))
        done = compare(*evaluated, "-o", page)
        assert done.exit_code == 0, done.output
        return report(page)["verdict"][-1], page.read_text()

    for folder, reason in (
        ("gone", "gone is no longer a folder on this machine"),
        ("results/m2", "results/m2 holds no encoder"),
        ("folder-512", "folder-512 has another model hash than the results"),
    ):
        verdict, text = shown(model=str(tmp_path / folder))
        assert verdict.endswith(f"a size of vectors that was not measured (m2: {reason}).")
        assert f"training data: not checked, because {reason}" in text
    assert set(opened) == {"folder-512"}
    monkeypatch.setattr(embrew.opening, "open_model", lambda *_, **__: Path("none").read_text())
    (tmp_path / "folder-2/weights.safetensors").write_bytes(b"other")
    (sts_folder / "test.jsonl").write_text((sts_folder / "test.jsonl").read_text().replace("dog", "cow"))
    verdict, text = shown()
    assert "m2: folder-2 cannot be opened" in verdict
    assert "Only ids are shown, since the texts were not found: <bdi>STS test, 3 pairs (STS has changed" in text
    (sts_folder / "test.jsonl").unlink()
    sts_folder.rmdir()
    assert "STS test, 3 pairs (STS is no longer on this machine)" in shown()[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "nano"}, "'nano' is not an absolute path"),
        ({"model": 3}, "cannot be read"),
        ({"data": {"STS.test": "../STS"}}, "'../STS' is not an absolute path"),
        ({"data": []}, "cannot be read"),
        ({"format": 1}, "format 1; this embrew reads format 2"),
    ],
)
def test_stored_paths_are_absolute(values, message, opened, evaluated, tmp_path):
    """A name would be looked up on the Hub, and a relative path in whatever folder the user is in."""
    stored = json.loads((evaluated[0] / "paths.json").read_text())
    (evaluated[0] / "paths.json").write_text(json.dumps({**stored, **values}))
    refused = compare(*evaluated, "-o", tmp_path / "page.html")
    assert (refused.exit_code, opened) == (1, [])
    assert message in refused.stderr and "paths.json" in refused.stderr
