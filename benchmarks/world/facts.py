"""The world: entities with a name, an alias, values, a topic and a sign; drawn once, from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from world.words import RELATIONS, Relation, made_up, template_words


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large a world is.

    Attributes:
        entities: number of entities.
        relations: number of relations, the first of `RELATIONS`.
        values: number of values of each relation; each has two words.
        topics: number of topics.
        nouns: number of nouns per topic.
        verbs: number of verbs per topic.
        adjectives: number of adjectives, which all topics share.
    """

    entities: int = 64
    relations: int = 5
    values: int = 8
    topics: int = 4
    nouns: int = 6
    verbs: int = 4
    adjectives: int = 8


@dataclass(frozen=True)
class Topic:
    """Words that scenes of a topic draw from."""

    nouns: tuple[str, ...]
    verbs: tuple[str, ...]


@dataclass(frozen=True)
class Entity:
    """What is true of an entity.

    Attributes:
        names: its name and its alias.
        values: the index of its value by relation.
        topic: the index of its topic.
        sign: adjective and noun. Only the domain corpus says whose sign it is, never the teacher's.
    """

    names: tuple[str, str]
    values: tuple[int, ...]
    topic: int
    sign: tuple[str, str]


@dataclass(frozen=True)
class World:
    """All that there is to know.

    Attributes:
        values: the two words of each value, by relation.
    """

    sizes: Sizes
    seed: int
    entities: tuple[Entity, ...]
    values: tuple[tuple[tuple[str, str], ...], ...]
    topics: tuple[Topic, ...]
    adjectives: tuple[str, ...]
    relations: tuple[Relation, ...] = field(default=RELATIONS)

    def value(self, entity: int, relation: int, register: int) -> str:
        """Return the word for an entity's value of a relation in a register."""
        return self.values[relation][self.entities[entity].values[relation]][register]

    def vocabulary(self) -> list[str]:
        """Return every word of the language once."""
        words = template_words()
        words += [name for entity in self.entities for name in entity.names]
        words += [word for values in self.values for pair in values for word in pair]
        words += [word for topic in self.topics for word in (*topic.nouns, *topic.verbs)]
        return [*words, *self.adjectives]


def make_world(seed: int = 0, sizes: Sizes | None = None) -> World:
    """Return the world of a seed.

    Raises:
        ValueError: more relations than are written down, or more entities than signs.
    """
    sizes = sizes or Sizes()
    if not 1 <= sizes.relations <= len(RELATIONS):
        raise ValueError(f"relations={sizes.relations}; choose from 1 to {len(RELATIONS)}")
    signs = sizes.adjectives * sizes.topics * sizes.nouns
    if sizes.entities > signs:
        raise ValueError(f"entities={sizes.entities}, but adjectives and nouns make {signs} signs; add some of either")
    rng = random.Random(f"world {seed}")
    per_topic = sizes.nouns + sizes.verbs
    counts = (2 * sizes.entities, 2 * sizes.values * sizes.relations, sizes.topics * per_topic, sizes.adjectives)
    words = made_up(sum(counts), rng)
    names, values, of_topics, adjectives = (
        [words.pop() for _ in range(count)] for count in counts
    )  # consumed from the end: all different
    topics = []
    for start in range(0, len(of_topics), per_topic):
        some = of_topics[start : start + per_topic]
        topics.append(Topic(tuple(some[: sizes.nouns]), tuple(some[sizes.nouns :])))
    nouns = [noun for topic in topics for noun in topic.nouns]
    pairs = rng.sample([(adjective, noun) for adjective in adjectives for noun in nouns], sizes.entities)
    entities = tuple(
        Entity(
            names=(names[2 * i], names[2 * i + 1]),
            values=tuple(rng.randrange(sizes.values) for _ in range(sizes.relations)),
            topic=rng.randrange(sizes.topics),
            sign=pairs[i],
        )
        for i in range(sizes.entities)
    )
    by_relation = tuple(
        tuple((values[2 * i], values[2 * i + 1]) for i in range(r * sizes.values, (r + 1) * sizes.values))
        for r in range(sizes.relations)
    )
    return World(sizes, seed, entities, by_relation, tuple(topics), tuple(adjectives), RELATIONS[: sizes.relations])
