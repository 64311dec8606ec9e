"""Which form of generative learning a domain gets, for how many steps, and the recipe that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from embrew.config.overrides import apply_overrides
from embrew.config.yaml_text import dump_yaml
from embrew.domain.prepare import Prepared
from embrew.files.public_paths import public_path
from embrew.recipe import Recipe
from embrew.recipe.paths import with_paths

BASE = "lbr/medical-nano"
MIN_PAIRS = 500  # training pairs from which on answers are learnt (SFT), not documents (PT); ours
LEARN_EPOCHS, REPRESENT_EPOCHS = 3, 5
MOST_STEPS = (400, 120)
PER_LEARN_STEP = 0.3  # steps of representing for each of learning, where the user says how many; as in the base recipe
Learn = Literal["auto", "pairs", "text", "rest"]


@dataclass(frozen=True)
class Plan:
    """What is trained, and why."""

    recipe: Recipe
    overrides: tuple[str, ...]
    reasons: tuple[str, ...]

    def to_yaml(self, folder: Path) -> str:
        """Return the recipe with the reasons above it.

        Args:
            folder: where the file is; paths below it are written relative to it, others as in any saved recipe.
        """
        lines = ["Learn Before Represent on a domain: written by embrew domain; train it with embrew train.", ""]
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
    """The recipe for prepared data.

    *Learn Before Represent*, section 3.2: with pairs the first stage writes answers to questions (SFT), with documents
    alone it writes the document again (PT: reconstruction, or what follows after a random place). From how many pairs
    on the former is better, the paper does not say; `MIN_PAIRS` is ours.

    Args:
        data: from `prepare`.
        model: `nano`, a folder or Hub id of a causal LM.
        learn: `pairs` (SFT), `text` or `rest` (PT), or `auto`, by the number of training pairs.
        min_pairs: that number.
        steps: of the first stage, the second has 0.3 times as many; default: 3 and 5 passes over the data, 400 and 120
            steps at most.
        overrides: `key.path=value` for the recipe that comes out.

    Raises:
        ValueError: `learn` asks for what the data has not; an override that does not fit; `steps` below 1.
    """
    pairs, passages = data.count("train_pairs"), data.count("train_passages")
    if steps is not None and steps < 1:
        raise ValueError(f"steps={steps}; give 1 or more")
    reasons = []
    if learn == "auto":
        learn = "pairs" if pairs >= min_pairs or not passages else "text"
        why = f"{pairs} training pairs" + (f", {'fewer than' if pairs < min_pairs else 'at least'} {min_pairs}")
        what = {
            "pairs": "answers are learnt from questions (SFT)",
            "text": "documents are learnt by rewriting them (PT)",
        }
        reasons.append(f"learn: {why}: {what[learn]}")
        if learn == "pairs" and pairs < min_pairs:
            reasons[-1] += ", since no document is left to train on"
    if learn == "pairs" and not pairs:
        raise ValueError("learn=pairs, but no pair is left to train on; give more pairs, or learn=text")
    if learn != "pairs" and not passages:
        raise ValueError(f"learn={learn}, but no document is left to train on; give more documents, or learn=pairs")
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
            f"represent: {pairs} pairs are fewer than a batch, so {data.count('made_pairs')} made of passages (first "
            "sentence and rest) join them"
        )
    per_step = first["training"]["per_device_train_batch_size"]
    wanted = (
        min(MOST_STEPS[0], -(-LEARN_EPOCHS * rows // per_step)),
        min(MOST_STEPS[1], -(-REPRESENT_EPOCHS * joint // max(batch, 1))),
    )
    if steps is not None:
        wanted = (steps, max(1, round(PER_LEARN_STEP * steps)))
    for stage, count in zip((first, second), wanted, strict=True):
        warmup = {"warmup_steps": round(0.03 * count)}  # none for a few steps: the first of a warm-up has a rate of 0
        rate = {} if model == "nano" else {"learning_rate": 1e-4}
        stage["training"] |= {"max_steps": max(1, count), **warmup, **rate}
    if batch < 2:
        values["stages"] = [first]
        reasons.append("represent: left out, since there are fewer than two pairs to contrast")
    if data.dev is not None:
        values["evaluation"] = {"dev": [str(data.dev.resolve())]}
    values = apply_overrides(values, overrides)
    recipe = Recipe.from_values(values, source="the recipe of the domain", overrides=overrides)
    return Plan(recipe, tuple(overrides), tuple(reasons))


def untrained(recipe: Recipe, how: Literal["memory", "last", "mean"]) -> Recipe:
    """The recipe's language model as it is, within its limits, read at the memory, the last token or by the mean."""
    values: dict[str, Any] = recipe.resolved()["encoder"]
    if how == "memory":  # without the adapter, whose start is drawn anew each time and changes nothing
        return Recipe.from_values({"encoder": {**values, "lora": None}, "seed": recipe.seed})
    kept = {key: values[key] for key in ("model", "revision", "dtype", "max_length", "trust_remote_code")}
    return Recipe.from_values({"encoder": {**kept, "pooling": {"mode": how}}, "seed": recipe.seed})
