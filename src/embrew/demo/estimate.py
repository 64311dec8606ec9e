"""How long the demonstration takes on this machine: a short measurement, corrected by what each part took."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embrew.recipe import Recipe

# Costs in steps of `measure`, by the time of two runs; those of training by optimiser step and stage.
PARTS = {"data": 124.0, "before": 67.0, "training": 87.0, "after": 160.0, "export": 65.0, "search": 63.0}
TRAINING_STEP = {"compress": 2.4, "unsupervised": 4.6, "supervised": 7.6}
OTHER_STEP = 4.0


def measure(steps: int = 3) -> float:
    """Return the seconds of one training step of 8 texts of 96 tokens, the shipped model's weights all trained."""
    from embrew.encoder import Encoder

    encoder = Encoder.from_pretrained("nano", device="cpu", dtype="float32", pooling="mean")
    encoder.backbone.train_all()
    tokens = encoder.tokens([" ".join(["Words of a text that is as long as a docstring."] * 12)] * 8, max_length=96)
    encoder(tokens).sum().backward()  # the first one allocates
    began = time.perf_counter()
    for _ in range(steps):
        encoder(tokens).sum().backward()
    return (time.perf_counter() - began) / steps


def costs(recipe: Recipe, output: Path, share: float = 1.0) -> dict[str, float]:
    """Return the cost of each part, in steps of `measure`, without what an earlier run has finished in `output`.

    Args:
        recipe: what is trained.
        output: folder of the demonstration.
        share: of the recipe's steps.
    """
    found = dict(PARTS)
    if (output / "data").exists():
        found["data"] = 0.0
    for stage in recipe.stages:
        if not (output / "model" / stage.name / "embrew.json").is_file():
            steps = stage.training.get("max_steps", 100)
            found["training"] += share * steps * TRAINING_STEP.get(stage.name, OTHER_STEP)
    return found


class Estimate:
    """The time that is left.

    Args:
        step: seconds of one step of `measure`.
        costs: of each part, in such steps.
    """

    def __init__(self, step: float, costs: Mapping[str, float]) -> None:
        self.step, self.costs = step, dict(costs)

    @property
    def minutes(self) -> float:
        """Minutes that the parts that are left take."""
        return sum(self.costs.values()) * self.step / 60

    def __str__(self) -> str:
        return "less than a minute" if self.minutes < 1 else f"about {self.minutes:.0f} min"

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part; what it took corrects the seconds of a step, the more the larger a share of the rest it was."""
        began = time.perf_counter()
        yield
        cost, total = self.costs.pop(name), sum(self.costs.values())
        if cost:
            weight = cost / (cost + total)
            self.step += weight * ((time.perf_counter() - began) / cost - self.step)
