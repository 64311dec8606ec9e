"""Every setting of every objective has a range, which holds in recipes and in Python; NaN and infinity never pass."""

from __future__ import annotations

import math
import typing
from dataclasses import fields
from typing import Any

import pytest

from embrew.methods import OBJECTIVES, Contrastive, Objective
from embrew.recipe import build

NEVER = [math.nan, math.inf, -math.inf, "warm", "0.5", True, [1.0]]
POSITIVE = ([1e-3, 1, 20.0], [0, -1, 0.0, None])
TEMPERATURE = ([1e-4, 1, 20.0, 1e4], [0, -1, 1e-30, 1e30, None])
NOT_NEGATIVE = ([0, 0.0, 0.5, 10], [-1, -1e-9, None])
COUNT = ([1, 2, 6], [0, -1, 1.5, 2.0, None])
COUNT_OR_NONE = ([0, 1], [-1, 1.5, None])
SHARE = ([0, 0.5, 1], [-0.1, 1.1, None])
SPREAD = {"spread_weight": NOT_NEGATIVE}
CONTRASTIVE = {
    **SPREAD,
    "temperature": TEMPERATURE,
    "attention_dropout": ([0, 0.99], [1, 2, -0.1, None]),
    "false_negative_margin": ([None, -2, 0, 0.1, 2], [2.1, -2.1]),
    "false_negative_warmup": SHARE,
    "distillation_weight": NOT_NEGATIVE,
    "distillation_temperature": TEMPERATURE,
}
DIMS = ([[1], [8, 4]], [[], [0], [-4], [4, 4], [4.5], 4, None])
RANGES: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {  # values that are allowed, and some that are not
    "alignment": {"beta": POSITIVE, "temperature": TEMPERATURE},
    "angle": {
        **SPREAD,
        "cosine_weight": NOT_NEGATIVE,
        "in_batch_weight": NOT_NEGATIVE,
        "angle_weight": NOT_NEGATIVE,
        "hard_negative_weight": NOT_NEGATIVE,
        "temperature": TEMPERATURE,
        "angle_temperature": TEMPERATURE,
    },
    "bottleneck": {"min_tokens": COUNT},
    "compression": {
        "min_context_tokens": COUNT_OR_NONE,
        "min_target_tokens": COUNT,
        "nll_weight": NOT_NEGATIVE,
        "skip_rows": COUNT_OR_NONE,
        "held_out": ([0, 2, 64], [1, -1, 1.5, None]),
    },
    "contrastive": CONTRASTIVE,
    "epic": {**CONTRASTIVE, "demonstrations": COUNT_OR_NONE, "plain_weight": NOT_NEGATIVE},
    "embedding_distillation": {
        **SPREAD,
        "fitted": COUNT_OR_NONE,
        "layers": ([None, [1], [2, 1]], [[], [0], [1, 1], [1.5], 1]),
        "dims": ([None, [1], [8, 4]], [[], [0], [4, 4], [4.5], 4]),
        "base_weight": NOT_NEGATIVE,
    },
    "espresso": {
        **SPREAD,
        "compression_size": ([2, 4], [0, -1, 1.5, None]),
        "express_weight": NOT_NEGATIVE,
        "compress_weight": NOT_NEGATIVE,
        "temperature": TEMPERATURE,
    },
    "icl": {**CONTRASTIVE, "demonstrations": COUNT_OR_NONE},
    "joint": {"min_tokens": COUNT, "generative_weight": NOT_NEGATIVE},
    "language_model": {},
    "llama2vec": {"bag_weight": NOT_NEGATIVE, "language_weight": NOT_NEGATIVE},
    "matryoshka": {**SPREAD, "dims": DIMS, "weights": ([None, [1, 0.0]], [[], [-1, 1], [1], [0, 0], [math.nan, 1]])},
    "matryoshka_2d": {
        **SPREAD,
        "dims": ([[8, 4]], DIMS[1]),
        "weights": ([None, [1, 0.0]], [[], [-1, 1], [1], [0, 0], [math.inf, 1]]),
        "layers_per_step": COUNT,
        "dims_per_step": ([None, 0, 1], [-1, 2, 1.5]),
        "last_layer_weight": NOT_NEGATIVE,
        "layer_weight": NOT_NEGATIVE,
        "kl_weight": NOT_NEGATIVE,
        "kl_temperature": TEMPERATURE,
    },
    "mntp": {"mask_probability": ([1e-3, 1], [0, 1.1, -1, None])},
    "sft": {},
}
REQUIRED: dict[str, dict[str, Any]] = {
    "joint": {"base": {"type": "contrastive"}},
    "matryoshka": {"base": {"type": "contrastive"}, "dims": [8, 4]},
    "matryoshka_2d": {"base": {"type": "contrastive"}, "dims": [8, 4]},
}
SETTINGS = [(name, key) for name, ranges in RANGES.items() for key in ranges]


def hints(name: str) -> dict[str, Any]:
    """Plain types of an objective's settings."""
    kind = OBJECTIVES[name]
    found = typing.get_type_hints(kind)
    return {field.name: found[field.name] for field in fields(kind)}


def has_numbers(hint: Any) -> bool:
    return hint in (int, float) or any(has_numbers(part) for part in typing.get_args(hint))


def test_every_number_of_every_objective_is_in_the_table() -> None:
    assert RANGES.keys() == OBJECTIVES.keys()
    numbers = {(name, key) for name in OBJECTIVES for key, hint in hints(name).items() if has_numbers(hint)}
    assert numbers == set(SETTINGS) and len(numbers) == len(SETTINGS) > len(OBJECTIVES)


def made(name: str, **change: Any) -> Objective:
    return build.objective({"type": name, **REQUIRED.get(name, {}), **change})


@pytest.mark.parametrize(("name", "key"), SETTINGS)
def test_its_range(name: str, key: str) -> None:
    allowed, refused = RANGES[name][key]
    for value in allowed:
        assert getattr(made(name, **{key: value}), key) == value
    for value in [*refused, *(one for one in NEVER if one not in allowed)]:
        with pytest.raises(ValueError, match=rf"objective {name}: .*{key}"):
            made(name, **{key: value})
        given = {k: Contrastive() if k == "base" else v for k, v in REQUIRED.get(name, {}).items()}
        with pytest.raises(ValueError, match=key):  # in Python too
            OBJECTIVES[name](**{**given, key: value})


@pytest.mark.parametrize("name", OBJECTIVES)
def test_switches_and_choices_are_strict(name: str) -> None:
    for key, hint in hints(name).items():
        choice = typing.get_origin(hint) is typing.Literal
        for value in [1, "yes", None] if hint is bool else ["nonsense", 3, None] if choice else []:
            with pytest.raises(ValueError, match=f"objective {name}: {key}="):
                made(name, **{key: value})


def test_a_message_says_where_in_the_recipe() -> None:
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
def test_blocks_that_make_no_objective(block: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build.objective(block)
