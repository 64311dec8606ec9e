"""What `embrew runs` says of folders of every kind: finished, stopped, damaged, empty, running."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.files.formats import FORMATS
from embrew.files.writing import claimed
from embrew.inspection import KINDS, inspect
from tests.cli.scene import write_small


@pytest.fixture
def folders(written: Path, tmp_path: Path) -> Path:
    """A copy of the folders of every kind, without base models."""
    return Path(shutil.copytree(written, tmp_path / "copy", ignore=shutil.ignore_patterns("tiny", "data", "weights")))


def said(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["runs", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_kind_of_folder_with_a_format_is_known() -> None:
    within_other_kinds = {FORMATS[name].file for name in ("checksums", "openvino", "paths")}
    markers = {Path(kind.marker).name.replace("*", "TASK.SPLIT") for kind in KINDS}
    assert {each.file for each in FORMATS.values()} - within_other_kinds <= markers


@pytest.mark.parametrize(
    ("name", "kind", "state", "summary"),
    [
        ("run", "training run", "stopped", "stopped in stage supervised, step 4 of 6"),
        ("whole", "training run", "finished", "dev "),
        ("run/compress", "encoder", "finished", "tiny, 1 adapter, 4 steps of training"),
        ("run/supervised.work", "stage in progress", "stopped", "step 4 of 6"),
        ("run/supervised.work/checkpoint-4", "checkpoint", "finished", "step 4 of 6"),
        ("encoders/full", "encoder", "finished", "tiny, full weights, 0 steps of training"),
        ("encoders/nano/contexts/foxes", "context", "finished", "2 demonstrations"),
        ("export", "export", "finished", "tiny, 16 dimensions"),
        ("index", "index", "finished", "22 documents, 16 dimensions"),
        ("shards/binary", "vectors", "finished", "22 vectors of 8 dimensions, binary"),
        ("shards/int8-stopped", "vectors", "stopped", "8 vectors of 16 dimensions, int8 in 1 finished shard"),
        ("results", "results", "finished", "1 task"),
        ("sweep", "sweep", "finished", "2 rows of sweep.yaml finished"),
        ("data", "folder", "unknown", "nothing that embrew wrote"),
    ],
)
def test_kind_state_and_summary(name: str, kind: str, state: str, summary: str, written: Path) -> None:
    found = inspect(written / name)
    assert (found.kind, found.state) == (kind, state) and found.summary.startswith(summary)


def test_a_stopped_run_says_its_stages_and_how_to_resume(written: Path) -> None:
    found = inspect(written / "run")
    assert [(stage.name, stage.state, stage.step, stage.steps) for stage in found.stages] == [
        ("compress", "finished", 4, None),
        ("supervised", "in progress", 4, 6),
    ]
    assert found.commands == {
        "open": f"embrew evaluate {written}/run/compress --data DIR",
        "resume": f"embrew train RECIPE --output {written}/run --resume",
    }
    lines = said(written / "run").splitlines()
    assert lines[0] == f"{written}/run: training run, stopped; stopped in stage supervised, step 4 of 6"
    assert lines[1].split()[:5] == ["compress", "finished", "step", "4", "dev"]
    assert lines[-1] == f"  resume: embrew train RECIPE --output {written}/run --resume"


def test_stages_that_have_not_begun_are_listed(folders: Path) -> None:
    shutil.rmtree(folders / "run" / "supervised.work")
    found = inspect(folders / "run")
    assert [(stage.name, stage.state) for stage in found.stages] == [
        ("compress", "finished"),
        ("supervised", "not begun"),
    ]
    assert found.summary == "stopped before stage supervised"
    values = json.loads((folders / "run" / "run.json").read_text())
    values |= {"stages": ["compress", "supervised", "last"], "command": ["train", "a recipe.yaml", "seed=1"]}
    (folders / "run" / "run.json").write_text(json.dumps(values))
    found = inspect(folders / "run")
    assert [stage.name for stage in found.stages] == ["compress", "supervised", "last"]
    assert found.commands["resume"] == f"embrew train 'a recipe.yaml' seed=1 --output {folders}/run --resume"


def test_a_domain_run_says_what_is_finished(folders: Path) -> None:
    made_of = {
        "format": FORMATS["domain"].number,
        "documents": "docs",
        "pairs": "qa.jsonl",
        "columns": {"question": "q"},
        "seed": 1,
    }
    (folders / "domain" / "manifest.json").write_text(
        json.dumps({"made_of": {**made_of, "max_chars": 600}, "counts": {"documents": 2, "pairs": 3}})
    )
    made = folders / "made"
    made.mkdir()
    (folders / "domain").rename(made / "data")
    (folders / "run").rename(made / "model")
    (made / "diagnosis.json").write_text("{}")
    found = inspect(made)
    assert (found.kind, found.state) == ("domain run", "stopped")
    assert found.summary == "training stopped in stage supervised, step 4 of 6"
    assert found.facts[0] == "finished: prepared data, diagnosis"
    assert found.commands["resume"] == f"embrew domain docs --output {made}"
    (made / "report.md").write_text("# docs")
    assert inspect(made).state == "finished"


def test_a_folder_with_several_has_one_line_each(written: Path) -> None:
    lines = said(written).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "encoders", "export", "index", "page.files", "results", "run", "shards", "sweep", "whole",
    ]  # fmt: skip
    assert "7 folders that embrew wrote" in lines[1]
    assert "stopped in stage supervised, step 4 of 6" in lines[6]


def test_the_data_of_the_demonstration_is_no_index_and_no_domain(written: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text('{"made_of": "docstrings", "train": {}}')
    shutil.copytree(written / "results", tmp_path / "results" / "mean")
    found = inspect(tmp_path)
    assert [(one.path.name, one.kind) for one in found.holds] == [("results", "folders")]
    assert [one.kind for one in found.holds[0].holds] == ["results"]


@pytest.mark.parametrize(
    "name",
    [
        "run/run.json",
        "sweep/sweep.json",
        "index/manifest.json",
        "encoders/lora/embrew.json",
        "results/sts.test.run.json",
    ],
)
@pytest.mark.parametrize("content", [b"", b'{"scores": {"at', b"\xff\x00", b'{"format": FORMAT, "base": 1}'])
def test_damaged_files_are_named(written: Path, tmp_path: Path, name: str, content: bytes) -> None:
    file = Path(shutil.copytree((written / name).parent, tmp_path / "copy")) / Path(name).name
    number = json.loads(file.read_text())["format"]
    file.write_bytes(content.replace(b"FORMAT", str(number).encode()))
    found = inspect(file.parent)
    assert (found.state, found.summary) == ("damaged", "cannot be read")
    assert found.kind != "folder" and str(file) in found.problems[0]


def test_half_written_folders_say_what_is_missing(folders: Path) -> None:
    work = folders / "run" / "supervised.work"
    shutil.rmtree(work / "checkpoint-2")
    shutil.copytree(work / "checkpoint-4", work / "checkpoint-6")
    (work / "checkpoint-6" / "manifest.json").unlink()
    found = inspect(folders / "run")
    assert found.stages[1].step == 4
    assert found.problems[0].startswith(f"{work}/checkpoint-6 is not complete; an earlier")
    (work / "checkpoint-4" / "optimizer.pt").unlink()
    found = inspect(folders / "run")
    assert found.stages[1].progress == "no checkpoint yet, starts at step 0"
    assert found.problems[1] == f"{work}/checkpoint-4/optimizer.pt is missing; an earlier checkpoint is resumed"
    (folders / "index" / "index.faiss").unlink()
    assert inspect(folders / "index").problems == (f"{folders}/index/index.faiss is missing",)
    (folders / "shards" / "int8" / "part-00001.parquet").unlink()
    assert inspect(folders / "shards" / "int8").state == "damaged"
    (folders / "results" / "sts.test.json").unlink()
    assert inspect(folders / "results").state == "stopped"


def test_other_formats_are_not_called_damaged(folders: Path) -> None:
    values = json.loads((folders / "run" / "run.json").read_text())
    (folders / "run" / "run.json").write_text(json.dumps({**values, "format": 9}))
    found = inspect(folders / "run")
    assert found.state == "unreadable" and "this embrew reads format 2" in found.problems[0]


def test_empty_missing_and_locked_folders(tmp_path: Path) -> None:
    assert inspect(tmp_path).state == "empty"
    (tmp_path / ".run.json.tmp").touch()
    assert inspect(tmp_path).state == "empty"
    for path in (tmp_path / "nowhere", tmp_path / ".run.json.tmp"):
        done = CliRunner().invoke(app, ["runs", str(path)])
        assert done.exit_code == 1 and str(path) in done.stderr and done.stdout == ""


def hold(folder: Path, ready: Callable[[], object], end: Callable[[], object]) -> None:
    with claimed(folder, "training into"):
        ready()
        end()


def test_a_folder_that_a_process_writes_is_running(folders: Path) -> None:
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Event(), fork.Event()
    process = fork.Process(target=hold, args=(folders / "run", ready.set, end.wait))
    process.start()
    try:
        assert ready.wait(30)
        found = inspect(folders / "run")
        assert (found.state, found.commands) == ("running", {})
        assert "running" in said(folders)
    finally:
        end.set()
        process.join()
    assert inspect(folders / "run").state == "stopped"


def test_nothing_is_written_and_torch_is_not_imported(folders: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folders.rglob("*")}
    names = [str(path) for path in (folders, folders / "run", folders / "sweep", folders / "encoders" / "lora")]
    code = "import sys; from embrew.inspection import inspect\nfor name in sys.argv[1:]: inspect(name)\n"
    code += "heavy = {'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code, *names], check=True)
    assert {path: path.stat().st_mtime_ns for path in folders.rglob("*")} == before


def test_a_folder_without_permission_is_one_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `lost+found` of a disk; the superuser, as whom tests may run, could read it."""
    for name in ("locked", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    listed = Path.iterdir

    def refused(self: Path) -> object:
        if self.name == "locked":
            raise PermissionError(13, "Permission denied", str(self))
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = {each.path.name: (each.state, each.summary) for each in inspect(tmp_path).holds}
    assert found == {"locked": ("unreadable", "Permission denied"), "run": ("damaged", "cannot be read")}


def test_the_command_that_resumes_a_run_is_the_one_that_began_it(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path, model_folder("llama"))
    data = f"stages.one.data.path={tmp_path}/pairs.jsonl"
    words = ["train", "recipe.yaml", "seed=3", data, "--output", "new"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert inspect("new").state == "finished"
    shutil.rmtree("new/one")  # as if it had been stopped
    found = inspect("new")
    assert found.summary == "stopped before stage one"
    resume = "embrew train recipe.yaml seed=3 stages.one.data.path=pairs.jsonl --output new --resume"
    assert found.commands == {"resume": resume}
    assert str(tmp_path) not in Path("new/run.json").read_text()
    done = CliRunner().invoke(app, resume.split()[1:])
    assert done.exit_code == 0 and inspect("new").state == "finished", done.output
