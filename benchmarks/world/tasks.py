"""The controls' data: rows to train on, and tasks with a dev and a test split, all made from the world's facts.

Entities are split once: the first half to train with pairs on, a quarter for dev, a quarter for test.
"""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

from world.choices import Drawn, sample
from world.facts import World
from world.folders import write_retrieval, write_rows
from world.language import description, mention, question, scene, sign, statement, text_of
from world.words import IDENTITY, PRONOUNS

SPLITS = ("train", "dev", "test")


def split_of(world: World) -> dict[str, range]:
    """Return the entities of each split."""
    count = len(world.entities)
    return {"train": range(count // 2), "dev": range(count // 2, 3 * count // 4), "test": range(3 * count // 4, count)}


def fact_pairs(world: World) -> list[tuple[int, int]]:
    """Return all pairs of relations."""
    return list(combinations(range(len(world.relations)), 2))


# ---- same meaning, no shared word ----------------------------------------------------------------------------------


def write_paraphrase(world: World, folder: Path, *, seed: int, texts: int = 12000) -> None:
    """Two facts of an entity in one register look for the same two in the other, which share no word with them.

    Below `folder`: `texts.jsonl`, descriptions as the teacher was trained on; `pairs.jsonl`, paraphrases of the train
    entities; `retrieval`, over all entities; `similarity`, pairs with grades, where shared words mislead.
    """
    rng = random.Random(f"texts {seed}")
    write_rows(
        folder / "texts.jsonl", ({"text": sample(lambda c: description(world, c), rng)[0]} for _ in range(texts))
    )
    splits, facts = split_of(world), fact_pairs(world)
    rows = []
    for entity in splits["train"]:
        for pair in facts:
            for first, order in ((0, pair), (1, pair[::-1])):
                query, positive = text_of(world, entity, order, first), text_of(world, entity, order, 1 - first)
                rows.append({"query": query, "positive": positive})
    random.Random(f"pairs {seed}").shuffle(rows)
    write_rows(folder / "pairs.jsonl", rows)
    name = "e{}-{}{}".format
    corpus = {name(e, *p): text_of(world, e, p, 1) for e in range(len(world.entities)) for p in facts}
    queries = {name(e, *p): text_of(world, e, p, 0) for split in ("dev", "test") for e in splits[split] for p in facts}
    judged = {s: {name(e, *p): [name(e, *p)] for e in splits[s] for p in facts} for s in ("dev", "test")}
    write_retrieval(folder / "retrieval", corpus, queries, judged)
    for split in ("dev", "test"):
        write_rows(folder / "similarity" / f"{split}.jsonl", _graded(world, splits[split], seed))


def _graded(world: World, entities: range, seed: int) -> list[dict[str, object]]:
    """Return pairs from 0 (nothing in common) to 3 (the same facts of the same entity).

    Pairs of grades 2 and 3 share no word; those of grade 1, the same relations of another entity, share the template.
    """
    rng = random.Random(f"graded {seed} {entities}")
    rows = []
    facts = fact_pairs(world)
    for entity in entities:
        for pair in facts:
            other = rng.choice([e for e in entities if e != entity])
            apart = [p for p in facts if not set(p) & set(pair)]
            ours = text_of(world, entity, pair, 0)
            theirs = (
                (3, text_of(world, entity, pair, 1)),
                (2, text_of(world, entity, rng.choice(apart or facts), 1)),
                (1, text_of(world, other, pair, 0)),
                (0, text_of(world, other, rng.choice(apart or facts), 1)),
            )
            rows += [{"sentence1": ours, "sentence2": text, "score": float(grade)} for grade, text in theirs]
    return rows


# ---- a domain with signs -------------------------------------------------------------------------------------------


def write_signs(world: World, folder: Path, *, seed: int) -> None:
    """A sign looks for texts about its entity; the corpus tells all signs, the pairs those of the train entities.

    Below `folder`: `corpus.jsonl`, sign and names of every entity, as query and positive; `texts.jsonl`, both as one
    text; `pairs.jsonl`, signs and texts of the train entities; `retrieval`, signs of the others over the texts of
    all entities; `naming`, signs and the entity's names, to be generated.
    """
    rng = random.Random(f"signs {seed}")
    told = [
        {"query": sign(world, entity), "positive": text}
        for entity in range(len(world.entities))
        for text in mentions(world, entity)
    ]
    rng.shuffle(told)
    write_rows(folder / "corpus.jsonl", told)
    write_rows(folder / "texts.jsonl", ({"text": f"{row['query']} {row['positive']}"} for row in told))
    splits, facts = split_of(world), fact_pairs(world)
    texts = {
        f"e{e}-{a}{b}-{register}": text_of(world, e, (a, b), register)
        for e in range(len(world.entities))
        for a, b in facts
        for register in (0, 1)
    }
    by_entity = {e: [name for name in texts if name.startswith(f"e{e}-")] for e in range(len(world.entities))}
    rows = [{"query": sign(world, e), "positive": texts[name]} for e in splits["train"] for name in by_entity[e]]
    rng.shuffle(rows)
    write_rows(folder / "pairs.jsonl", rows)
    shown = {e: rng.sample(names, 4) for e, names in by_entity.items()}
    judged = {s: {f"s{e}": shown[e] for e in splits[s]} for s in ("dev", "test", "train")}
    asked = {f"s{e}": sign(world, e) for e in range(len(world.entities))}
    write_retrieval(
        folder / "retrieval", {name: texts[name] for names in shown.values() for name in names}, asked, judged
    )
    named = {f"n{e}": mentions(world, e)[2] for e in range(len(world.entities))}
    judged = {s: {f"s{e}": [f"n{e}"] for e in splits[s]} for s in ("dev", "test", "train")}
    write_retrieval(folder / "naming", named, asked, judged)


# ---- one text, several relations -----------------------------------------------------------------------------------


def mentions(world: World, entity: int) -> list[str]:
    """Return texts that name an entity and state no fact of it."""
    name, alias = world.entities[entity].names
    both = [template.format(m=m, v=v) for template in IDENTITY for m, v in ((name, alias), (alias, name))]
    return [f"{name} .", f"{alias} .", *both]


def passage(world: World, relation: int, value: int) -> str:
    """Return the sentence that states a value of a relation, of an entity that it does not name."""
    return world.relations[relation].statements[0].format(m=PRONOUNS[0], v=world.values[relation][value][0])


def passage_of(world: World, entity: int, relation: int) -> str:
    """Return the passage that is true of an entity."""
    return passage(world, relation, world.entities[entity].values[relation])


def write_relations(world: World, folder: Path, *, seed: int, scenes: int = 2) -> None:
    """A text that names an entity looks for a passage that is true of it; which relation is meant, it does not say.

    Below `folder`, per relation: `NAME.jsonl`, texts of the train entities (also after a scene, `scenes` times each)
    with the passage, and one of another relation, true of the same entity, as negative; `NAME`, retrieval over the
    passages of all relations.

    A passage is a sentence and not the value's word alone: after a lone word, the teacher's states do not tell one
    relation from another, and a demonstration that does not show its relation cannot tell which one is meant.
    """
    splits, count = split_of(world), len(world.relations)
    passages = {f"r{r}-{v}": passage(world, r, v) for r, values in enumerate(world.values) for v in range(len(values))}
    for r, relation in enumerate(world.relations):
        rng = random.Random(f"relations {seed} {r}")
        rows = []
        for entity in splits["train"]:
            others = [passage_of(world, entity, o) for o in range(count) if o != r]
            for text in mentions(world, entity):
                shown = [scene(world, entity, Drawn(rng)) for _ in range(scenes)]
                for query in (text, *(f"{before} {text}" for before in shown)):
                    positive, negatives = passage_of(world, entity, r), [rng.choice(others)] if others else []
                    rows.append({"query": query, "positive": positive, "negatives": negatives})
        rng.shuffle(rows)
        write_rows(folder / f"{relation.name}.jsonl", rows)
        queries = {f"e{e}-{i}": text for e in range(len(world.entities)) for i, text in enumerate(mentions(world, e))}
        judged = {
            s: {
                f"e{e}-{i}": [f"r{r}-{world.entities[e].values[r]}"]
                for e in splits[s]
                for i in range(len(mentions(world, e)))
            }
            for s in ("dev", "test")
        }
        write_retrieval(folder / relation.name, passages, queries, judged)


# ---- what follows from a text --------------------------------------------------------------------------------------


def write_following(world: World, folder: Path, *, seed: int) -> None:
    """A fact of an entity looks for another fact of it, in other words; the negative is true of another entity.

    Below `folder`: `questions.jsonl`, a fact as context, a question about the entity, the answer; `triplets.jsonl`, of
    the train entities; `retrieval`, facts of the others over other facts of all entities.
    """
    rng = random.Random(f"following {seed}")
    splits, relations = split_of(world), range(len(world.relations))

    def fact(entity: int, relation: int, register: int) -> str:
        return statement(world, entity, relation, register, mention(world, entity, register), register)

    def following(entities: range) -> list[tuple[int, int, int]]:
        return [(e, a, b) for e in entities for a in relations for b in relations if a != b]

    asked = []
    for entity in range(len(world.entities)):
        for known in relations:
            for wanted in relations:
                register, word = rng.randrange(2), rng.randrange(2)
                context = fact(entity, known, rng.randrange(2))
                answer = statement(world, entity, wanted, register, PRONOUNS[register], word)
                ask = question(world, wanted, register, PRONOUNS[register])
                asked.append({"context": context, "instruction": ask, "target": answer})
    rng.shuffle(asked)
    write_rows(folder / "questions.jsonl", asked)
    rows = []
    for entity, a, b in following(splits["train"]):
        for register in (0, 1):
            values = [world.entities[e].values[b] for e in range(len(world.entities))]
            others = [e for e in splits["train"] if values[e] != values[entity]]
            anchor, positive = fact(entity, a, register), fact(entity, b, 1 - register)
            rows.append({"anchor": anchor, "positive": positive, "negative": fact(rng.choice(others), b, 1 - register)})
    rng.shuffle(rows)
    write_rows(folder / "triplets.jsonl", rows)
    corpus = {f"e{e}-{b}": fact(e, b, 1) for e in range(len(world.entities)) for b in relations}
    queries = {f"e{e}-{a}": fact(e, a, 0) for s in ("dev", "test") for e in splits[s] for a in relations}
    judged = {
        s: {f"e{e}-{a}": [f"e{e}-{b}" for b in relations if b != a] for e in splits[s] for a in relations}
        for s in ("dev", "test")
    }
    write_retrieval(folder / "retrieval", corpus, queries, judged)
