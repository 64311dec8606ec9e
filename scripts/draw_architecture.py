"""Draw `docs/images/architecture.svg` from the import rules in `pyproject.toml`: `python scripts/draw_architecture.py`.

A package may import what is below it. Packages on one level do not import each other. The core has a colour of its own.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH, LEFT, BOX, GAP = 860, 20, 34, 10
TOOL, CORE = "#795548", "#b26a00"


def levels(container: str) -> list[list[str]]:
    """The levels of a container's packages from the top to the bottom, as the import linter checks them."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (rule,) = (rule for rule in rules if rule["type"] == "layers" and rule["containers"] == [container])
    there = ROOT / "src" / container.replace(".", "/")
    named = [[name.strip(" ()") for name in layer.split("|")] for layer in rule["layers"]]
    found = [[name for name in level if any(there.glob(f"{name}*"))] for level in named]
    return [[name for name in level if not name.startswith("__")] for level in found if level]


def row(names: list[str], top: int, colours: list[str]) -> list[str]:
    """Boxes of one level, side by side."""
    box = (WIDTH - 2 * LEFT - GAP * (len(names) - 1)) / len(names)
    lines = []
    for i, (name, colour) in enumerate(zip(names, colours, strict=True)):
        x = LEFT + i * (box + GAP)
        lines.append(f'<rect x="{x:.1f}" y="{top}" width="{box:.1f}" height="{BOX}" rx="5" fill="{colour}"/>')
        middle = f'x="{x + box / 2:.1f}" y="{top + BOX / 2 + 5}" text-anchor="middle"'
        lines.append(f'<text {middle} fill="#fff">{escape(name)}</text>')
    return lines


def core() -> set[str]:
    """The packages of the core, as the import linter knows them."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (rule,) = (rule for rule in rules if rule["name"] == "the core imports no tool")
    return {name.removeprefix("embrew.") for name in rule["source_modules"]}


def draw() -> str:
    """Return the picture as SVG."""
    body: list[str] = []
    top, inner = LEFT, core()
    for names in filter(None, levels("embrew")):
        body += row(names, top, [CORE if name in inner else TOOL for name in names])
        top += BOX + GAP
    size = f'viewBox="0 0 {WIDTH} {top + LEFT - GAP}" width="{WIDTH}"'
    style = "text{font:14px system-ui,sans-serif}"
    title = "<title>The packages of embrew: each may import those below it</title>"
    return (
        "\n".join(
            [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', title, f"<style>{style}</style>", *body, "</svg>"]
        )
        + "\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
