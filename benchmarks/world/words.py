"""The words of the language: sentence templates of each relation, question templates, and made-up words by syllables.

A relation has two templates of a statement and two of a question, and no word occurs in two of them. `{m}` is a mention
of the entity, `{v}` the value's word.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

REGISTERS = ("plain", "other")
"""The two ways to say anything: first or second template, an entity's name or alias, a value's first or second word."""
PRONOUNS = ("it", "that")  # by register
END = "."


@dataclass(frozen=True)
class Relation:
    """How a fact is stated and asked for, by register."""

    name: str
    statements: tuple[str, str]
    questions: tuple[str, str]


RELATIONS = (
    Relation(
        "home",
        ("{m} lives in {v} .", "people find {m} at {v} ."),
        ("which place houses {m} ?", "what village sheltered {m} ?"),
    ),
    Relation(
        "trade",
        ("{m} works as {v} .", "the trade of {m} is {v} ."),
        ("which job pays {m} ?", "what profession occupies {m} ?"),
    ),
    Relation(
        "food",
        ("{m} eats mostly {v} .", "dishes for {m} contain {v} ."),
        ("which meal feeds {m} ?", "what dinner satisfies {m} ?"),
    ),
    Relation(
        "pet",
        ("{m} keeps one {v} .", "beside {m} walks some {v} ."),
        ("which animal follows {m} ?", "what creature accompanies {m} ?"),
    ),
    Relation(
        "tool",
        ("{m} carries a {v} .", "hands belonging to {m} hold this {v} ."),
        ("which object serves {m} ?", "what instrument helps {m} ?"),
    ),
)
IDENTITY = ("{m} means {v} .", "{m} equals {v} .")  # a name and its alias, either first
SCENES = ("nearby {adjective} {noun} {verb} .", "signs picture {adjective} {noun} .")  # no fact; the topic's words
INSTRUCTIONS = ("next", "again", "retrieve")  # words of prompts, which no document holds

_ONSETS, _VOWELS, _CODAS = "bdfgklmnprstvz", "aeiou", ("", "l", "m", "n", "r", "s")


def template_words() -> list[str]:
    """Return every word that is not made up, in order."""
    texts = [text for relation in RELATIONS for text in (*relation.statements, *relation.questions)]
    texts += [*IDENTITY, *SCENES, *PRONOUNS, *INSTRUCTIONS, END]
    return list(dict.fromkeys(word for text in texts for word in text.split() if not word.startswith("{")))


def content_words(template: str) -> set[str]:
    """Return the words of a template apart from its slots and the end of the sentence."""
    return {word for word in template.split() if not word.startswith("{") and word not in (END, "?")}


def made_up(count: int, rng: random.Random) -> list[str]:
    """Return that many different words of two syllables, none of them a word of a template."""
    taken, words = set(template_words()), []
    while len(words) < count:
        word = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(2))
        if word not in taken:
            taken.add(word)
            words.append(word)
    return words
