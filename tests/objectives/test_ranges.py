"""Every setting of every objective has a range, which holds in recipes and in Python; NaN and infinity never pass."""

from __future__ import annotations

import math
import typing
from dataclasses import fields
from typing import Any

import pytest

from embrew.methods import OBJECTIVES, Contrastive, Objective
from embrew.recipe import build
from tests.objectives.cases import CASES

NEVER = [math.nan, math.inf, -math.inf, "warm", "0.5", True, [1.0]]
RANGES = {name: case.ranges for name, case in CASES.items()}
REQUIRED = {name: case.required for name, case in CASES.items()}
SETTINGS = [(name, key) for name, ranges in RANGES.items() for key in ranges]


def hints(name: str) -> dict[str, Any]:
    """Plain types of an objective's settings."""
    kind = OBJECTIVES[name]
    types = typing.get_type_hints(kind)
    return {field.name: types[field.name] for field in fields(kind)}


def has_numbers(hint: Any) -> bool:
    return hint in (int, float) or any(has_numbers(part) for part in typing.get_args(hint))


def test_every_number_of_every_objective_is_in_the_table():
    assert RANGES.keys() == OBJECTIVES.keys()
    numbers = {(name, key) for name in OBJECTIVES for key, hint in hints(name).items() if has_numbers(hint)}
    assert numbers == set(SETTINGS) and len(numbers) == len(SETTINGS) > len(OBJECTIVES)


def made(name: str, **change: Any) -> Objective:
    return build.objective({"type": name, **REQUIRED[name], **change})


@pytest.mark.parametrize(("name", "key"), SETTINGS)
def test_its_range(name, key):
    allowed, refused = RANGES[name][key]
    for value in allowed:
        assert getattr(made(name, **{key: value}), key) == value
    for value in [*refused, *(wrong for wrong in NEVER if wrong not in allowed)]:
        with pytest.raises(ValueError, match=rf"objective {name}: .*{key}"):
            made(name, **{key: value})
        required = {k: Contrastive() if k == "base" else v for k, v in REQUIRED[name].items()}
        with pytest.raises(ValueError, match=key):  # in Python too
            OBJECTIVES[name](**{**required, key: value})


@pytest.mark.parametrize("name", OBJECTIVES)
def test_switches_and_choices_are_strict(name):
    for key, hint in hints(name).items():
        choice = typing.get_origin(hint) is typing.Literal
        for value in [1, "yes", None] if hint is bool else ["nonsense", 3, None] if choice else []:
            with pytest.raises(ValueError, match=f"objective {name}: {key}="):
                made(name, **{key: value})


def test_a_message_says_where_in_the_recipe():
    block = {"type": "matryoshka", "dims": [4], "base": {"type": "contrastive", "temperature": 0}}
    message = r"^stages\.a\.objective\.base\.temperature=0; allowed: greater than or equal to 0\.0001$"
    with pytest.raises(ValueError, match=message):
        build.objective(block, path=("stages", "a", "objective"))


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"type": "matryoshka", "dims": [4], "base": "contrastive"}, "base='contrastive'; give an objective as a map"),
        ({"type": "matryoshka", "dims": [4], "base": {"temperature": 1}}, "type=None; give an objective's name"),
        ({"type": "matryoshka", "dims": [4]}, "base is missing; it is required"),
        ({"type": "nowhere.to:Be"}, "cannot be imported .No module named 'nowhere'"),
        ({"type": "math:Nothing"}, "cannot be imported .*Nothing"),
        ({"type": "math:pi"}, "is not a dataclass derived from embrew.methods.Objective"),
        ({"type": "contrastive", "scale": math.inf}, "scale=inf; give a number above 0"),
        ({"type": "contrastive", "scale": True}, "scale=True; give a number above 0"),
        ({"type": "compression", "end": True}, "end goes with rows=pairs"),
        ({"type": "angle", "cosine_weight": 0, "in_batch_weight": 0, "angle_weight": 0}, "all weights are 0"),
    ],
)
def test_blocks_that_make_no_objective(block, words):
    with pytest.raises(ValueError, match=words):
        build.objective(block)
