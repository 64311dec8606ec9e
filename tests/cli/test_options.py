"""Commands from functions: arguments, options and help are those of signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from embrew.cli import app, encode, serve
from embrew.cli.options import command, options_of, read_docstring
from tests.cli.test_json import commands

COMMANDS = dict(commands(typer.main.get_command(app)))


def other(**options: Any) -> None:
    """Another command, without which Typer's app is no group."""


def invoke(function: Any, *arguments: str) -> Any:
    small = typer.Typer()
    command(small, "one")(function)
    command(small)(other)
    return CliRunner().invoke(small, ["one", *arguments], env={"COLUMNS": "120"}, catch_exceptions=False)


def test_a_docstring_is_read():
    text, entries = read_docstring(
        """First line.

        More.

        Args:
            name: what it is,
                over two lines.
            other (DIR): `code` in it.

        Returns:
            nothing: at all.
        """
    )
    assert text == "First line.\n\nMore." and list(entries) == ["name", "other"]
    assert entries["name"] == ("What it is, over two lines.", None)
    assert entries["other"] == ("Code in it.", "DIR")
    assert read_docstring(None) == ("", {})


def test_positional_parameters_are_arguments_and_the_others_options():
    calls = []

    def copy(
        folder: Path, target: Path | None = None, *, dry_run: bool = False, check: bool = True, number: int = 3
    ) -> None:
        """Copy it.

        Args:
            folder (DIR): Folder to copy.
            number (N): How often.
        """
        calls.append((folder, target, dry_run, check, number))

    help_text = invoke(copy, "--help").stdout
    for words in (
        "Copy it.",
        "[TARGET]",
        "DIR",
        "Folder to copy.",
        "--dry-run",
        "--no-check",
        "--number",
        "How often.",
    ):
        assert words in help_text
    assert "Args" not in help_text and "--no-dry-run" not in help_text
    assert (
        invoke(copy, "a").exit_code == invoke(copy, "a", "b", "--dry-run", "--no-check", "--number", "1").exit_code == 0
    )
    assert calls == [(Path("a"), None, False, True, 3), (Path("a"), Path("b"), True, False, 1)]
    assert invoke(copy).exit_code == 2


def test_options_of_a_function_reach_the_command_if_they_are_given():
    calls = []

    def kind(models: Any, *, data: Annotated[str, typer.Option("-d")], size: int | None = None, seed: int = 42) -> None:
        """Measure.

        Args:
            size: Size of it.
        """

    @options_of(kind)
    def analyze(models: list[str], *, output: str | None = None, **options: Any) -> None:
        calls.append((models, output, options))

    assert "Size of it." in invoke(analyze, "--help").stdout
    assert invoke(analyze, "a", "b", "-d", "texts").exit_code == 0
    assert invoke(analyze, "a", "-d", "texts", "--size", "2", "--output", "out").exit_code == 0
    assert calls == [
        (["a", "b"], None, {"data": "texts", "seed": 42}),
        (["a"], "out", {"data": "texts", "size": 2, "seed": 42}),
    ]
    assert invoke(analyze, "a").exit_code == 2


@pytest.mark.parametrize(
    ("verb", "module", "name"), [(encode.encode, "corpus.job", "Job"), (serve.serve, "serving.settings", "Settings")]
)
def test_what_is_read_from_source_is_what_the_module_has(verb, module, name):
    """Types and defaults, also those that are names of constants or of types, here or in another module."""
    fields = {field.name: field for field in dataclasses.fields(getattr(import_module(f"embrew.{module}"), name))}
    options = [option for option in inspect.signature(verb).parameters.values() if option.name in fields]
    assert len(options) > 9
    for option in options:
        assert option.default == (fields[option.name].default if option.name != "model" else inspect.Parameter.empty)


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(KeyError, match="no_such"):
        options_of("embrew.corpus.job:Job", "no_such")(other)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_has_a_help_text(name):
    """A sentence of its own, which begins with a capital letter or a name, and ends."""
    assert COMMANDS[name].help
    for parameter in COMMANDS[name].params:
        assert parameter.help and parameter.help.endswith("."), parameter.name
