"""Format numbers: one is read per kind of file, every other is refused in one sentence; unknown keys are ignored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from embrew import inspection, opening
from embrew.analysis.dev_uniformity import evaluation_of
from embrew.cli import app
from embrew.comparison import read_folder
from embrew.corpus import encode_corpus, read_vectors
from embrew.domain.prepare import prepare
from embrew.encoder import Encoder
from embrew.evaluation.paths import read_paths
from embrew.files.checksums import NAME, digest_of, write_checksums
from embrew.files.formats import ENCODER, FORMATS
from embrew.recipe import Recipe
from embrew.search import SearchIndex
from embrew.sweep import read_sweep, run_sweep
from embrew.training.stages import train


@pytest.fixture
def folders(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def encoded() -> None:
    encoder = opening.open_model("encoders/lora")
    encode_corpus(encoder, "data/corpus.jsonl", "shards/int8", precision="int8", shard_rows=8)


class Case(NamedTuple):
    """A kind of file, one of its files, and what reads it."""

    kind: str
    file: str
    read: Callable[[], Any]


CASES = (
    Case("checksums", "encoders/lora/checksums.json", lambda: Encoder.from_pretrained("encoders/lora")),
    Case("encoder", "encoders/lora/embrew.json", lambda: Encoder.from_pretrained("encoders/lora")),
    Case("encoder", "encoders/memory/embrew.json", lambda: opening.open_model("encoders/memory")),
    Case("encoder", "encoders/full/embrew.json", lambda: opening.open_model("encoders/full")),
    Case(
        "context",
        "encoders/contexts/contexts/foxes/context.json",
        lambda: Encoder.from_pretrained("encoders/contexts"),
    ),
    Case("run", "whole/run.json", lambda: Encoder.from_pretrained("whole")),
    Case("run", "run/run.json", lambda: resumed("run.yaml", "run")),
    Case("stage", "whole/supervised/stage.json", lambda: resumed("whole.yaml", "whole")),
    Case("stage", "run/supervised.work/stage.json", lambda: resumed("run.yaml", "run")),
    Case("export", "export/parity.json", lambda: opening.open_model("export")),
    Case("openvino", "export/openvino/encoder.json", lambda: opening.open_model("export", backend="openvino")),
    Case("vectors", "shards/int8/__embrew__/vectors.json", lambda: read_vectors("shards/int8")),
    Case("vectors", "shards/int8/__embrew__/vectors.json", encoded),
    Case("index", "index/manifest.json", searched),
    Case("result", "results/sts.test.run.json", lambda: read_folder("results")),
    Case("sweep", "sweep/sweep.json", swept),
    Case("paths", "results/paths.json", lambda: read_paths(Path("results"))),
    Case("report", "page.files/comparison.json", lambda: inspection.report(Path("page.files"))),
    Case("domain", "domain/manifest.json", lambda: prepare("data/docs", "data/qa.jsonl", Path("domain"))),
)
OTHER = [(case, number) for case in CASES for number in (*range(FORMATS[case.kind].number), "2", None, "newer")]


def named(value: Any) -> str:
    """Name a test."""
    return value.kind if isinstance(value, Case) else str(value)


def change(case: Case, **changes: Any) -> None:
    """Set keys of a JSON file; those of `made_of` where this holds the number. None: remove the key."""
    path = Path(case.file)
    values = json.loads(path.read_text())
    part = values["made_of"] if case.kind == "domain" else values
    part.update(changes)
    for name in [name for name, value in changes.items() if value is None]:
        del part[name]
    if "sha256" in values and case.kind != "checksums":
        values["sha256"] = digest_of({key: value for key, value in values.items() if key != "sha256"})
    path.write_text(json.dumps(values))


def test_every_kind_is_tried() -> None:
    assert {case.kind for case in CASES} == FORMATS.keys()
    assert len(OTHER) > 80


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("case", "number"), OTHER, ids=named)
def test_another_number_is_refused_in_one_sentence(case: Case, number: int | str | None) -> None:
    kind = FORMATS[case.kind]
    number = kind.number + 1 if number == "newer" else number
    change(case, format=number)
    what = "without a format number" if number is None else f"of format {number!r}"
    wanted = f"{kind.what} {what}; this embrew reads format {kind.number}; make it again with this version, or "
    with pytest.raises(
        ValueError, match=rf"^\S*{Path(case.file).name}: {wanted}open it with the embrew that wrote it$"
    ):
        case.read()


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("case", "command"),
    [
        (CASES[1], "evaluate encoders/lora --data data/sts.jsonl"),
        (CASES[1], "merge encoders/lora merged"),
        (CASES[1], "encode encoders/lora data/corpus.jsonl more"),
        (CASES[1], "train whole.yaml --from encoders/lora --output more"),
        (CASES[5], "train whole.yaml --output whole --resume"),
        (CASES[9], "evaluate export --data data/sts.jsonl"),
        (CASES[11], "search encoders/lora words --index shards/int8"),
        (CASES[13], "search encoders/lora words --index index"),
        (CASES[14], "table results"),
        (CASES[14], "evaluate encoders/lora --data data/sts.jsonl --output results"),
    ],
    ids=named,
)
def test_commands_refuse_older_numbers(case: Case, command: str) -> None:
    kind = FORMATS[case.kind]
    change(case, format=kind.number - 1)
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 1
    said = " ".join(done.stderr.split())
    assert f"{kind.what} of format {kind.number - 1}; this embrew reads format {kind.number};" in said


def unverified(case: Case) -> None:
    """Write the checksums of a changed file again."""
    path = Path(case.file)
    if path.name != NAME and (path.parent / NAME).is_file():
        write_checksums(path.parent)


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize("case", [case for case in CASES if case.kind != "openvino"], ids=named)
def test_unknown_keys_are_ignored(case: Case) -> None:
    change(case, **{"of a later version": {"any": ["value"]}})
    unverified(case)
    case.read()


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("case", "inside"), [(CASES[1], "base"), (CASES[1], "pooling"), (CASES[11], "shards")], ids=named
)
def test_unknown_keys_of_what_decides_vectors_are_refused(case: Case, inside: str) -> None:
    part = json.loads(Path(case.file).read_text())[inside]
    (part[0] if inside == "shards" else part)["of a later version"] = 1
    change(case, **{inside: part})
    unverified(case)
    name = Path(case.file).name
    with pytest.raises(ValueError, match=rf"{name} cannot be read: ?.*of a later version|\(.*of a later"):
        case.read()


@pytest.mark.parametrize("number", [0, -1, "5", True, None, [1]])
def test_no_other_value_is_the_number(number: Any) -> None:
    with pytest.raises(ValueError, match=r"^a/b.json: an encoder .*; this embrew reads format 5; make it again"):
        ENCODER.check({"format": number}, Path("a/b.json"))
