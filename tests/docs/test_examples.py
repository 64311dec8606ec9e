"""What README and docs show is run, or at least parsed: an example that is not tested is wrong."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

import embrew
from embrew.cli import app
from embrew.encoder import Encoder
from embrew.recipe import list_recipes

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for i, (kind, code) in enumerate(FENCE.findall(page.read_text())):
            if kind == language:
                yield f"{page.relative_to(ROOT)}:{i}", code


def commands() -> list[tuple[str, list[str]]]:
    """Every `embrew …` line of a shell block, without what the shell itself does to it."""
    found = []
    for place, code in blocks("bash"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition(" #")[0])
            if "embrew" in words and not {"pip", "cd"} & set(words):
                arguments = words[words.index("embrew") + 1 :]
                redirect = next((i for i, word in enumerate(arguments) if word.startswith(">")), len(arguments))
                found.append((place, arguments[:redirect]))
    return found


APP = typer.main.get_command(app)


@pytest.mark.parametrize(("place", "arguments"), commands())
def test_commands_are_understood(place, arguments):
    """Every option and argument shown exists; recipes that are named are shipped."""
    command = APP
    context = command.make_context("embrew", list(arguments), resilient_parsing=False)
    rest = [*context._protected_args, *context.args]
    while rest:
        name, sub, rest = command.resolve_command(context, rest)  # type: ignore[attr-defined]
        context = sub.make_context(name, list(rest), parent=context)
        command = sub
        rest = [*context._protected_args, *context.args] if hasattr(sub, "resolve_command") else []
    for word in arguments:
        if word.startswith(("llm2comp/", "baselines/")):
            assert word in list_recipes(), place


def test_enough_commands_are_found():
    assert len(commands()) >= 20


PYTHON = [
    (place, code)
    for place, code in blocks("python")
    if ("embrew" in code or "SentenceTransformer" in code)
    and "haystack" not in code  # tests/integrations runs it, where it is installed
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """The folders the examples speak of: `out/supervised`, a trained encoder, and `exported`."""
    from embrew import export_encoder

    folder = tmp_path_factory.mktemp("examples")
    encoder = Encoder.from_pretrained("nano", pooling="mean", max_length=64)
    encoder.save_pretrained(folder / "out" / "supervised", verify="off")
    export_encoder(encoder, folder / "exported", verify="off")
    return folder


@pytest.mark.parametrize(("place", "code"), PYTHON, ids=[place for place, _ in PYTHON])
def test_python_runs(place, code, workplace, monkeypatch):
    if "Qwen/" in code or "train(" in code:
        compile(code, place, "exec")
        return
    monkeypatch.chdir(workplace)
    exec(compile(code, place, "exec"), {})


def modules() -> list[str]:
    return [m.name for m in pkgutil.walk_packages(embrew.__path__, "embrew.") if not m.name.endswith("__main__")]


def test_docstrings_show_what_happens():
    attempted = 0
    for name in modules():
        if ">>>" not in Path(str(importlib.util.find_spec(name).origin)).read_text(encoding="utf-8"):
            continue  # importing a module, and doctest's reading of its docstrings, take long
        results = doctest.testmod(importlib.import_module(name))
        assert results.failed == 0, name
        attempted += results.attempted
    assert attempted >= 5
