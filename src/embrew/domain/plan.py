"""The training plan of a domain: the form of generative learning, numbers of steps, and the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from embrew.assembly.stages import objective_keys
from embrew.config.overrides import apply_overrides
from embrew.config.yaml_files import dump_yaml
from embrew.domain.prepare import Prepared
from embrew.files.names import public_path
from embrew.recipe import Recipe
from embrew.recipe.paths import with_paths

BASE = "lbr/medical-nano"
MIN_PAIRS = 500  # training pairs from which the first stage learns answers (SFT), not documents (PT); our choice
LEARN_EPOCHS, REPRESENT_EPOCHS = 3, 5
MOST_STEPS = (400, 120)
PER_LEARN_STEP = 0.3  # steps of the second stage per step of the first, if the user sets `steps`; as in the base recipe
Learn = Literal["auto", "pairs", "text", "rest"]


@dataclass(frozen=True)
class Plan:
    """The recipe of a domain, and the reasons for its choices."""

    recipe: Recipe
    overrides: tuple[str, ...]
    reasons: tuple[str, ...]

    def to_yaml(self, folder: Path) -> str:
        """Return the recipe as YAML, with the reasons as comments.

        Args:
            folder: of the file; paths below it are written relative to it, others as in any saved recipe.
        """
        lines = ["Learn Before Represent on a domain: written by embrew domain. Train it with embrew train.", ""]
        text = "\n".join(f"# {line}".rstrip() for line in [*lines, *self.reasons])
        here = f"{folder.resolve()}/"
        values = with_paths(
            self.recipe.model_dump(mode="json", exclude_defaults=True),
            lambda path: path.removeprefix(here) if path.startswith(here) else public_path(path),
        )
        return f"{text}\n\n{dump_yaml(values)}"


def plan(
    data: Prepared,
    *,
    model: str = "nano",
    learn: Learn = "auto",
    min_pairs: int = MIN_PAIRS,
    steps: int | None = None,
    overrides: Sequence[str] = (),
) -> Plan:
    """Return the plan for prepared data.

    *Learn Before Represent*, section 3.2: with pairs, the first stage generates answers to questions (SFT); with
    documents alone, it generates the document (PT: reconstruction, or the continuation from a random position). The
    paper does not say from how many pairs SFT is better; `MIN_PAIRS` is our choice.

    Args:
        data: from `prepare`.
        model: `nano`, a folder or Hub id of a causal LM.
        learn: `pairs` (SFT), `text` or `rest` (PT), or `auto`, by the number of training pairs.
        min_pairs: number of training pairs from which `auto` is `pairs`.
        steps: steps of the first stage, the second has 0.3 times as many; default: 3 and 5 epochs, at most 400 and 120
            steps.
        overrides: `key.path=value` for the resulting recipe.

    Raises:
        ValueError: no data for `learn`; an invalid override; `steps` below 1.
    """
    pairs, passages = data.count("train_pairs"), data.count("train_passages")
    if steps is not None and steps < 1:
        raise ValueError(f"steps={steps}; give 1 or more")
    reasons = []
    if learn == "auto":
        learn = "pairs" if pairs >= min_pairs or not passages else "text"
        why = f"{pairs} training pairs" + (f", {'fewer than' if pairs < min_pairs else 'at least'} {min_pairs}")
        what = {
            "pairs": "the first stage generates answers to questions (SFT)",
            "text": "the first stage reconstructs documents (PT)",
        }
        reasons.append(f"learn: {why}: {what[learn]}")
        if learn == "pairs" and pairs < min_pairs:
            reasons[-1] += ", since there is no document to train on"
    if learn == "pairs" and not pairs:
        raise ValueError("learn=pairs, but there is no pair to train on; give more pairs, or learn=text")
    if learn != "pairs" and not passages:
        raise ValueError(f"learn={learn}, but there is no document to train on; give more documents, or learn=pairs")
    values = Recipe.load(BASE).resolved()
    values["encoder"]["model"] = model
    if model != "nano":
        values["encoder"]["lora"] |= {"target_modules": "all-linear"}
        values["encoder"]["max_length"] = {"query": 512, "document": 512}
    first, second = values["stages"]
    rows = pairs if learn == "pairs" else passages
    if learn == "pairs":
        first["objective"] = {"type": "bottleneck", "target": "positive"}
        first["data"] = {"path": str(data.pairs.resolve()), "where": {"made": False}}
    else:
        first["objective"] = {"type": "bottleneck", "target": learn}
        first["data"] = {"path": str(data.passages.resolve())}
    joint = pairs + data.count("made_pairs")
    batch = min(second["batch"]["size"], joint)
    second["data"] = {"path": str(data.pairs.resolve())}
    second["batch"] = {"size": batch}
    if data.count("made_pairs"):
        reasons.append(
            f"represent: {pairs} pairs are fewer than a batch, so {data.count('made_pairs')} pairs from passages "
            "(first sentence and rest) are added"
        )
    per_step = first["training"]["per_device_train_batch_size"]
    wanted = (
        min(MOST_STEPS[0], -(-LEARN_EPOCHS * rows // per_step)),
        min(MOST_STEPS[1], -(-REPRESENT_EPOCHS * joint // max(batch, 1))),
    )
    if steps is not None:
        wanted = (steps, max(1, round(PER_LEARN_STEP * steps)))
    for stage, count in zip((first, second), wanted, strict=True):
        warmup = {
            "warmup_steps": round(0.03 * count)
        }  # 0 for a few steps, since the first step of a warm-up has a learning rate of 0
        rate = {} if model == "nano" else {"learning_rate": 1e-4}
        stage["training"] |= {"max_steps": max(1, count), **warmup, **rate}
    if batch < 2:
        values["stages"] = [first]
        reasons.append("represent: left out, since contrastive learning needs two pairs")
    if data.dev is not None:
        values["evaluation"] = {"dev": [str(data.dev.resolve())]}
    values = apply_overrides(values, overrides, objective_keys)
    recipe = Recipe.from_values(values, source="the recipe of the domain", overrides=overrides)
    return Plan(recipe, tuple(overrides), tuple(reasons))


def untrained(recipe: Recipe, how: Literal["memory", "last", "mean"]) -> Recipe:
    """Return the recipe's untrained encoder with memory, last-token or mean pooling, and the same maximum lengths."""
    values: dict[str, Any] = recipe.resolved()["encoder"]
    if how == "memory":  # without the adapter, whose random initialisation has no effect
        return Recipe.from_values({"encoder": {**values, "lora": None}, "seed": recipe.seed})
    kept = {key: values[key] for key in ("model", "revision", "dtype", "max_length", "trust_remote_code")}
    return Recipe.from_values({"encoder": {**kept, "pooling": {"mode": how}}, "seed": recipe.seed})
