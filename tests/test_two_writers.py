"""Two processes write one target at once: the second is refused by name, and what the first wrote stays."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from embrew.cli import app
from embrew.encoder import Encoder
from tests.adapting.test_adapt import write_data
from tests.cli import scene
from tests.killing import content, partial

# Of each verb: the command of the first writer, and that of the second, or what it has in addition: results differ.
VERBS: dict[str, tuple[list[str], list[str]]] = {
    "train": (["train", "recipe.yaml", "-o", "out", "--verify", "off"], ["seed=7"]),
    "merge": (["merge", "encoder", "out", "--verify", "off"], ["--verify", "fast"]),
    "average": (
        ["average", "encoder", "encoder", "-o", "out", "--verify", "off"],
        ["--weights", "0.3,0.7"],
    ),
    "export": (["export", "encoder", "out", "--verify", "off"], ["--dim", "8"]),
    "search --build": (
        ["search", "encoder", "-i", "out", "--build", "beir", "a question"],
        ["--build", "texts.parquet"],
    ),
    "encode": (["encode", "encoder", "beir", "out"], ["--truncate-dim", "8"]),
    "evaluate": (
        ["evaluate", "encoder", "-d", "sts.jsonl.gz", "-o", "out"],
        ["evaluate", "model", "-d", "sts.jsonl.gz", "-o", "out", "--pooling", "mean"],
    ),
    "analyze": (["analyze", "spectrum", "encoder", "-d", "beir", "-o", "out"], ["--seed", "7"]),
    "context add": (["context", "add", "encoder", "new", "--instruction", "One: "], ["--demos", "demos.json"]),
    "data mine": (["data", "mine", "encoder", "pairs.jsonl", "out.jsonl"], ["--num-negatives", "1"]),
    "recipe copy": (["recipe", "copy", "llm2comp/nano", "out.yaml"], []),
    "adapt": (
        [
            "adapt",
            "model",
            "--pairs",
            "pairs.jsonl",
            "-o",
            "out",
            "--quick",
            "--no-export",
            "--method",
            "none",
            "encoder.dtype=float32",
            "adapt.poolings=[mean]",
        ],
        ["--seed", "7"],
    ),
}
TARGETS = {"context add": "encoder/contexts/new", "data mine": "out.jsonl", "recipe copy": "out.yaml"}


@pytest.fixture(scope="module")
def inputs(model_folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("inputs")
    scene.write_small(place, model_folder("llama"))
    shutil.rmtree(place / "docs")
    write_data(place, 20)
    return place


@pytest.fixture
def held(monkeypatch) -> Callable[[Path, Callable[[], Any]], None]:
    """Run a function when a target is about to be written: it is locked, or gets its temporary file or folder."""

    def hold(target: Path, first: Callable[[], Any]) -> None:
        waiting = [first]

        def about(path: Path) -> None:
            if waiting and path in (target, target.parent / f".{target.name}."):
                waiting.pop()()

        def wrapped(original: Any, path_of: Callable[..., Path]) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                about(path_of(*arguments, **options))
                return original(*arguments, **options)

            return call

        def temporary(*_: Any, **options: Any) -> Path:
            return Path(options.get("dir") or "/").absolute() / (options.get("prefix") or "")

        for name in ("mkdtemp", "mkstemp"):
            monkeypatch.setattr(tempfile, name, wrapped(getattr(tempfile, name), temporary))
        locked = wrapped(fcntl.flock, lambda handle, how: Path(f"/proc/self/fd/{handle}").readlink())
        monkeypatch.setattr(fcntl, "flock", locked)

    return hold


@pytest.mark.parametrize("verb", VERBS)
def test_the_second_is_refused(verb, inputs, tmp_path, monkeypatch, held):
    place = tmp_path / "place"
    shutil.copytree(inputs, place)
    monkeypatch.chdir(place)
    command, more = VERBS[verb]
    target = place / TARGETS.get(verb, "out")
    written: list[dict[str, str]] = []

    def first() -> None:
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.stderr
        written.append(content(target))

    if verb in ("evaluate", "analyze"):  # which lock nothing
        encode = Encoder.encode

        def later(self: Encoder, *arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(Encoder, "encode", encode)
            first()
            return encode(self, *arguments, **options)

        monkeypatch.setattr(Encoder, "encode", later)
    else:
        held(target, first)
    second = CliRunner().invoke(app, more if more[:1] == command[:1] else [*command, *more])
    assert written, second.stderr
    assert second.exit_code == 1, second.output
    message = second.stderr.splitlines()[-1]
    assert str(target.relative_to(place)) in second.stderr.replace("\n", ""), second.stderr
    assert content(target) == written[0], message
    assert not partial(place)
