"""Every verb with files and folders whose names YAML, a shell, a glob, a URL or an option would read otherwise."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from embrew import adapt
from embrew.adapting.starts import start_name
from embrew.cli import app
from embrew.recipe import Recipe
from tests.adapting.test_adapt import TINY, write_data
from tests.cli import scene

NAMES = [
    *("x #y", "123", "null", "[z]", "*st", "a: b", " lead", "trail ", "./~", "true", "1e3", "{a}", '"q"', "'q'"),
    *("- x", "x=y", "%41", "&a", "!t", "日本", "?", "a,b", "|", "@c", "`d`", "$e", "<f>", "s::t", "{path: x}"),
]
AS_TRAINED = (
    "encoder.model=../model",
    'encoder.template="{instruction}{text}{memory}"',
    "encoder.memory_tokens=2",
    "encoder.pooling={mode: mean, over: memory}",
    "encoder.max_length={query: 32, document: 32}",
    "encoder.demonstrations={compress: none}",
)


def named(key: str, name: str) -> str:
    """An override as a user writes it, whose value YAML reads as that text."""
    return f"{key}={json.dumps(name, ensure_ascii=False)}"


# A verb's inputs, and its command. The command gets a name for each input, and one for what it writes.
VERBS: dict[str, tuple[tuple[str, ...], Callable[..., list[str]]]] = {
    "adapt": (
        ("model", "pairs", "docs"),
        lambda model, pairs, docs, out: [
            *("adapt", "--quick", "--no-export", "--pairs", pairs, "--docs", docs, "-o", out, "--", model),
            *("adapt.poolings=[mean]", "encoder.dtype=float32", *TINY),
        ],
    ),
    "train": (
        ("model", "pairs"),
        lambda model, pairs, out: [
            *("train", "-o", out, "--", "../recipe.yaml", named("encoder.model", model)),
            named("stages.one.data.path", pairs),
        ],
    ),
    "train --from": (
        ("encoder",),
        lambda encoder, out: ["train", "-o", out, "--from", encoder, "--", "../recipe.yaml", *AS_TRAINED],
    ),
    "evaluate": (
        ("encoder", "beir"),
        lambda encoder, beir, out: ["evaluate", "-d", beir, "-o", out, "--", encoder],
    ),
    "encode": (("encoder", "beir"), lambda encoder, beir, out: ["encode", "--", encoder, beir, out]),
    "search": (
        ("encoder", "beir"),
        lambda encoder, beir, out: ["search", "-i", out, "--build", beir, "--", encoder, "a question"],
    ),
    "export": (("encoder",), lambda encoder, out: ["export", "--verify", "off", "--", encoder, out]),
    "merge": (("encoder",), lambda encoder, out: ["merge", "--verify", "off", "--", encoder, out]),
    "average": (
        ("encoder", "encoder"),
        lambda one, other, out: ["average", "--verify", "off", "-o", out, "--", one, other],
    ),
    "analyze": (
        ("encoder", "beir"),
        lambda encoder, texts, out: ["analyze", "spectrum", "-d", texts, "-o", out, "--", encoder],
    ),
    "compare": (
        ("results", "results"),
        lambda one, other, out: ["compare", "-o", f"{out}.html", "--", one, f"other={other}"],
    ),
    "table": (
        ("results", "results"),
        lambda one, other, out: ["table", "-o", f"{out}.md", "--", one, f"other={other}"],
    ),
    "diff": (("results", "results"), lambda one, other, out: ["diff", "--", one, other]),
    "plan": (
        ("model", "pairs"),
        lambda model, pairs, out: [
            *("plan", "--", "../recipe.yaml", named("encoder.model", model)),
            named("stages.one.data.path", pairs),
        ],
    ),
    "plan --texts": (("model",), lambda model, out: ["plan", "--texts", "1e6", "--", model]),
    "runs": (("run",), lambda run, out: ["runs", "--", run]),
    "parity": (("encoder", "encoder"), lambda one, other, out: ["parity", "--against", other, "--", one]),
    "context add": (
        ("encoder",),
        lambda encoder, out: ["context", "add", "--instruction", "x", "--", encoder, "other"],
    ),
    "data show": (
        ("model", "pairs"),
        lambda model, pairs, out: [
            *("data", "show", "--", "../recipe.yaml", named("encoder.model", model)),
            named("stages.one.data.path", pairs),
        ],
    ),
    "data mine": (
        ("encoder", "pairs", "beir"),
        lambda encoder, pairs, beir, out: ["data", "mine", "--corpus", beir, "--", encoder, pairs, f"{out}.jsonl"],
    ),
    "recipe copy": ((), lambda out: ["recipe", "copy", "--", "baselines/mean", f"{out}.yaml"]),
    "into-space": (
        ("model", "encoder", "queries", "index"),
        lambda model, teacher, queries, index, out: [
            *("into-space", "--teacher", teacher, "--queries", queries, "--index", index, "-o", out, "--", model),
            *("encoder.dtype=float32", "stages.distill.training.max_steps=1", "stages.distill.training.use_cpu=true"),
        ],
    ),
}


@pytest.fixture(scope="module")
def inputs(model_folder, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("inputs")
    scene.write_small(place, model_folder("llama"))
    shutil.rmtree(place / "docs")
    _, pairs = write_data(place)
    (place / "queries").mkdir()
    rows = [{"text": f"question {number}"} for number in range(30)]
    (place / "queries" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = scene.ask(place, "search", "encoder", "a question", "--index", "index", "--build", "beir")
    assert done.exit_code == 0, done.stderr
    (place / "pairs").mkdir()
    pairs.rename(place / "pairs" / "train.jsonl")
    return place


WRITING = set(VERBS) - {"diff", "plan", "plan --texts", "runs", "parity", "context add", "data show"}
RUNS = [
    pytest.param(verb, first, marks=pytest.mark.slow if first else []) for verb in VERBS for first in range(len(NAMES))
]


@pytest.mark.parametrize(("verb", "first"), RUNS)
def test_names_are_taken_as_they_are(verb, first, inputs, tmp_path, monkeypatch):
    """The verb succeeds, and writes under the name that it was given, nothing else."""
    monkeypatch.setattr("embrew.report.page._vega", lambda: "")  # takes seconds to make, and no chart is shown
    kinds, words = VERBS[verb]
    place, home = tmp_path / "here", tmp_path / "home"
    place.mkdir()
    home.mkdir()
    (tmp_path / "recipe.yaml").write_text(scene.RECIPE)
    (tmp_path / "model").symlink_to(inputs / "model")
    (tmp_path / "pairs.jsonl").symlink_to(inputs / "pairs" / "train.jsonl")
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(home))
    number = list(VERBS).index(verb)
    names = [NAMES[(first + number + i) % len(NAMES)] for i in range(len(kinds) + 1)]
    for kind, name in zip(kinds, names, strict=False):
        shutil.copytree(inputs / kind, name)
    result = CliRunner().invoke(app, words(*names))
    assert result.exit_code == 0, (names, result.stderr)
    *given, out = (Path(name).name for name in names)
    written = {path.name for path in place.iterdir()} - set(given)
    assert all(name == out or name.startswith(f"{out}.") for name in written), (names, written)
    assert bool(written) == (verb in WRITING), names
    assert {path.name for path in tmp_path.iterdir()} == {"here", "home", "model", "pairs.jsonl", "recipe.yaml"}
    assert not list(home.glob("[!.]*"))


@pytest.mark.parametrize("name", NAMES)
def test_a_command_that_is_shown_gives_the_same_value(name, monkeypatch):
    """Pasted into a shell, which splits it into words; an override is then read as YAML."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="2 processes; adapt runs in one") as caught:
        adapt(name, output=name, pairs="pairs.jsonl")
    shown = str(caught.value).partition("accelerate launch -m ")[2]
    *start, recipe, override, output, folder = shlex.split(shown)
    assert start == ["embrew", "train"]
    assert recipe == f"{name}/recipes/{start_name(name)}--contrast.yaml"
    assert (output, folder) == ("--output", "DIR")
    assert Recipe.load("baselines/mean", [override]).encoder.model == name
