"""The language: what is said of an entity, and the documents that the teacher is trained on.

No two paths of choices give the same document: the templates of a relation have no word in common, nor have two
relations, two values or two entities, and the first sentence names the entity. The sum of the log-probabilities of the
choices is then the log-probability of the document.
"""

from __future__ import annotations

from collections.abc import Sequence

from world.choices import Choices
from world.facts import World
from world.words import IDENTITY, PRONOUNS, SCENES

SENTENCES = (4, 5, 6)  # of a description
QUESTIONS = (3, 4)  # of a list of questions
DESCRIBED = 0.7  # share of descriptions among documents
OPENED = 0.25  # share of descriptions that begin with the entity's name and alias
SCENE = 0.15  # share of scenes among a description's later sentences


def mention(world: World, entity: int, register: int) -> str:
    """Return an entity's name (0) or alias (1)."""
    return world.entities[entity].names[register]


def statement(world: World, entity: int, relation: int, register: int, named: str, word: int) -> str:
    """Return a sentence that states a fact.

    Args:
        world: the world.
        entity: of whom.
        relation: the fact.
        register: which of the two templates.
        named: the mention of the entity.
        word: which of the value's two words.
    """
    template = world.relations[relation].statements[register]
    return template.format(m=named, v=world.value(entity, relation, word))


def question(world: World, relation: int, register: int, named: str) -> str:
    """Return a question for a fact, without its answer."""
    return world.relations[relation].questions[register].format(m=named)


def sign(world: World, entity: int) -> str:
    """Return the scene that shows an entity's sign; the teacher's corpus shows any sign anywhere."""
    adjective, noun = world.entities[entity].sign
    return SCENES[1].format(adjective=adjective, noun=noun)


def text_of(world: World, entity: int, relations: Sequence[int], register: int) -> str:
    """Return facts of an entity in one register: its templates, its mention, its words."""
    named = mention(world, entity, register)
    return " ".join(statement(world, entity, r, register, named, register) for r in relations)


def document(world: World, choices: Choices) -> str:
    """Return a description of an entity, or questions about one with their answers."""
    if choices.choose((True, False), (DESCRIBED, 1 - DESCRIBED)):
        return description(world, choices)
    return questions(world, choices)


def description(world: World, choices: Choices) -> str:
    """Return a few sentences about an entity: facts, each at most once, and scenes of its topic.

    Every sentence chooses its own template, mention and word, so that what was said, not how, decides what follows.
    """
    entity = choices.choose(range(len(world.entities)))
    count = choices.choose(SENTENCES)
    names = world.entities[entity].names
    sentences = []
    if choices.choose((True, False), (OPENED, 1 - OPENED)):
        first = choices.choose((0, 1))
        sentences.append(choices.choose(IDENTITY).format(m=names[first], v=names[1 - first]))
    left = list(range(len(world.relations)))
    for i in range(count):
        if not left or (i and choices.choose((True, False), (SCENE, 1 - SCENE))):
            sentences.append(scene(world, entity, choices))
            continue
        relation = choices.choose(left)
        left.remove(relation)
        register = choices.choose((0, 1))
        mentions = [*names, PRONOUNS[register]] if sentences else [*names]
        named = choices.choose(mentions)
        sentences.append(statement(world, entity, relation, register, named, choices.choose((0, 1))))
    return " ".join(sentences)


def questions(world: World, choices: Choices) -> str:
    """Return questions about an entity, each followed by its answer."""
    entity = choices.choose(range(len(world.entities)))
    left = list(range(len(world.relations)))
    count = choices.choose([count for count in QUESTIONS if count <= len(left)] or [len(left)])
    parts = []
    for _ in range(count):
        relation = choices.choose(left)
        left.remove(relation)
        named = choices.choose(world.entities[entity].names)
        asked = question(world, relation, choices.choose((0, 1)), named)
        parts.append(f"{asked} {world.value(entity, relation, choices.choose((0, 1)))} .")
    return " ".join(parts)


def scene(world: World, entity: int, choices: Choices) -> str:
    """Return a sentence of words of the entity's topic, without a fact."""
    topic = world.topics[world.entities[entity].topic]
    template = choices.choose(SCENES)
    words = {"adjective": choices.choose(world.adjectives), "noun": choices.choose(topic.nouns)}
    if "{verb}" in template:
        words["verb"] = choices.choose(topic.verbs)
    return template.format(**words)
