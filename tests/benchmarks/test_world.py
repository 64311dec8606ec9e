"""The small world: its facts, its templates, its probabilities, and how a model is compared with them."""

import json
import math
import random
import re
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import small_world
from world import language
from world.choices import derivations, distribution, sample
from world.facts import Sizes, make_world
from world.tasks import split_of
from world.teacher import measure_gap
from world.tokenizer import make_tokenizer
from world.words import IDENTITY, RELATIONS, SCENES, content_words

WORLD = make_world(0)
TINY = make_world(3, Sizes(entities=2, relations=2, values=2, topics=1, nouns=1, verbs=1, adjectives=2))


@pytest.fixture
def short(monkeypatch):
    """Documents so short that all of them can be listed."""
    monkeypatch.setattr(language, "SENTENCES", (1, 2))
    return lambda choices: language.document(TINY, choices)


def documents(count, seed=0):
    rng = random.Random(seed)
    return [sample(lambda choices: language.document(WORLD, choices), rng) for _ in range(count)]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of the world."""
    out = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["x", "make", "--out", str(out), "--documents", "60"])
        patch.setattr(small_world, "VALID", 20)
        small_world.main()
    return out


# ---- the language --------------------------------------------------------------------------------------------------


def test_no_two_templates_share_a_word():
    templates = [text for relation in RELATIONS for text in (*relation.statements, *relation.questions)]
    templates += [*IDENTITY, *SCENES]
    for i, one in enumerate(templates):
        for j, other in enumerate(templates[:i]):
            shared = content_words(one) & content_words(other)
            both_ask = one.endswith("?") and other.endswith("?") and i % 2 == j % 2
            assert shared <= ({"which", "what"} if both_ask else set()), (one, other)
    assert len(templates) == 24


def test_what_documents_state_is_true():
    """Read the sentences with patterns of this test's own."""
    owner = {name: entity for entity in WORLD.entities for name in entity.names}
    meaning = {w: (r, i) for r, values in enumerate(WORLD.values) for i, pair in enumerate(values) for w in pair}
    said, names, pronouns = set(), 0, 0
    for text, _ in documents(600):
        about = None
        for sentence in re.findall(r"[^.?]+[.?](?: \w+ \.)?", text):
            words = sentence.split()
            found = [owner[word] for word in words if word in owner]
            for entity in found:
                about = about or entity
                assert entity is about
            for word in words:
                if word in meaning:
                    relation, value = meaning[word]
                    assert about.values[relation] == value
                    said.add((about.names[0], relation))
                    pronouns += not found
            if len(found) == 2:
                names += 1
                assert {word for word in words if word in owner} == set(about.names)
            nouns = {noun for topic in WORLD.topics for noun in topic.nouns} & set(words)
            assert nouns <= set(WORLD.topics[about.topic].nouns)
    assert len(said) == len(WORLD.entities) * len(WORLD.relations)
    assert names > 40 and pronouns > 200


# ---- probabilities -------------------------------------------------------------------------------------------------


def test_probabilities_agree_with_a_list_of_all_documents(short):
    every = list(derivations(short))
    assert math.fsum(prob for _, prob in every) == pytest.approx(1)
    assert len({text for text, _ in every}) == len(every) > 1000  # one path of choices per document
    prob = dict(every)
    drawn = [sample(short, random.Random(seed)) for seed in range(4000)]
    assert all(log_prob == pytest.approx(math.log(prob[text])) for text, log_prob in drawn)
    entropy = -math.fsum(p * math.log(p) for p in prob.values())
    mean = -math.fsum(log_prob for _, log_prob in drawn) / len(drawn)
    spread = math.sqrt(math.fsum(p * (-math.log(p) - entropy) ** 2 for p in prob.values()) / len(drawn))
    assert abs(mean - entropy) < 4 * spread


VALUES = {word for values in WORLD.values for pair in values for word in pair}


def test_two_ways_to_write_a_text_are_added_up():
    def write(choices):
        return "a" * choices.choose((1, 2)) + "a" * choices.choose((1, 2), (0.25, 0.75))

    assert distribution(write) == pytest.approx({"aa": 0.125, "aaa": 0.5, "aaaa": 0.375})


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_seed_writes_the_same_files(made, tmp_path, monkeypatch):
    monkeypatch.setattr(small_world, "VALID", 20)
    for seed, same in (("0", True), ("1", False)):
        out = tmp_path / seed
        monkeypatch.setattr(sys, "argv", ["x", "make", "--out", str(out), "--documents", "60", "--seed", seed])
        small_world.main()
        files = sorted(path.relative_to(made) for path in made.rglob("*.jsonl"))
        assert len(files) > 20
        assert all(((made / file).read_bytes() == (out / file).read_bytes()) == same for file in files)


def test_entities_of_pairs_are_not_looked_for(made):
    splits = split_of(WORLD)
    assert sorted(e for split in splits.values() for e in split) == list(range(64))
    named = {name: e for e, entity in enumerate(WORLD.entities) for name in entity.names}
    shown = {entity.sign: e for e, entity in enumerate(WORLD.entities)}

    def of(text, signs=False):
        words = text.split()
        found = {named[word] for word in words if word in named}
        return found | {shown[pair] for pair in pairwise(words) if pair in shown} if signs else found

    trained = ["paraphrase/pairs", "signs/pairs", "following/triplets", *(f"relations/{r.name}" for r in RELATIONS)]
    for name in trained:
        for row in rows(made / f"{name}.jsonl"):
            texts = [row.get("query", row.get("anchor")), row["positive"]]
            assert set().union(*map(of, texts)) <= set(splits["train"])
            assert name != "signs/pairs" or of(row["query"], signs=True) == of(row["positive"])
    told = {
        e for row in rows(made / "signs" / "corpus.jsonl") for e in of(row["query"], signs=True) & of(row["positive"])
    }
    assert told == set(range(64))
    folders = [
        "paraphrase/retrieval",
        "signs/retrieval",
        "following/retrieval",
        *(f"relations/{r.name}" for r in RELATIONS),
    ]
    for name in folders:
        asked = {row["_id"]: row["text"] for row in rows(made / name / "queries.jsonl")}
        for split in ("dev", "test"):
            lines = (made / name / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]
            entities = {e for line in lines for e in of(asked[line.split("\t")[0]], signs=name == "signs/retrieval")}
            assert entities == set(splits[split])


SAID = (
    "it lives in (.*) .",
    "it works as (.*) .",
    "it eats mostly (.*) .",
    "it keeps one (.*) .",
    "it carries a (.*) .",
)


def said(passage):
    """The relation and the word of a passage."""
    ((relation, word),) = [(r, m[1]) for r, said in enumerate(SAID) if (m := re.fullmatch(said, passage))]
    return relation, word


def test_pairs_of_a_relation_are_true_of_the_entity_that_the_text_names(made):
    texts = []
    for r, relation in enumerate(RELATIONS):
        found = rows(made / "relations" / f"{relation.name}.jsonl")
        for row in found:
            (entity,) = {e.names: e for e in WORLD.entities if set(e.names) & set(row["query"].split())}.values()
            truth = [WORLD.values[o][entity.values[o]][0] for o in range(5)]
            assert said(row["positive"]) == (r, truth[r])
            ((other, word),) = map(said, row["negatives"])
            assert other != r
            assert word == truth[other]
            assert not set(row["query"].split()) & set(VALUES)
        assert {said(row["negatives"][0])[0] for row in found} == set(range(5)) - {r}
        texts.append({row["query"] for row in found if not re.match("nearby|signs", row["query"])})
    assert all(one == texts[0] for one in texts)  # a text does not tell which relation is meant
    assert len(texts[0]) == 32 * 6


# ---- a model beside the generator ----------------------------------------------------------------------------------


class Oracle:
    """A language model that knows the probability of every document; `flat` mixes all tokens in."""

    def __init__(self, prob, tokenizer, flat=0.0):
        self.vocabulary, self.flat, self.after = len(tokenizer), flat, {}
        for text, p in prob.items():
            ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
            for end in range(1, len(ids)):
                following = self.after.setdefault(tuple(ids[:end]), {})
                following[ids[end]] = following.get(ids[end], 0.0) + p

    def __call__(self, input_ids, use_cache):
        probs = torch.full((*input_ids.shape, self.vocabulary), 1e-30, dtype=torch.float64)
        for row, ids in enumerate(input_ids.tolist()):
            for end in range(len(ids)):
                following = self.after.get(tuple(ids[: end + 1]), {})
                for token, p in following.items():
                    probs[row, end, token] = p / sum(following.values())
        probs = (1 - self.flat) * probs + self.flat / self.vocabulary
        return SimpleNamespace(logits=probs.log())


def test_a_model_that_knows_the_generator_has_no_gap(short):
    tokenizer = make_tokenizer(TINY)
    prob = distribution(short)
    texts, log_probs = zip(*(sample(short, random.Random(seed)) for seed in range(100)), strict=True)
    gap = measure_gap(Oracle(prob, tokenizer), tokenizer, texts, log_probs)
    assert gap.tokens == sum(len(text.split()) + 1 for text in texts)
    assert gap.generator == pytest.approx(-sum(log_probs) / gap.tokens)
    assert gap.excess == pytest.approx(0, abs=1e-6)
    uniform = measure_gap(Oracle(prob, tokenizer, flat=1.0), tokenizer, texts, log_probs)
    assert uniform.model == pytest.approx(math.log(len(tokenizer)), rel=1e-5)
    assert uniform.share == pytest.approx((uniform.model - gap.generator) / gap.generator)
    assert uniform.excess_error > 0
