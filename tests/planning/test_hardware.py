"""The hardware that a recipe's header names holds its stages, by the plan."""

from __future__ import annotations

import re

import pytest

from embrew.planning.plan import plan_recipe
from embrew.recipe import Recipe, list_recipes, read_recipe

GPU_OF = {24: "4090", 40: "a100-40", 48: "l40s", 80: "h100", 141: "h200"}
COUNTS = {"one": 1, "four": 4, "eight": 8}
CLAUSE = re.compile(
    r"(?P<count>one|four|eight) (?P<size>\d+) GB GPUs?"
    r"(?: for (?P<stages>[\w, ]+?))?(?: with texts of (?P<tokens>\d+) tokens)?"
)
TRAINED = [
    name for name in list_recipes() if "stages:" in read_recipe(name)[0] and "model: nano" not in read_recipe(name)[0]
]
QUICK = {"ese/minilm"}


def hardware(name: str) -> list[tuple[int, int, int | None, list[str]]]:
    """Number of GPUs, GB of each, tokens of a text and stages: of each clause of a header's line."""
    header = " ".join(line[1:].strip() for line in read_recipe(name)[0].split("\n\n")[0].splitlines())
    (line,) = re.findall(r"Hardware: (.*?)\.(?: |$)", header)
    stages = [stage.name for stage in Recipe.load(name).stages]
    found = []
    for clause in line.split("; "):
        match = CLAUSE.fullmatch(clause)
        assert match, f"{name}: {clause!r}"
        named = match["stages"].split(", ") if match["stages"] else stages
        found.append((COUNTS[match["count"]], int(match["size"]), match["tokens"] and int(match["tokens"]), named))
    assert sorted(stage for *_, named in found for stage in named) == sorted(stages), name
    return found


def test_every_recipe_names_hardware_for_all_its_stages():
    assert len(TRAINED) == 34 and set(TRAINED) > QUICK
    sizes = {size for name in TRAINED for _, size, _, _ in hardware(name)}
    assert sizes == set(GPU_OF)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in TRAINED]
)
def test_the_hardware_of_a_recipe_holds_its_stages(name):
    """Also a smaller GPU does not hold all of them, up to a plan's error of 25 %, or the line asks for too much."""
    needed = []
    for count, size, tokens, stages in hardware(name):
        plan = plan_recipe(Recipe.load(name), gpu=GPU_OF[size], processes=count, tokens=tokens)
        for stage in plan.stages:
            if stage.name in stages:
                assert stage.fits, f"{stage.name}: {stage.bytes['peak'] / 1e9:.1f} GB of {size}"
                needed.append((size, stage.bytes["peak"] / 1e9))
    largest = max(size for size, _ in needed)
    smaller = max((size for size in GPU_OF if size < largest), default=0)
    assert any(1.25 * peak > smaller for size, peak in needed if size == largest)
