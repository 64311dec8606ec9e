"""`embrew recipe`: list, show, copy and check recipes; print their JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.syntax import Syntax
from rich.text import Text

from embrew.cli import completion
from embrew.cli.arguments import Overrides, RecipeName
from embrew.cli.console import Record, out, print_line, print_table
from embrew.cli.options import command

app = typer.Typer(no_args_is_help=True)
RecipeOrLaunch = Annotated[str, typer.Argument(metavar="RECIPE", autocompletion=completion.recipes_and_launches)]


@command(app, "list")
def list_() -> Record:
    """List the shipped recipes, the configurations for several GPUs or a cluster, and the sweeps."""
    from embrew.recipe import Recipe, list_launches, list_recipes, read_recipe
    from embrew.settings.yaml_files import list_shipped, read_shipped

    recipes = [
        {
            "name": name,
            "model": Recipe.load(name).encoder.model,
            "description": _headline(read_recipe(name)[0]).partition(":")[0],
        }
        for name in list_recipes()
    ]
    launches = [{"name": name, "description": _headline(read_launch(name))} for name in list_launches()]
    sweeps = [
        {"name": name, "description": _headline(read_shipped("sweeps", name, what="sweep")[0])}
        for name in list_shipped("sweeps")
    ]
    _show("recipe", "method and model", recipes)
    _show("\nlaunch", "\nfor accelerate or Ray Serve (embrew recipe copy NAME)", launches)
    _show("\nsweep", "\nfor embrew train RECIPE --sweep NAME", sweeps)
    return {"recipes": recipes, "launches": launches, "sweeps": sweeps}


def _show(kind: str, about: str, entries: Sequence[Mapping[str, str]]) -> None:
    """Print names and descriptions, each with its model where the description does not name it."""
    rows = []
    for entry in entries:
        model, description = entry.get("model", ""), entry["description"]
        rows.append((entry["name"], Text.assemble(description, ("" if model in description else f" ({model})", "dim"))))
    print_table((kind, about), rows, left=(kind, about), bold=[kind], wraps=[about])


def read_launch(name: str) -> str:
    """Return the YAML text of a shipped configuration of accelerate or of Ray Serve.

    Raises:
        FileNotFoundError: no such configuration.
    """
    from embrew.recipe import list_launches
    from embrew.settings.yaml_files import read_shipped

    return read_shipped("recipes", name, what="configuration", among=list_launches())[0]


def launch_command(name: str, file: str | Path) -> str:
    """Return the command that reads a copy of a launcher configuration."""
    if name == "launch/ray-serve":  # the only one that serves a model; the others are accelerate's, and train
        return f"serve run {quote(str(file))}"
    return f"accelerate launch --config_file {quote(str(file))} -m embrew train RECIPE --output DIR"


def _headline(text: str) -> str:
    """Return the first comment of a YAML file."""
    return text.splitlines()[0].lstrip("# ")


@command(app)
def show(name: RecipeOrLaunch, overrides: Overrides = None, *, resolved: bool = False) -> None:
    """Show a recipe as it was written; with overrides or --resolved, with all defaults filled in.

    Args:
        name: Name of a shipped recipe or launcher configuration, or a YAML file.
        resolved: Fill in all defaults and leave out comments.
    """
    from embrew.recipe import build, list_launches, read_recipe

    if name in list_launches() and not overrides and not resolved:
        text = read_launch(name)
    else:
        recipe = build.load_recipe(name, overrides or ())
        text = recipe.to_yaml() if resolved or overrides else read_recipe(name)[0]
    console = out()
    if console.is_terminal:
        console.print(Syntax(text.rstrip(), "yaml", theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        console.out(text, end="")


@command(app)
def copy(name: RecipeOrLaunch, file: Path | None = None, *, overwrite: bool = False) -> None:
    """Copy a recipe, or a configuration for several GPUs or a cluster, to a file, with its comments.

    Args:
        name: Name of a shipped recipe or launcher configuration, or a YAML file.
        file: File to write; by default the recipe's name with - for /.
        overwrite: Replace FILE if it exists.
    """
    from embrew.files.writing import atomic_path
    from embrew.recipe import list_launches, read_recipe

    launch = name in list_launches()
    text = read_launch(name) if launch else read_recipe(name)[0]
    target = Path(f"{name.replace('/', '-').removesuffix('.yaml')}.yaml") if file is None else file
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; give another file, or --overwrite to replace it")
    with atomic_path(target, overwrite=overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8")
    instruction = (
        f"use it with {launch_command(name, target)}"
        if launch
        else f"train it with embrew train {quote(str(target))} --output DIR"
    )
    print_line(f"{target}: {instruction}")


@command(app)
def check(name: RecipeName, overrides: Overrides = None) -> None:
    """Check a recipe without loading a model: keys, values, objectives, LoRA, optimiser and learning rate schedule."""
    from embrew.recipe import build

    recipe = build.load_recipe(name, overrides or ())
    build.check_recipe(recipe)
    stages = ", ".join(stage.name for stage in recipe.stages) or "no stages"
    print_line(f"{name}: valid ({stages})")


@command(app)
def schema() -> None:
    """Print the JSON schema of recipes, for editors."""
    from embrew.recipe import Recipe
    from embrew.recipe.build.checking import LORA
    from embrew.recipe.build.stages import TRAINING

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}
    definitions, arguments, adapter = schema["$defs"], TRAINING.model_json_schema(), LORA.model_json_schema()
    definitions.update(arguments.pop("$defs"))
    definitions["StageConfig"]["properties"]["training"] = arguments
    definitions["EncoderConfig"]["properties"]["lora"] = {"anyOf": [adapter, {"type": "null"}], "default": None}
    out().out(json.dumps(schema, indent=2))
