"""What demonstrations tell an encoder: right ones, shuffled ones, those of another relation, and none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embrew.evaluation import evaluate, find_task
from embrew.evaluation.task import Task
from embrew.modeling.prompting.contexts import Context
from embrew.modeling.settings.demonstrations import Demonstration
from world.facts import World
from world.tasks import mentions, split_of

CONDITIONS = ("none", "right", "shuffled", "foreign")
SHOWN = 5  # demonstrations


def demonstrations(world: World, relation: int, condition: str, *, seed: int) -> tuple[Demonstration, ...]:
    """Return demonstrations for a relation, of train entities with different values; none for `none`.

    `right`: texts that name an entity, with the words of its values. `shuffled`: the same, each text with the word of
    the one before. `foreign`: the same texts with words of the next relation.
    """
    if condition == "none":
        return ()
    if condition not in CONDITIONS:
        raise ValueError(f"condition={condition!r}; choose from {', '.join(CONDITIONS)}")
    meant = (relation + (condition == "foreign")) % len(world.relations)
    rng = random.Random(f"demonstrations {seed} {relation}")
    entities = list(split_of(world)["train"])
    rng.shuffle(entities)
    chosen: dict[int, int] = {}
    for entity in entities:  # different values, so that shuffled pairs are wrong
        chosen.setdefault(world.entities[entity].values[meant], entity)
    pairs = [(rng.choice(mentions(world, e)), f"{world.value(e, meant, 0)} .") for e in list(chosen.values())[:SHOWN]]
    words = [word for _, word in pairs]
    if condition == "shuffled":
        words = words[-1:] + words[:-1]
    return tuple(Demonstration(text, word) for (text, _), word in zip(pairs, words, strict=True))


def accuracies(encoder: Any, world: World, folder: Path, *, split: str, seed: int) -> dict[str, float]:
    """Return, by condition, the share of texts whose nearest word is the value that is meant, over all relations.

    `followed` is the share of `foreign` whose nearest word is the value of the relation that was shown in its place.
    """
    found: dict[str, list[bool]] = {name: [] for name in (*CONDITIONS, "followed")}
    for r, relation in enumerate(world.relations):
        task = find_task(folder / relation.name, split=split)
        shown_in_its_place = (r + 1) % len(world.relations)
        for condition in CONDITIONS:
            name = f"{relation.name}-{condition}"
            if condition != "none":
                encoder.add_context(name, Context("", demonstrations(world, r, condition, seed=seed)))
            nearest = _nearest(encoder, task, None if condition == "none" else name)
            found[condition] += [word == _value(world, query, r) for query, word in nearest]
            if condition == "foreign":
                found["followed"] += [word == _value(world, query, shown_in_its_place) for query, word in nearest]
    return {name: sum(hits) / len(hits) for name, hits in found.items()}


def _nearest(encoder: Any, task: Task, context: str | None) -> Sequence[tuple[str, str]]:
    """Return ids of queries, each with the id of the nearest word."""
    (result,) = evaluate(encoder, [task], context=context, batch_tokens=2048)
    return [(query, top[0]) for query, top in zip(result.examples["query"], result.examples["top"], strict=True)]


def _value(world: World, query: str, relation: int) -> str:
    """Return the id of the word that is right for a query's entity."""
    entity = int(query.removeprefix("e").partition("-")[0])
    return f"r{relation}-{world.entities[entity].values[relation]}"
