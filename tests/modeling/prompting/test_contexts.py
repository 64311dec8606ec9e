"""Prompts with demonstrations: what stands where, that vectors are read as input embeddings, and that they are kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.model.context_vectors import initialize_demonstrator, sampled_vectors
from embrew.model.contexts import Context, PreparedContext
from embrew.settings.encoder import Demonstrations
from embrew.text.tokens import Row, Segment
from tests.conftest import SENTENCES, by_default

P, S, X = int(Segment.PROMPT), int(Segment.SOFT), int(Segment.TEXT)
TEMPLATE = "{instruction}{text}{eos}"
PAIRS = (("a fox", "a quick brown fox"), ("the sea", "she sells sea shells"), ("a vector", "close texts"))
TASK = Context("find: ", PAIRS)
SHORT = ["a", "bc", "d e"]  # mistral's window is 8 tokens here, beyond which nothing is read
FAMILIES = ["llama", "qwen3", "gemma3", "mistral"]
every_family = pytest.mark.parametrize("family", by_default(["mistral"], FAMILIES))


def reading(make_encoder: Callable[..., Encoder], family: str = "llama", **settings: object) -> Encoder:
    """An encoder that reads demonstrations, with a projection that is on scale and does something."""
    own = {"attention": "causal", "memory_tokens": 0, "template": TEMPLATE, "prompts": {"document": "p: "}}
    encoder = make_encoder(family, **own, demonstrations=Demonstrations(**settings))  # type: ignore[arg-type]
    initialize_demonstrator(encoder)
    return encoder


def ids(encoder: Encoder, words: str) -> list[int]:
    return list(encoder.tokenizer(words, add_special_tokens=False).input_ids)


@every_family
def test_a_context_without_demonstrations_is_the_plain_prompt(make_encoder, family):
    encoder = reading(make_encoder, family)
    encoder.add_context("none", Context("find: "))
    plain = encoder.encode(SHORT, prompt="find: ")
    assert np.array_equal(encoder.encode(SHORT, "none"), plain)
    encoder.add_context("some", TASK)
    assert np.abs(encoder.encode(SHORT, "some") - plain).max() > 1e-3


@every_family
def test_vectors_of_tokens_are_those_tokens(make_encoder, family):
    """One-token demonstrations as text, and as vectors that are the tokens' input embeddings."""
    text = reading(make_encoder, family, compress="none", between="", end="")
    pairs = (("a", "b"), ("c", "d"))
    text.add_context("task", Context("find: ", pairs))
    row = text.contexts["task"].row
    assert row.ids == [i for q, p in pairs for i in [*ids(text, "find: "), *ids(text, q), *ids(text, p)]]
    assert set(row.segments) == {P}
    encoder = reading(make_encoder, family)
    own = encoder.add_context("task", Context("find: ", pairs))
    assert own.row.ids == [i for n in (0, 1) for i in [*ids(encoder, "find: "), n, n + 2]]
    words = torch.tensor([[i for q, p in zip(*pairs, strict=True) for i in (*ids(text, q), *ids(text, p))]])
    embedded = encoder.backbone.causal_lm.get_input_embeddings()(words)[0].detach()  # a c b d
    encoder.contexts["task"] = PreparedContext(own.context, own.row, embedded)
    np.testing.assert_allclose(encoder.encode(SENTENCES, "task"), text.encode(SENTENCES, "task"), atol=2e-6)


def test_vectors_are_those_of_the_texts_alone(make_encoder):
    encoder = reading(make_encoder)
    made = encoder.add_context("task", TASK)
    queries = torch.as_tensor(encoder.forward(encoder.tokenize([q for q, _ in PAIRS], instruction="find: ")))
    passages = encoder.forward(encoder.tokenize([p for _, p in PAIRS], instruction="p: "))
    wanted = encoder.demonstrator(torch.cat([queries, passages]))
    torch.testing.assert_close(made.vectors, wanted, atol=1e-6, rtol=1e-5)
    other = encoder.add_context("other", Context("find: ", PAIRS, passage_instruction="q: "))
    assert torch.equal(other.vectors[:3], made.vectors[:3])
    assert (other.vectors[3:] - made.vectors[3:]).abs().max() > 1e-4


LAYOUTS = {  # I: the instruction as text, q and p: texts, digits: rows of the table of vectors
    "pair pair": "I02I13",
    "query pair": "I0I1",
    "passage pair": "I0I1",
    "instruction pair": "II",
    "one_instruction pair": "I0213",
    "pair all": "402413",
    "instruction all": "00",
    "one_instruction all": "40213",
    "pair query": "I0bpeI1bpe",
    "pair passage": "Iq0Iq1",
    "pair none": "IqbpeIqbpe",
    "one_instruction none": "Iqbpeqbpe",
    "query none": "IqIq",
}


@pytest.mark.parametrize("named", LAYOUTS)
def test_what_stands_where(make_encoder, named):
    form, compress = named.split()
    encoder = reading(make_encoder, format=form, compress=compress, between=" = ", end=" ; ")
    made = encoder.add_context("task", Context("find: ", PAIRS[:2]))
    wanted, segments, number = [], [], {"q": 0, "p": 0}
    for letter in LAYOUTS[named]:
        if letter.isdigit():
            found, label = [int(letter)], S
        else:
            words = {"I": "find: ", "b": " = ", "e": " ; "}.get(letter)
            if words is None:
                words = PAIRS[number[letter]]["qp".index(letter)]
                number[letter] += 1
            found, label = ids(encoder, words), P
        wanted += found
        segments += [label] * len(found)
    assert made.row == Row(wanted, segments)
    assert len(made.vectors) == len(set(LAYOUTS[named]) & set("01234"))
    (plain,) = encoder.template.rows(["a text"], instruction="find: ")
    whole = next(rows for (rows,) in encoder.rows_by_text(["a text"], "find: ", made, 512))
    assert whole == Row(plain.ids[:1] + wanted + plain.ids[1:], plain.segments[:1] + segments + plain.segments[1:])


def test_the_limit_is_that_of_the_text_and_its_instruction(make_encoder):
    encoder = reading(make_encoder)
    encoder.add_context("task", TASK)
    long = " ".join(SENTENCES)
    tokens = []
    original = encoder.pool
    encoder.pool = lambda states, given, *a: tokens.append(given) or original(states, given, *a)
    encoder.encode([long], "task", max_length=20)
    assert tokens[0].input_ids.shape[1] == 20 + 2 * 3 + 3 * len(ids(encoder, "find: "))
    assert tokens[0].position_ids is None, "so they are counted one by one, vectors too"


@every_family
def test_one_vector_for_every_few_tokens(make_encoder, family):
    encoder = reading(make_encoder, family, every=4)
    texts = ["fox", *SENTENCES]
    tokens = encoder.tokenize(texts, instruction="find: ")
    found, states = sampled_vectors(encoder, tokens), encoder.hidden_states(tokens)
    places = [row.nonzero()[:, 0].tolist() for row in tokens.where(Segment.TEXT)]
    lengths = [len(text) for text in places]
    assert min(lengths) <= 4 < max(lengths)
    assert torch.equal(found[0], encoder(tokens))
    for row, length in enumerate(lengths):
        count = -(-length // 4) - 1
        for number in range(1, len(found)):
            wanted = states[row, places[row][4 * number - 1]] if number <= count else torch.zeros(())
            torch.testing.assert_close(found[number, row], wanted.expand(32), atol=1e-6, rtol=1e-6)
    made = encoder.add_context("task", Context("find: ", [(text, "b") for text in texts]))
    assert made.row.segments.count(S) == sum(-(-length // 4) for length in lengths) + len(texts)
    last = [i for i, s in zip(made.row.ids, made.row.segments, strict=True) if s == S][-2:]
    assert last == [sum(-(-n // 4) for n in lengths) - 1, len(made.vectors) - 1], "the embedding stands last"


def test_learned_vectors_stand_for_any_demonstrations(make_encoder):
    encoder = reading(make_encoder, learnable=3)
    made = encoder.add_context("task", Context("find: ", PAIRS[:2]))
    lead = ids(encoder, "find: ")
    assert made.row.ids == [*lead, 0, 1, *lead, 2, 3]
    weight = encoder.backbone.causal_lm.get_input_embeddings().weight
    assert all((weight == row).all(-1).any() for row in made.vectors), "they start as rows of the vocabulary"
    encoder.add_context("other", Context("find: ", PAIRS[1:]))
    assert np.array_equal(encoder.encode(SENTENCES, "task"), encoder.encode(SENTENCES, "other"))
    with pytest.raises(ValueError, match="4 demonstrations, and this encoder learned vectors for 3"):
        encoder.add_context("many", Context("find: ", [*PAIRS, *PAIRS[:1]]))


def test_an_instruction_around_the_text(make_encoder):
    around = "<instruct>find<query>{text}<response>"
    encoder = reading(make_encoder, compress="none", end="\n")
    (row,) = encoder.template.rows(["a text"], instruction=around, max_length=64)
    words = ["<instruct>find<query>", "a text", "<response>"]
    assert row.ids == [1, *ids(encoder, words[0] + words[1]), *ids(encoder, words[2]), 2]
    assert row.segments.count(X) == len(ids(encoder, words[0] + words[1])) - len(ids(encoder, words[0]))
    made = encoder.add_context("task", Context(around, PAIRS[:1]))
    wanted = [ids(encoder, part) for part in (words[0], "a fox", words[2], "a quick brown fox", "\n")]
    assert made.row.ids == [i for part in wanted for i in part]
    (cut,) = encoder.template.rows([" ".join(SENTENCES)], instruction=around, max_length=40)
    assert len(cut.ids) == 40 and cut.ids[-1 - len(ids(encoder, words[2])) :] == [*ids(encoder, words[2]), 2]
    vectors = reading(make_encoder).add_context("task", Context(around, PAIRS[:1]))
    assert vectors.row.ids == [*ids(encoder, words[0]), 0, *ids(encoder, words[2]), 1]


def test_demonstrations_that_fit_a_budget(make_encoder, caplog):
    whole = reading(make_encoder, compress="none").add_context("task", TASK).row
    two = reading(make_encoder, compress="none").add_context("task", Context("find: ", PAIRS[:2])).row
    encoder = reading(make_encoder, compress="none", budget=len(whole.ids) - 1, text_tokens=50)
    assert encoder.add_context("task", TASK).row == two
    assert "2 of 3 demonstrations fit" in caplog.text
    short = reading(make_encoder, compress="none", text_tokens=2).add_context("task", TASK).row
    assert len(short.ids) < len(whole.ids)
    fits = reading(make_encoder, compress="none", budget=len(whole.ids)).add_context("task", TASK).row
    assert fits == whole


@pytest.mark.parametrize(
    "settings",
    by_default(
        [{"compress": "all", "every": 4}, {"learnable": 2}],
        [{}, {"compress": "all", "every": 4}, {"learnable": 2}, {"compress": "none"}, {"format": "instruction"}],
    ),
    ids=str,
)
def test_saved_opened_and_verified(model_folder, tmp_path, settings):
    encoder = Encoder.from_pretrained(
        model_folder("llama"), template=TEMPLATE, demonstrations=Demonstrations(**settings)
    )
    with torch.no_grad():
        for parameter in encoder.demonstrator.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    encoder.save_pretrained(tmp_path / "saved", verify="full" if "every" in settings else "fast")
    again = Encoder.from_pretrained(tmp_path / "saved")
    assert again.demonstrator.settings == encoder.demonstrator.settings
    assert again.weights_hash() == encoder.weights_hash()
    for one in (encoder, again):
        one.add_context("task", Context("find: ", PAIRS[:2]))
    assert np.array_equal(again.encode(SENTENCES, "task"), encoder.encode(SENTENCES, "task"))
    has_weights = bool(list(encoder.demonstrator.parameters()))
    assert (tmp_path / "saved" / "demonstrations.safetensors").is_file() == has_weights
    if has_weights:
        with torch.no_grad():
            next(again.demonstrator.parameters()).add_(1.0)
        assert again.weights_hash() != encoder.weights_hash()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"format": "pairs"}, "format='pairs'; choose from pair, instruction"),
        ({"compress": "text"}, "compress='text'; choose from pair, all"),
        ({"format": "query", "compress": "passage"}, "format=query shows no passage"),
        ({"learnable": 2, "compress": "query"}, "learnable=2 replaces q and p"),
        ({"every": 16, "compress": "none"}, "every=16 counts vectors"),
        ({"every": 0}, "every=0; give 1 or more"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Demonstrations(**settings)


def test_refusals(make_encoder):
    plain = make_encoder(memory_tokens=0, attention="causal")
    with pytest.raises(ValueError, match="does not read demonstrations"):
        plain.add_context("task", TASK)
    with pytest.raises(ValueError, match="with {instruction} before {text}"):
        make_encoder(memory_tokens=0, template="{text}{instruction}", demonstrations=Demonstrations())
    with pytest.raises(ValueError, match="give one template"):
        make_encoder(memory_tokens=0, template=["{text}", "{text}"], demonstrations=Demonstrations())
    encoder = reading(make_encoder)
    with pytest.raises(ValueError, match="a prompt has this name already"):
        encoder.add_context("query", TASK)
    encoder.add_context("task", TASK)
    with pytest.raises(ValueError, match="this encoder has document, query, task"):
        encoder.encode(SENTENCES, "tsk")
