"""`embrew recipe`: list, show, copy and check recipes; print their JSON schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.syntax import Syntax
from rich.table import Table

from embrew.cli.arguments import Overrides
from embrew.cli.console import out

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name or a YAML file.")]


@app.command("list")
def list_() -> None:
    """List the shipped recipes, the configurations for several GPUs, and the sweeps."""
    from embrew.config.shipped import list_shipped, read_shipped
    from embrew.recipe import Recipe, list_launches, list_recipes, read_launch, read_recipe

    table = Table(box=None, pad_edge=False)
    for column in ("recipe", "model", "what it is"):
        table.add_column(column, no_wrap=column in ("recipe", "model"))
    for name in list_recipes():
        recipe = Recipe.load(name)
        headline = read_recipe(name)[0].partition(":")[0].lstrip("# ")
        table.add_row(f"[bold]{escape(name)}[/]", escape(recipe.encoder.model), escape(headline))
    out().print(table)
    launches = Table(box=None, pad_edge=False)
    for column in ("launch", "for accelerate launch --config_file (embrew recipe copy NAME)"):
        launches.add_column(column, no_wrap=column == "launch")
    for name in list_launches():
        launches.add_row(f"[bold]{escape(name)}[/]", escape(read_launch(name).splitlines()[0].lstrip("# ")))
    sweeps = Table(box=None, pad_edge=False)
    for column in ("sweep", "for embrew train RECIPE --sweep NAME"):
        sweeps.add_column(column, no_wrap=column == "sweep")
    for name in list_shipped("sweeps"):
        text, _ = read_shipped("sweeps", name, what="sweep")
        sweeps.add_row(f"[bold]{escape(name)}[/]", escape(text.splitlines()[0].lstrip("# ")))
    for shown in (launches, sweeps):
        out().print()
        out().print(shown)


@app.command()
def show(
    name: Name,
    overrides: Overrides = None,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="With every default filled in, without comments.")
    ] = False,
) -> None:
    """Show a recipe as it was written, or resolved (always so with overrides)."""
    from embrew.recipe import Recipe, list_launches, read_launch, read_recipe

    if name in list_launches() and not overrides and not resolved:
        text = read_launch(name)
    else:
        recipe = Recipe.load(name, overrides or ())
        text = recipe.to_yaml() if resolved or overrides else read_recipe(name)[0]
    console = out()
    if console.is_terminal:
        console.print(Syntax(text.rstrip(), "yaml", theme="ansi_dark", background_color="default", word_wrap=True))
    else:
        console.out(text, end="")


@app.command()
def copy(
    name: Name,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="By default the recipe's own name.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it is there.")] = False,
) -> None:
    """Copy a recipe, or a configuration for several GPUs, with its comments, to edit it."""
    from embrew.recipe import list_launches, read_launch, read_recipe

    launch = name in list_launches()
    text = read_launch(name) if launch else read_recipe(name)[0]
    target = Path(f"{name.replace('/', '-').removesuffix('.yaml')}.yaml") if file is None else file
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} exists; give another file, or --overwrite to replace it")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    use = f"accelerate launch --config_file {target} -m embrew train RECIPE" if launch else f"embrew train {target}"
    out().print(f"{target}: train {'' if launch else 'it '}with {use} --output DIR", markup=False, soft_wrap=True)


@app.command()
def check(name: Name, overrides: Overrides = None) -> None:
    """Check a recipe without loading a model: keys, values, objectives, LoRA, optimiser and learning rate schedule."""
    from embrew.recipe import Recipe

    recipe = Recipe.load(name, overrides or ())
    from embrew import build

    build.check_recipe(recipe)
    stages = ", ".join(stage.name for stage in recipe.stages) or "no stages"
    out().print(f"{name}: fine ({stages})", markup=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of recipes, for editors."""
    from embrew.recipe import Recipe

    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Recipe.model_json_schema()}
    out().out(json.dumps(schema, indent=2))
