"""Shipped recipes and recipe files."""

from __future__ import annotations

from pathlib import Path

from embrew.config.shipped import list_shipped, read_shipped

LAUNCH = "launch/"  # folder of accelerate's configurations, among the recipes


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return [name for name in list_shipped("recipes") if not name.startswith(LAUNCH)]


def list_launches() -> list[str]:
    """Return the names of the shipped configurations of accelerate's launcher, such as `launch/fsdp2`."""
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
            "accelerate launch --config_file FILE -m embrew train RECIPE --output DIR"
        )
    return read_shipped("recipes", name_or_path, what="recipe", among=list_recipes())


def read_launch(name: str) -> str:
    """Return the YAML text of a shipped configuration of accelerate's launcher.

    Raises:
        FileNotFoundError: no such configuration.
    """
    return read_shipped("recipes", name, what="configuration", among=list_launches())[0]
