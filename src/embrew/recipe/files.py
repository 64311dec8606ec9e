"""Recipes that are shipped, and those in files."""

from __future__ import annotations

from pathlib import Path

from embrew.config.shipped import list_shipped, read_shipped

LAUNCH = "launch/"  # accelerate's configurations, in a folder beside the recipes


def list_recipes() -> list[str]:
    """Names of the shipped recipes."""
    return [name for name in list_shipped("recipes") if not name.startswith(LAUNCH)]


def list_launches() -> list[str]:
    """Names of the configurations of accelerate's launcher that are shipped beside the recipes (`launch/fsdp2`)."""
    return [name for name in list_shipped("recipes") if name.startswith(LAUNCH)]


def read_recipe(name_or_path: str | Path) -> tuple[str, str]:
    """The YAML text of a shipped recipe or of a file, and the words that say where it is from.

    Raises:
        FileNotFoundError: no such recipe or file; names the nearest.
        ValueError: it says how to launch, not what to train.
    """
    if str(name_or_path) in list_launches():
        raise ValueError(
            f"{name_or_path} says how to launch, not what to train: embrew recipe copy {name_or_path} FILE, then "
            "accelerate launch --config_file FILE -m embrew train RECIPE --output DIR"
        )
    return read_shipped("recipes", name_or_path, what="recipe", among=list_recipes())


def read_launch(name: str) -> str:
    """The YAML text of a shipped configuration of accelerate's launcher.

    Raises:
        FileNotFoundError: no such configuration.
    """
    return read_shipped("recipes", name, what="configuration", among=list_launches())[0]
