"""Commands from functions: arguments, options and help are those of signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
from importlib import import_module
from typing import Any

import pytest
import typer

from embrew.cli import app, encode, serve
from embrew.cli.options import options_of
from tests.cli.test_json import commands

COMMANDS = dict(commands(typer.main.get_command(app)))


def other(**options: Any) -> None:
    """Another command, without which Typer's app is no group."""


@pytest.mark.parametrize(
    ("verb", "module", "name"), [(encode.encode, "corpus.job", "Job"), (serve.serve, "serving.settings", "Settings")]
)
def test_what_is_read_from_source_is_what_the_module_has(verb, module, name):
    """Types and defaults, also those that are names of constants or of types, here or in another module."""
    fields = {field.name: field for field in dataclasses.fields(getattr(import_module(f"embrew.{module}"), name))}
    options = [option for option in inspect.signature(verb).parameters.values() if option.name in fields]
    assert len(options) > 9
    for option in options:
        default = fields[option.name].default if option.name != "model" else inspect.Parameter.empty
        assert option.default == (None if default == () else default)  # an option that may be repeated


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(KeyError, match="no_such"):
        options_of("embrew.corpus.job:Job", "no_such")(other)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_has_a_help_text(name):
    """A sentence of its own, which begins with a capital letter or a name, and ends."""
    assert COMMANDS[name].help
    for parameter in COMMANDS[name].params:
        assert parameter.help and parameter.help.endswith("."), parameter.name
