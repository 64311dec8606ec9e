"""What demonstrations tell an encoder: right ones, shuffled ones, those of another relation, and none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from embrew.evaluation import evaluate, find_task
from embrew.evaluation.task import Task
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration
from world.facts import World
from world.tasks import mentions, passage, passage_of, split_of

CONDITIONS = ("none", "right", "shuffled", "foreign")
SHOWN = 5  # demonstrations


def demonstrations(world: World, relation: int, condition: str, *, seed: int) -> tuple[Demonstration, ...]:
    """Return demonstrations for a relation, of train entities with different values; none for `none`.

    `right`: texts that name an entity, with the passages of its values. `shuffled`: the same, each text with the
    passage of the one before. `foreign`: right ones for the next relation.
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
    entities = list(chosen.values())[:SHOWN]
    texts, passages = zip(
        *((rng.choice(mentions(world, e)), passage_of(world, e, meant)) for e in entities), strict=True
    )
    if condition == "shuffled":
        passages = passages[-1:] + passages[:-1]
    return tuple(map(Demonstration, texts, passages))


def between(encoder: Any, groups: Sequence[Sequence[str]]) -> float:
    """Return the share of the variance of texts' embeddings that lies between groups of texts, 0 to 1.

    For random vectors it is about (groups − 1) / (texts − 1).
    """
    made = torch.as_tensor(encoder.encode([text for group in groups for text in group])).double()
    of = torch.tensor([number for number, group in enumerate(groups) for _ in group])
    centred = made - made.mean(0)
    means = torch.stack([centred[of == number].mean(0) for number in range(len(groups))])
    return float(means[of].square().sum() / centred.square().sum())


def between_relations(encoder: Any, world: World, *, alone: bool = False) -> float:
    """Return how much of the variance of passages' embeddings lies between relations; of lone words, if `alone`."""
    texts = [
        [f"{pair[0]} ." if alone else passage(world, r, v) for v, pair in enumerate(values)]
        for r, values in enumerate(world.values)
    ]
    return between(encoder, texts)


def accuracies(encoder: Any, world: World, folder: Path, *, split: str, seed: int) -> dict[str, float]:
    """Return, by condition, the share of texts whose nearest passage is the one that is meant, over all relations.

    `followed` is the share of `foreign` whose nearest passage is that of the relation that was shown in its place;
    `between relations` is how much of the variance of passages' embeddings lies there.
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
            found[condition] += [top == _value(world, query, r) for query, top in nearest]
            if condition == "foreign":
                found["followed"] += [top == _value(world, query, shown_in_its_place) for query, top in nearest]
    shares = {name: sum(hits) / len(hits) for name, hits in found.items()}
    return {**shares, "between relations": between_relations(encoder, world)}


def _nearest(encoder: Any, task: Task, context: str | None) -> Sequence[tuple[str, str]]:
    """Return ids of queries, each with the id of the nearest passage."""
    (result,) = evaluate(encoder, [task], context=context, batch_tokens=2048)
    return [(query, top[0]) for query, top in zip(result.examples["query"], result.examples["top"], strict=True)]


def _value(world: World, query: str, relation: int) -> str:
    """Return the id of the passage that is right for a query's entity."""
    entity = int(query.removeprefix("e").partition("-")[0])
    return f"r{relation}-{world.entities[entity].values[relation]}"
