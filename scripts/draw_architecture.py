"""Draw `docs/images/architecture.svg` from the import rules in `pyproject.toml`: `python scripts/draw_architecture.py`.

A package may import what is below it. Packages on one level do not import each other.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"
WIDTH, LEFT, BOX, GAP = 860, 20, 34, 10
COLOURS = ("#5d4037", "#6d4c41", "#795548", "#8d6e63")
INSIDE = "#b26a00"


def levels(container: str) -> list[list[str]]:
    """The levels of a container's packages from the top to the bottom, as the import linter checks them."""
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (rule,) = (rule for rule in rules if rule["type"] == "layers" and rule["containers"] == [container])
    there = ROOT / "src" / container.replace(".", "/")
    named = [[name.strip(" ()") for name in layer.split("|")] for layer in rule["layers"]]
    found = [[name for name in level if any(there.glob(f"{name}*"))] for level in named]
    return [[name for name in level if not name.startswith("__")] for level in found if level]


def row(names: list[str], top: int, left: int, width: int, colour: str) -> list[str]:
    """Boxes of one level, side by side."""
    box = (width - GAP * (len(names) - 1)) / len(names)
    lines = []
    for i, name in enumerate(names):
        x = left + i * (box + GAP)
        lines.append(f'<rect x="{x:.1f}" y="{top}" width="{box:.1f}" height="{BOX}" rx="5" fill="{colour}"/>')
        middle = f'x="{x + box / 2:.1f}" y="{top + BOX / 2 + 5}" text-anchor="middle"'
        lines.append(f'<text {middle} fill="#fff">{escape(name)}</text>')
    return lines


def draw() -> str:
    """Return the picture as SVG."""
    body: list[str] = []
    top = LEFT
    for number, names in enumerate(level for level in levels("embrew") if level):
        if names != ["modeling"]:
            body += row(names, top, LEFT, WIDTH - 2 * LEFT, COLOURS[number % len(COLOURS)])
            top += BOX + GAP
            continue
        inner = [level for level in levels("embrew.modeling") if level]
        height = len(inner) * (BOX + GAP) + 34
        frame = f'x="{LEFT}" y="{top}" width="{WIDTH - 2 * LEFT}" height="{height}" rx="5"'
        body.append(f'<rect {frame} fill="none" stroke="{INSIDE}" stroke-width="2"/>')
        body.append(f'<text x="{LEFT + 12}" y="{top + 22}" fill="{INSIDE}" font-weight="bold">modeling</text>')
        for i, level in enumerate(inner):
            body += row(level, top + 32 + i * (BOX + GAP), LEFT + 12, WIDTH - 2 * LEFT - 24, INSIDE)
        top += height + GAP
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
