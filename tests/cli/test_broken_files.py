"""Every file that a verb opens, damaged: one line that names it, no traceback."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.scene import DAMAGES, ask, damaged, write_rest, write_small


class Verb(NamedTuple):
    """A command, the folder of the files that it reads, and these."""

    arguments: str
    folder: str
    files: str

    @property
    def cases(self) -> list[tuple[str, str, str]]:
        """Command, file, damage."""
        files = [f"{self.folder}/{name}".removeprefix("./") for name in self.files.split()]
        return [(self.arguments, file, how) for file in files for how in DAMAGES if (file, how) not in FINE]


ENCODER = "embrew.json tokenizer.json tokenizer_config.json memory.safetensors adapters/0/adapter_model.safetensors "
ENCODER += "adapters/0/adapter_config.json base/config.json base/model.safetensors "
CONTEXT = "contexts/task/context.json contexts/task/vectors.safetensors"
MERGED = "weights/config.json weights/model.safetensors"
EXPORT = "modules.json config.json model.safetensors tokenizer.json tokenizer_config.json"
RESULT = "sts.test.json sts.test.run.json sts.test.examples.json"
INDEX = "manifest.json rows.npy vectors-00000.npy documents-00000.arrow"
ADD = "context add encoder other --instruction x --demos"
STS = "--data sts.jsonl.gz --kind sts"

QUICK = (
    Verb("context list encoder", "encoder", f"embrew.json {CONTEXT}"),
    Verb("context list run", "run", "run.json"),
    Verb("table results", "results", RESULT),
    Verb("diff results results-2", "results", RESULT),
    Verb("analyze efficiency run", "run", "run.json"),
    Verb("recipe check recipe.yaml", ".", "recipe.yaml"),
    Verb("table results --suite suite.yaml", ".", "suite.yaml"),
    Verb(f"{ADD} demos.json", ".", "demos.json"),
    Verb(f"{ADD} demos.csv", ".", "demos.csv"),
)
REST = (
    Verb(f"evaluate encoder {STS}", "encoder", ENCODER + CONTEXT),
    Verb(f"evaluate encoder {STS}", ".", "sts.jsonl.gz"),
    Verb(f"evaluate merged {STS}", "merged", MERGED),
    Verb(f"evaluate export {STS}", "export", EXPORT),
    Verb(f"evaluate model {STS} --pooling mean", "model", EXPORT.removeprefix("modules.json ")),
    Verb("evaluate encoder --data beir", "beir", "qrels/test.tsv corpus.jsonl queries.jsonl"),
    Verb("evaluate encoder --suite suite.yaml --data .", ".", "suite.yaml"),
    Verb("merge encoder out --verify off", "encoder", ENCODER + CONTEXT),
    Verb("merge run out --verify off", "run", "run.json"),
    Verb("export merged out --verify off", "merged", MERGED),
    Verb("analyze spectrum encoder --data texts.parquet", ".", "texts.parquet"),
    Verb("data mine encoder pairs.jsonl out/mined.jsonl", ".", "pairs.jsonl encoder/embrew.json"),
    Verb("data show recipe.yaml", ".", "pairs.jsonl recipe.yaml"),
    Verb("train recipe.yaml -o out", ".", "pairs.jsonl recipe.yaml model/config.json model/tokenizer.json"),
    Verb("train recipe.yaml -o out --from plain", "plain", "embrew.json tokenizer.json base/model.safetensors"),
    Verb("adapt model --docs docs -o out --pairs pairs.jsonl", ".", "pairs.jsonl model/config.json"),
    Verb("adapt model --docs docs -o made", "made", "data/manifest.json"),
    Verb("search plain question --index index", "index", INDEX),
    Verb("encode encoder texts.parquet out", ".", "texts.parquet"),
)
FINE = {(f"results/{RESULT.split()[2]}", how) for how in ("no_keys", "folder")}
"""Damage after which a verb works: there are no intervals without this file."""
ELSEWHERE = {
    "results/sts.test.run.json": "results",  # it is what makes the other file a result
    "beir/corpus.jsonl": "beir",
    "beir/queries.jsonl": "beir",
    "beir/qrels/test.tsv": "qrels",
    "made/data/manifest.json": "made",
    "encoder/base/model.safetensors": "encoder/base",  # other weights, by their sha256
    "plain/base/model.safetensors": "plain/base",
}
"""What is named where a file is a folder, or holds nothing at all."""
CASES = [case for verb in QUICK for case in verb.cases]
MORE = [case for verb in REST for case in verb.cases if case[2] == "truncated"]


@pytest.fixture(scope="module")
def small(model_folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("scene")
    write_small(place, model_folder("llama"))
    return place


@pytest.fixture(scope="module")
def scene(small) -> Path:
    write_rest(small)
    return small


def check(place: Path, command: str, file: str, how: str) -> None:
    with damaged(place / file, how):
        done = ask(place, *command.split())
    assert isinstance(done.exception, SystemExit), (done.exception, done.output)
    assert done.exit_code == 1, done.output
    said = done.stderr.splitlines()
    (error,) = [line for line in said if line.startswith("error: ")]
    where = [file, Path(file).name, *([ELSEWHERE[file]] if file in ELSEWHERE else [])]
    assert any(name in error for name in where), error
    assert error == said[-1] or "no column for" in error or "is required" in error, done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("command", "file", "how"), CASES)
def test_one_line(command, file, how, small):
    check(small, command, file, how)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "file", "how"), MORE)
def test_one_line_of_every_verb(command, file, how, scene):
    check(scene, command, file, how)


def test_every_file_and_damage_is_there():
    assert (len(DAMAGES), len(CASES), len(MORE)) == (4, 56, 59)


@pytest.mark.slow
def test_whole_files_are_no_error(scene):
    """The same commands succeed, so that it is the damage that each of them names."""
    for command in {verb.arguments for verb in (*QUICK, *REST)} - {"adapt model --docs docs -o made"}:
        done = ask(scene, *command.split())
        assert done.exit_code == 0, (command, done.output)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root, who may read everything, is another user in this block."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission(small):
    """In a folder outside pytest's, which only its owner may enter."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name) / "scene"
        shutil.copytree(small, place)
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o755)
        for command, file in sorted({(command, file) for command, file, _ in CASES}):
            (place / file).chmod(0)
            with unprivileged():
                done = ask(place, *command.split())
            (place / file).chmod(0o644)
            assert done.exit_code == 1, (command, file, done.output)
            assert done.stderr.splitlines()[-1].startswith("error: "), done.stderr
            assert f"{file}: Permission denied" in done.stderr, (command, file, done.stderr)
