"""Every file that embrew writes, damaged in every way: noticed when it is opened, or harmless for a stated reason."""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.files.checksums import NAME, Damaged, read_checksums
from embrew.model.contexts import Context
from embrew.opening import open_model
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from embrew.storage import parts
from embrew.storage.parts import LOOKED_UP
from tests.conftest import SENTENCES, stir

HARMLESS = {"README.md": "the card, for readers; users may edit it, and no program reads it"}
FILES = {"encoder": 19, "full weights": 10, "export": 15}  # with checksums.json and README.md


class Written:
    """What embrew writes, by kind; made when it is first asked for."""

    def __init__(self, root: Path, base: Path) -> None:
        self.root, self.base = root, base

    def __getitem__(self, kind: str) -> Path:
        return self.of(kind, seed=2)

    def twin(self, kind: str) -> Path:
        """The same with other weights: what files are swapped with."""
        return self.of(kind, seed=9)

    def of(self, kind: str, *, seed: int) -> Path:
        """The folder of a kind."""
        place = self.root / f"{kind} {seed}"
        if place.exists():
            return place
        encoder = Encoder.from_pretrained(
            self.base,
            device="cpu",
            memory_tokens=2,
            template="{instruction}{text}{memory}",
            pooling=Pooling("mean", "memory"),
            demonstrations=Demonstrations(),
            seed=seed,
        )
        encoder.backbone.add_lora({"r": 4})
        stir(encoder.backbone, seed=seed)
        if kind == "full weights":
            encoder.merge_adapter()
            encoder.backbone.train_all()
        else:
            encoder.add_context("task", Context(f"Find {seed}: ", (Demonstration("fox", SENTENCES[seed % 4]),)))
        if kind == "export":
            export_encoder(encoder, place, verify="off")
        else:
            of_training = {"recipe.yaml": f"seed: {seed}\n", "training.json": json.dumps({"seed": seed})}
            encoder.save_pretrained(place, extra=of_training if kind == "encoder" else {}, verify="off")
        return place


@pytest.fixture(scope="module")
def folders(tmp_path_factory, model_folder) -> Written:
    return Written(tmp_path_factory.mktemp("written"), model_folder("llama"))


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write(path: Path, content: bytes) -> None:
    path.unlink()  # weights are hard links
    path.write_bytes(content)


def flip(path: Path, twin: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    write(path, bytes(content))


def swap(path: Path, twin: Path) -> None:
    """The file of the same name of another encoder; where it is equal, another file."""
    others = [twin, *sorted(other for place in (path, twin) for other in place.parent.parent.rglob("*.*"))]
    contents = (other.read_bytes() for other in others if other.is_file())
    write(path, next(content for content in contents if content != path.read_bytes()))


DAMAGE: dict[str, Callable[[Path, Path], None]] = {
    "flipped bit": flip,
    "truncated": lambda path, _: write(path, path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path, _: write(path, b""),
    "missing": lambda path, _: path.unlink(),
    "swapped": swap,
}


def vectors(folder: Path) -> np.ndarray:
    return np.asarray(open_model(str(folder)).encode(SENTENCES[:2]))


SAMPLE = (("encoder", "flipped bit"), ("encoder", "missing"))  # of the default run


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param(*case, marks=() if case in SAMPLE else pytest.mark.slow)
        for case in [(kind, damage) for kind in FILES for damage in DAMAGE]
    ],
)
def test_every_damaged_file_is_noticed(kind, damage, folders, tmp_path, caplog):
    """One line that names the file. Without checksums 19 of 205 such cases gave other vectors, by up to 0.67."""
    source = folders[kind]
    names = files_of(source)
    assert len(names) == FILES[kind], names
    listed = {f"{place}{name}" for place in ("", "contexts/task/") for name in read_checksums(source / place) or ()}
    assert listed | {f"{place}{NAME}" for place in ("", "contexts/task/")} >= {*names} - {*HARMLESS}
    folder, wanted = shutil.copytree(source, tmp_path / "model"), vectors(source)
    for name in names:
        DAMAGE[damage](folder / name, (folders.twin(kind) if damage == "swapped" else source) / name)
        if name in HARMLESS:
            np.testing.assert_array_equal(vectors(folder), wanted)
        elif name.endswith(NAME) and damage == "missing":
            caplog.clear()
            np.testing.assert_array_equal(vectors(folder), wanted)
            assert f"{(folder / name).parent} has no {NAME}, so damage to its files is not detected" in caplog.text
        else:
            with pytest.raises(Damaged) as error:
                vectors(folder)
            said = str(error.value)
            assert "\n" not in said and str(folder) in said and (Path(name).name in said), (name, said)
        shutil.copyfile(source / name, folder / name)
    assert vectors(folder).shape == (2, 32), "all is as it was"


VERBS = [
    ["encode", "MODEL", "TEXTS", "OUT"],
    ["context", "list", "MODEL"],
    ["evaluate", "MODEL", "--data", "STS", "--output", "OUT"],
    ["search", "MODEL", "--build", "TEXTS", "--index", "OUT", "one"],
    ["export", "MODEL", "OUT"],
    ["merge", "MODEL", "OUT"],
    ["context", "add", "MODEL", "more", "--instruction", "x"],
    ["train", "llm2comp/nano", "--from", "MODEL", "--output", "OUT", "evaluation=null"],
]


@pytest.mark.parametrize(
    ("name", "command"),
    [pytest.param("tokenizer.json", verb, marks=pytest.mark.slow if verb not in VERBS[:2] else ()) for verb in VERBS],
)
def test_every_verb_says_so_in_one_line(name, command, folders, tmp_path):
    shutil.copytree(folders["encoder"], tmp_path / "MODEL")
    flip(tmp_path / "MODEL" / name, Path())
    (tmp_path / "texts.jsonl").write_text('{"_id": "1", "text": "one"}\n')
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "test.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "score": 1}\n' * 3)
    places = {"MODEL": "MODEL", "TEXTS": "texts.jsonl", "OUT": "OUT", "STS": "sts"}
    arguments = [str(tmp_path / places[word]) if word in places else word for word in command]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 1, result.output
    said = [line for line in result.stderr.splitlines() if line.startswith("error")]
    assert len(said) == 1 and f"{name} has changed" in said[0], result.stderr
    assert not (tmp_path / "OUT").exists() or not any((tmp_path / "OUT").rglob("*.safetensors"))


IGNORED = {
    "sentence_*_config.json": "the first of these names that is there counts, and sentence_bert_config.json is",
    "router_config.json": "read by a module for routes, which no export has",
    "wordembedding_config.json": "read by a module for word embeddings, which no export has",
    "*.bin": "pickled weights are never read",
    "*.bin.index.json": "likewise",
    "adapter_model.safetensors": "without adapter_config.json, which may not be added, there is no adapter",
    "chat_template.jinja": "texts are never rendered through a chat template",
    "additional_chat_templates": "likewise",
    "recipe.yaml": "what the encoder was trained with, for its card and for saving again",
    "training.json": "likewise",
    "README.md": HARMLESS["README.md"],
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if kind != "encoder" else ()) for kind in FILES]
)
def test_every_name_that_is_looked_for_is_listed_or_refused(kind, folders, monkeypatch):
    """Recorded while transformers, peft and Sentence-Transformers open the folder."""
    folder, seen = folders[kind], set()

    def recording(function: Callable) -> Callable:
        def called(path, *args, **options):  # type: ignore[no-untyped-def]
            if isinstance(path, str | os.PathLike) and str(path).startswith(f"{folder}/"):
                seen.add(Path(path).relative_to(folder).as_posix())
            return function(path, *args, **options)

        return called

    for module, name in ((os, "stat"), (builtins, "open"), (io, "open"), (os, "listdir"), (os, "scandir")):
        monkeypatch.setattr(module, name, recording(getattr(module, name)))
    vectors(folder)
    monkeypatch.undo()
    found = {name for name in seen if not (folder / name).is_dir()}
    known = {*files_of(folder)}
    assert len(found & known) >= FILES[kind] - 2, "the recording works"
    unknown = {Path(name).name for name in found - known if name.split("/")[0] not in ("contexts", "base", "adapters")}
    unknown |= {Path(name).name for name in found - known if name.startswith("base/")}
    open_to = [name for name in unknown - LOOKED_UP if not any(fnmatch(name, pattern) for pattern in IGNORED)]
    assert not open_to, "a loader looks for these files, and nothing refuses them when they are added"
    assert len(unknown) >= 5


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", '{"qu": 299, "fox": 298}'),
        ("special_tokens_map.json", '{"additional_special_tokens": ["fox"], "bos_token": "</s>"}'),
    ],
)
def test_an_added_file_would_change_vectors_and_is_refused(name, content, folders, tmp_path):
    folder = shutil.copytree(folders["encoder"], tmp_path / "model")
    (folder / name).write_text(content)
    with pytest.raises(Damaged, match=f"{name} was added"):
        vectors(folder)
    (folder / NAME).unlink()
    assert np.abs(vectors(folder) - vectors(folders["encoder"])).max() > 0.01


def test_folders_without_checksums_open_and_say_so_once(folders, tmp_path, caplog):
    folder = shutil.copytree(folders["encoder"], tmp_path / "model")
    for path in folder.rglob(NAME):
        path.unlink()
    for _ in range(3):
        vectors(folder)
    said = [record.getMessage() for record in caplog.records if "damage" in record.getMessage()]
    assert len(said) == 1 and "\n" not in said[0] and "is not detected; save it again" in said[0]
    encoder = Encoder.from_pretrained(folder, device="cpu")
    encoder.card_facts = None
    encoder.save_pretrained(tmp_path / "again")
    assert read_checksums(tmp_path / "again") and read_checksums(tmp_path / "again" / "contexts" / "task")


@pytest.fixture(autouse=True)
def _warn_again() -> None:
    parts._warn_unverified.cache_clear()
