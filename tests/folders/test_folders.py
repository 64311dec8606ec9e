"""Format numbers: one is read per kind of file, every other is refused in one sentence; unknown keys are ignored."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from embrew import inspection, opening
from embrew.analysis.uniformity import evaluation_of
from embrew.cli import app
from embrew.corpus import read_vectors
from embrew.encoder import Encoder
from embrew.evaluation.results import read_paths
from embrew.files.checksums import NAME, digest_of, write_checksums
from embrew.files.formats import FORMATS
from embrew.files.writing import claimed
from embrew.inspection import inspect
from embrew.methods.teacher_vectors import TeacherVectors
from embrew.recipe import Recipe
from embrew.report import read_folder
from embrew.search import SearchIndex
from embrew.sweep import read_sweep, run_sweep
from embrew.training.stages import train
from tests.adapting.data import prepare
from tests.cli.scene import write_small


@pytest.fixture
def folders(written, tmp_path, monkeypatch) -> Path:
    """A copy of the folders of every kind, which is the current directory."""
    copy = Path(shutil.copytree(written, tmp_path / "written"))
    (copy / "export" / "openvino").mkdir()
    (copy / "export" / "openvino" / "encoder.json").write_text(json.dumps({"format": FORMATS["openvino"].number}))
    monkeypatch.chdir(copy)
    return copy


def resumed(recipe: str, folder: str) -> None:
    read = Recipe.load(recipe)
    train(read, folder, resume=True, evaluate=evaluation_of(read))


def swept() -> None:
    rows = read_sweep("sweep.yaml", "whole.yaml", ["encoder.lora={r: 1, lora_alpha: 2}"])
    run_sweep(rows, "sweep", resume=True)


def searched() -> None:
    SearchIndex.load("index", opening.open_model("encoders/lora"))


class Case(NamedTuple):
    """A kind of file, one of its files, and what reads it."""

    kind: str
    file: str
    read: Callable[[], Any]


CASES = (
    Case("checksums", "encoders/lora/checksums.json", lambda: Encoder.from_pretrained("encoders/lora")),
    Case("encoder", "encoders/lora/embrew.json", lambda: Encoder.from_pretrained("encoders/lora")),
    Case(
        "context",
        "encoders/contexts/contexts/foxes/context.json",
        lambda: Encoder.from_pretrained("encoders/contexts"),
    ),
    Case("run", "run/run.json", lambda: resumed("run.yaml", "run")),
    Case("stage", "whole/supervised/stage.json", lambda: resumed("whole.yaml", "whole")),
    Case("export", "export/parity.json", lambda: opening.open_model("export")),
    Case("openvino", "export/openvino/encoder.json", lambda: opening.open_model("export", backend="openvino")),
    Case("vectors", "shards/int8/__embrew__/vectors.json", lambda: read_vectors("shards/int8")),
    Case("index", "index/manifest.json", searched),
    Case("result", "results/sts.test.run.json", lambda: read_folder("results")),
    Case("teacher", "teacher/teacher.json", lambda: TeacherVectors("encoders/lora", Path("teacher"))),
    Case("sweep", "sweep/sweep.json", swept),
    Case("paths", "results/paths.json", lambda: read_paths(Path("results"))),
    Case("report", "page.files/comparison.json", lambda: inspection.report(Path("page.files"))),
    Case(
        "adapted", "adapted/manifest.json", lambda: prepare(Path("data/docs"), Path("data/qa.jsonl"), Path("adapted"))
    ),
)
OTHER = [(case, FORMATS[case.kind].number - 1) for case in CASES] + [(CASES[1], None), (CASES[1], "newer")]


def named(value: Any) -> str:
    """Name a test."""
    return value.kind if isinstance(value, Case) else str(value)


def change(case: Case, **changes: Any) -> None:
    """Set keys of a JSON file; those of `made_of` where this holds the number. None: remove the key."""
    path = Path(case.file)
    values = json.loads(path.read_text())
    part = values["made_of"] if case.kind == "adapted" else values
    part.update(changes)
    for name in [name for name, value in changes.items() if value is None]:
        del part[name]
    if "sha256" in values and case.kind != "checksums":
        values["sha256"] = digest_of({key: value for key, value in values.items() if key != "sha256"})
    path.write_text(json.dumps(values))


def test_every_kind_is_tried():
    assert {case.kind for case in CASES} == FORMATS.keys()


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("case", "number"), OTHER, ids=named)
def test_another_number_is_refused_in_one_sentence(case, number):
    kind = FORMATS[case.kind]
    number = kind.number + 1 if number == "newer" else number
    change(case, format=number)
    what = "without a format number" if number is None else f"of format {number!r}"
    wanted = f"{kind.what} {what}; this embrew reads format {kind.number}; make it again with this version, or "
    with pytest.raises(
        ValueError, match=rf"^\S*{Path(case.file).name}: {wanted}open it with the embrew that wrote it$"
    ):
        case.read()


def unverified(case: Case) -> None:
    """Write the checksums of a changed file again."""
    path = Path(case.file)
    if path.name != NAME and (path.parent / NAME).is_file():
        write_checksums(path.parent)


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("case", [case for case in CASES if case.kind != "openvino"], ids=named)
def test_unknown_keys_are_ignored(case):
    change(case, **{"of a later version": {"any": ["value"]}})
    unverified(case)
    case.read()


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("case", "inside"), [(CASES[1], "base"), (CASES[1], "pooling"), (CASES[7], "shards")], ids=named
)
def test_unknown_keys_of_what_decides_vectors_are_refused(case, inside):
    part = json.loads(Path(case.file).read_text())[inside]
    (part[0] if inside == "shards" else part)["of a later version"] = 1
    change(case, **{inside: part})
    unverified(case)
    name = Path(case.file).name
    with pytest.raises(ValueError, match=rf"{name} cannot be read: ?.*of a later version|\(.*of a later"):
        case.read()


# ---- what `embrew runs` says of folders of every kind


@pytest.fixture
def copies(written, tmp_path) -> Path:
    """A copy of the folders of every kind, without base models."""
    return Path(shutil.copytree(written, tmp_path / "copy", ignore=shutil.ignore_patterns("tiny", "data", "weights")))


def said(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["runs", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("name", "kind", "state", "summary"),
    [
        ("run", "training run", "stopped", "in stage supervised, step 4 of 6"),
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
def test_kind_state_and_summary(name, kind, state, summary, written):
    found = inspect(written / name)
    assert (found.kind, found.state) == (kind, state) and found.summary.startswith(summary)


def test_a_stopped_run_says_its_stages_and_how_to_resume(written):
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
    assert lines[0] == f"{written}/run: training run, stopped; in stage supervised, step 4 of 6"
    assert lines[1].split()[:5] == ["compress", "finished", "step", "4", "dev"]
    assert lines[-1] == f"  resume: embrew train RECIPE --output {written}/run --resume"


def test_a_folder_with_several_has_one_line_each(written):
    lines = said(written).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        "encoders", "export", "index", "page.files", "results", "run", "shards", "sweep", "whole",
    ]  # fmt: skip
    assert "6 folders that embrew wrote" in lines[1]
    assert "in stage supervised, step 4 of 6" in lines[6]


@pytest.mark.parametrize("name", ["run/run.json", "index/manifest.json", "encoders/lora/embrew.json"])
@pytest.mark.parametrize("content", [b'{"scores": {"at', b"\xff\x00", b'{"format": FORMAT, "base": 1}'])
def test_damaged_files_are_named(written, tmp_path, name, content):
    file = Path(shutil.copytree((written / name).parent, tmp_path / "copy")) / Path(name).name
    number = json.loads(file.read_text())["format"]
    file.write_bytes(content.replace(b"FORMAT", str(number).encode()))
    found = inspect(file.parent)
    assert (found.state, found.summary) == ("damaged", "cannot be read")
    assert found.kind != "folder" and str(file) in found.problems[0]


def test_half_written_folders_say_what_is_missing(copies):
    work = copies / "run" / "supervised.work"
    shutil.rmtree(work / "checkpoint-2")
    shutil.copytree(work / "checkpoint-4", work / "checkpoint-6")
    (work / "checkpoint-6" / "manifest.json").unlink()
    found = inspect(copies / "run")
    assert found.stages[1].step == 4
    assert found.problems[0].startswith(f"{work}/checkpoint-6 is not complete; an earlier")
    (work / "checkpoint-4" / "optimizer.pt").unlink()
    found = inspect(copies / "run")
    assert found.stages[1].progress == "no checkpoint yet, starts at step 0"
    assert found.problems[1] == f"{work}/checkpoint-4/optimizer.pt is missing; an earlier checkpoint is resumed"
    (copies / "index" / "vectors-00000.npy").unlink()
    assert inspect(copies / "index").problems == (f"{copies}/index/vectors-00000.npy is missing",)
    (copies / "shards" / "int8" / "part-00001.parquet").unlink()
    assert inspect(copies / "shards" / "int8").state == "damaged"
    (copies / "results" / "sts.test.json").unlink()
    assert inspect(copies / "results").state == "stopped"


def test_other_formats_are_not_called_damaged(copies):
    values = json.loads((copies / "run" / "run.json").read_text())
    (copies / "run" / "run.json").write_text(json.dumps({**values, "format": 9}))
    found = inspect(copies / "run")
    assert found.state == "unreadable" and "this embrew reads format 2" in found.problems[0]


def test_empty_missing_and_locked_folders(tmp_path):
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


def test_a_folder_that_a_process_writes_is_running(copies):
    fork = multiprocessing.get_context("fork")
    ready, end = fork.Event(), fork.Event()
    process = fork.Process(target=hold, args=(copies / "run", ready.set, end.wait))
    process.start()
    try:
        assert ready.wait(30)
        found = inspect(copies / "run")
        assert (found.state, found.commands) == ("running", {})
        assert "training run, running; in stage supervised, step 4 of 6" in said(copies / "run")
    finally:
        end.set()
        process.join()
    assert inspect(copies / "run").state == "stopped"


def test_nothing_is_written_and_torch_is_not_imported(copies):
    before = {path: path.stat().st_mtime_ns for path in copies.rglob("*")}
    names = [str(path) for path in (copies, copies / "run", copies / "sweep", copies / "encoders" / "lora")]
    code = "import sys; from embrew.inspection import inspect\nfor name in sys.argv[1:]: inspect(name)\n"
    code += "heavy = {'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code, *names], check=True)
    assert {path: path.stat().st_mtime_ns for path in copies.rglob("*")} == before


def test_the_command_that_resumes_a_run_is_the_one_that_began_it(model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path, model_folder("llama"))
    data = f"stages.one.data.path={tmp_path}/pairs.jsonl"
    words = ["train", "recipe.yaml", "seed=3", data, "--output", "new"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert inspect("new").state == "finished"
    shutil.rmtree("new/one")  # as if it had been stopped
    found = inspect("new")
    assert found.summary == "before stage one"
    resume = "embrew train recipe.yaml seed=3 stages.one.data.path=pairs.jsonl --output new --resume"
    assert found.commands == {"resume": resume}
    assert str(tmp_path) not in Path("new/run.json").read_text()
    done = CliRunner().invoke(app, resume.split()[1:])
    assert done.exit_code == 0 and inspect("new").state == "finished", done.output
