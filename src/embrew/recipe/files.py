"""Shipped recipes and recipe files."""

from __future__ import annotations

from pathlib import Path

from embrew.config.shipped import list_shipped, read_shipped

LAUNCH = "launch/"  # folder of configurations of launchers, among the recipes
RAY_SERVE = "launch/ray-serve"  # the only one that serves a model; the others are accelerate's, and train


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return [name for name in list_shipped("recipes") if not name.startswith(LAUNCH)]


def list_launches() -> list[str]:
    """Return the names of the shipped configurations of accelerate and of Ray Serve, such as `launch/fsdp2`."""
    return [name for name in list_shipped("recipes") if name.startswith(LAUNCH)]


def read_recipe(name_or_path: str | Path) -> tuple[str, str]:
    """Return the YAML text of a shipped recipe or of a file, and its source for messages.

    Raises:
        FileNotFoundError: no such recipe or file; the message has the nearest ones.
        ValueError: the name is a launcher configuration, not a recipe.
    """
    if str(name_or_path) in list_launches():
        raise ValueError(
            f"{name_or_path} is a launcher configuration, not a recipe: embrew recipe copy {name_or_path} FILE, then "
            f"{launch_command(str(name_or_path), 'FILE')}"
        )
    return read_shipped("recipes", name_or_path, what="recipe", among=list_recipes())


def read_launch(name: str) -> str:
    """Return the YAML text of a shipped configuration of accelerate or of Ray Serve.

    Raises:
        FileNotFoundError: no such configuration.
    """
    return read_shipped("recipes", name, what="configuration", among=list_launches())[0]


def launch_command(name: str, file: str | Path) -> str:
    """Return the command that reads a copy of a launcher configuration."""
    if name == RAY_SERVE:
        return f"serve run {file}"
    return f"accelerate launch --config_file {file} -m embrew train RECIPE --output DIR"
