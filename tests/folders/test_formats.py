"""Format numbers: a newer one is refused with one sentence for all kinds of file, unknown keys are ignored."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embrew import build
from embrew.comparison import read_folder
from embrew.corpus import read_vectors
from embrew.data.documents import Document
from embrew.domain.prepare import prepare
from embrew.files.checksums import check_files, digest_of, write_checksums
from embrew.files.formats import DOMAIN, FORMATS, REPORT, Format, say_missing
from embrew.files.writing import write_json
from embrew.inspection import artifacts
from embrew.modeling.encoder import Encoder
from embrew.modeling.storage.context_files import read_contexts
from embrew.modeling.storage.opening import final_stage
from embrew.recipe import Recipe
from embrew.search import SearchIndex
from embrew.sweep import read_sweep, run_sweep
from embrew.training.stages import train
from tests.folders.conftest import Folders


class Letters:
    """An encoder of two dimensions."""

    prompts: dict[str, str] = {}  # noqa: RUF012

    def weights_hash(self) -> str:
        return "letters"

    def encode_document(self, inputs: list[str], **_: Any) -> Any:
        import numpy as np

        return np.array([[1.0, len(text)] for text in inputs], dtype=np.float32)


def checked() -> Path:
    Path("checked").mkdir(exist_ok=True)
    Path("checked/file").write_text("content")
    write_checksums(Path("checked"))
    return Path("checked/checksums.json")


def prepared() -> Path:
    prepare("data/docs", "data/qa.jsonl", Path("now"))
    return Path("now/manifest.json")


def index() -> Path:
    SearchIndex.build(Letters(), [Document(id="a", text="one")]).save("letters")
    return Path("letters/manifest.json")


def exported(folder: str) -> None:
    """What `embrew domain` does when it comes to an export that is there."""
    encoder, domain = build.open_model("encoders/lora"), sys.modules["embrew.domain.run"]  # a function is named so too
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain, "export_encoder", lambda *_, **__: None)
        domain._export(encoder, Path(folder))


def swept() -> None:
    rows = read_sweep("sweep.yaml", "whole.yaml", ["encoder.lora={r: 1, lora_alpha: 2}"])
    run_sweep(rows, "sweep", resume=True)


def reported() -> Path:
    """What a report keeps beside its page, as of now: earlier versions wrote none."""
    folder = Path("page.files")
    folder.mkdir()
    write_json(
        folder / REPORT.file, {"page": "page.html", "models": ["a"], "command": "embrew compare", "finished": True}
    )
    return folder / REPORT.file


KINDS: dict[str, tuple[str | Callable[[], Path], Callable[[], Any]]] = {
    "checksums": (checked, lambda: check_files(Path("checked"))),
    "encoder": ("encoders/lora/embrew.json", lambda: Encoder.from_pretrained("encoders/lora")),
    "context": ("encoders/contexts/contexts/foxes/context.json", lambda: read_contexts(Path("encoders/contexts"))),
    "run": ("whole/run.json", lambda: final_stage(Path("whole"))),
    "stage": ("whole/supervised/stage.json", lambda: train(Recipe.load("whole.yaml"), "whole", resume=True)),
    "export": ("export/parity.json", lambda: exported("export")),
    "vectors": ("shards/float32/embrew-vectors.json", lambda: read_vectors("shards/float32")),
    "index": (index, lambda: SearchIndex.load("letters", Letters())),
    "result": ("results/sts.test.run.json", lambda: read_folder("results")),
    "sweep": ("sweep/sweep.json", swept),
    "report": (reported, lambda: artifacts.report(Path("page.files"))),
    "domain": (prepared, lambda: prepare("data/docs", "data/qa.jsonl", Path("now"))),
}


def change(path: Path, kind: str, **changes: Any) -> None:
    """Set keys of a JSON file; those of `made_of` where this holds the number."""
    values = json.loads(path.read_text())
    (values["made_of"] if kind == "domain" else values).update(changes)
    if kind == "index":  # a later version would count its keys in too
        values["sha256"] = digest_of({key: value for key, value in values.items() if key != "sha256"})
    path.write_text(json.dumps(values))


def test_every_kind_is_tried() -> None:
    assert KINDS.keys() == FORMATS.keys()


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize("kind", FORMATS)
def test_a_newer_number_is_refused_by_name(kind: str) -> None:
    found, read = KINDS[kind]
    path = found if isinstance(found, Path) else Path(found) if isinstance(found, str) else found()
    newer = FORMATS[kind].newest + 1
    change(path, kind, format=newer)
    reads = " and ".join(str(number) for number in FORMATS[kind].reads)
    plural = "s" if len(FORMATS[kind].reads) > 1 else ""
    said = rf"{path.name} has format {newer}; this embrew reads format{plural} {reads}; update embrew$"
    with pytest.raises(ValueError, match=said):
        read()


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in ("sweep", "stage") else []) for kind in FORMATS]
)
def test_unknown_keys_are_ignored(kind: str) -> None:
    """So a new key, without which older versions are right, needs no new number."""
    found, read = KINDS[kind]
    path = found if isinstance(found, Path) else Path(found) if isinstance(found, str) else found()
    change(path, kind, **{"of a later version": {"any": ["value"]}})
    read()


@pytest.mark.usefixtures("old")
@pytest.mark.parametrize(("kind", "inside"), [("encoder", "base"), ("encoder", "pooling"), ("vectors", "shards")])
def test_unknown_keys_of_what_decides_vectors_are_refused(kind: str, inside: str) -> None:
    found, read = KINDS[kind]
    assert isinstance(found, str)
    part = json.loads(Path(found).read_text())[inside]
    (part[0] if inside == "shards" else part)["of a later version"] = 1
    change(Path(found), kind, **{inside: part})
    with pytest.raises(ValueError, match=rf"{Path(found).name} cannot be read: ?.*of a later version|\(.*of a later"):
        read()


@pytest.mark.parametrize("number", [0, -1, "1", 1.0, True, None, [1]])
def test_a_number_that_no_embrew_wrote_is_damage(number: Any) -> None:
    with pytest.raises(ValueError, match=r"^a/b.json is damaged: its format is .*; copy it again"):
        Format("b.json").check({"format": number}, Path("a/b.json"))


@pytest.mark.parametrize("values", [None, [], "text", 3])
def test_another_kind_of_json_is_damage(values: Any) -> None:
    with pytest.raises(ValueError, match="a/b.json is damaged: it holds no JSON object"):
        Format("b.json").check(values, "a/b.json")


def test_numbers_below_those_that_are_read() -> None:
    assert Format("b.json").check({}, "b.json") == 1, "no number is number 1"
    with pytest.raises(
        ValueError, match="manifest.json has format 1, of an earlier embrew; this embrew reads format 3; "
    ):
        DOMAIN.check({}, "manifest.json")


def test_what_an_older_folder_lacks_is_said_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            say_missing(tmp_path / "a", "without something")
        say_missing(tmp_path / "b", "without something")
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / name} was written by an earlier embrew, without something" for name in "ab"
    ]


def test_an_index_says_once_that_it_lacks_a_hash(old: Folders, caplog: pytest.LogCaptureFixture) -> None:
    manifest = json.loads(Path("index/manifest.json").read_text())
    assert "tokenizer_sha256" not in manifest
    encoder = build.open_model("encoders/lora")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            SearchIndex.load(old.path / "index", encoder)
    assert caplog.text.count("index was written by an earlier embrew, without the tokenizer's hash") == 1


def test_checksums_of_a_newer_version_are_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    write_checksums(tmp_path)
    values = json.loads((tmp_path / "checksums.json").read_text())
    assert values["sha256"] == digest_of(values["files"])
    (tmp_path / "checksums.json").write_text(json.dumps({**values, "format": 2, "files": {}}))
    with pytest.raises(ValueError, match="update embrew"):
        check_files(tmp_path)
