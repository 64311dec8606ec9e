"""Separation, perplexity and what is said of them, against plain loops."""

import math

import numpy as np
import pytest
import torch

from embrew.analysis.domain_knowledge import (
    Figures,
    Perplexity,
    Sample,
    Separation,
    diagnose,
    perplexity_of,
    separation,
    separation_of,
)
from embrew.analysis.qa import QA
from tests.conftest import SENTENCES


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_separation_is_what_loops_say():
    """With a question and an answer that occur twice: their combinations are neither matched nor mismatched."""
    generator = np.random.default_rng(0)
    answers = unit(generator.normal(size=(9, 5)))
    questions = unit(answers + 0.5 * generator.normal(size=(9, 5)))
    questions[4], answers[7] = questions[1], answers[2]
    same = np.array([[0, 1, 2, 3, 1, 5, 6, 7, 8], [0, 1, 2, 3, 4, 5, 6, 2, 8]])
    matched, mismatched, own_first = [], [], 0
    for i in range(9):
        others = []
        for j in range(9):
            cosine = float(questions[i].astype(float) @ answers[j].astype(float))
            if i == j:
                matched.append(cosine)
            elif same[0][i] != same[0][j] and same[1][i] != same[1][j]:
                others.append(cosine)
        mismatched += others
        own_first += matched[-1] > max(others)
    result = separation(questions, answers, same=same)
    assert (result.matched, result.mismatched) == (9, 72 - 4)
    assert result.means == pytest.approx((np.mean(matched), np.mean(mismatched)), abs=1e-6)
    assert result.deviations == pytest.approx((np.std(matched), np.std(mismatched)), abs=1e-6)
    spread = math.sqrt((np.var(matched) + np.var(mismatched)) / 2)
    assert result.d_prime == pytest.approx((np.mean(matched) - np.mean(mismatched)) / spread, abs=1e-5)
    assert result.nearest == own_first / 9
    assert result.histograms.sum(1).tolist() == [9, 68]
    assert result.ratio == (pytest.approx(np.mean(matched) / np.mean(mismatched)) if np.mean(mismatched) > 0 else None)


def test_d_prime_does_not_change_where_cosines_are_moved_and_stretched():
    """What makes it comparable between models whose vectors share a direction; the ratio is not."""
    spread_out = Separation(10, 90, (0.5, 0.1), (0.2, 0.1), 1.0, np.zeros((2, 200)), 10)
    moved = Separation(10, 90, (0.95, 0.91), (0.02, 0.01), 1.0, np.zeros((2, 200)), 10)
    assert spread_out.d_prime == pytest.approx(moved.d_prime) == pytest.approx(0.4 / math.sqrt(0.025))
    assert spread_out.ratio == pytest.approx(5.0) and moved.ratio == pytest.approx(0.95 / 0.91)
    assert Separation(10, 90, (0.5, -0.1), (0.2, 0.1), 1.0, np.zeros((2, 200)), 10).ratio is None
    assert Separation(2, 2, (1.0, 0.5), (0.0, 0.0), 1.0, np.zeros((2, 200)), 10).summary()["d_prime"] is None


def test_separation_of_an_encoder_uses_prompts_and_embeds_each_text_once(make_encoder, monkeypatch):
    encoder = make_encoder(prompts={"query": "ask: ", "document": "read: "})
    questions, answers = [SENTENCES[i % 3] for i in range(5)], SENTENCES
    counts = []
    original = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts, *a, **k: counts.append(len(texts)) or original(texts, *a, **k))
    result = separation_of(encoder, questions, answers)
    assert counts == [3, 5]
    left, right = encoder.encode_query(questions), encoder.encode_document(answers)
    assert result.means[0] == pytest.approx(float((left * right).sum(1).mean()), abs=1e-5)
    assert result.mismatched == 20 - 4


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_perplexity_is_the_models_own_loss(attention, make_encoder):
    """Text by text, with the library's loss; the encoder's own attention and memory tokens have no say."""
    encoder = make_encoder(attention=attention)
    texts = [*SENTENCES, "é"]
    nats, tokens = 0.0, 0
    for text in texts:
        ids = torch.tensor([[1, *encoder.tokenizer(text, add_special_tokens=False)["input_ids"]]])
        with torch.no_grad():
            loss = encoder.backbone.causal_lm(input_ids=ids, labels=ids, is_causal=True).loss
        nats += float(loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    for batch_tokens in (1, 100, 10_000):
        perplexity = perplexity_of(encoder, texts, batch_tokens=batch_tokens)
        assert perplexity is not None and (perplexity.texts, perplexity.tokens) == (6, tokens)
        assert perplexity.nats == pytest.approx(nats, rel=1e-5)
    size = sum(len(text.encode()) for text in texts)
    assert perplexity.bits_per_byte == pytest.approx(nats / math.log(2) / size)
    assert perplexity.perplexity == pytest.approx(math.exp(nats / tokens))


def test_logits_are_not_rounded_to_bfloat16(make_encoder):
    """The head's product is in float32, of states in bfloat16."""
    encoder = make_encoder(attention="causal")
    encoder.backbone.to(torch.bfloat16)
    ids = torch.tensor([[1, *encoder.tokenizer(SENTENCES[0], add_special_tokens=False)["input_ids"]]])
    with torch.no_grad():
        lm = encoder.backbone.causal_lm
        states = lm.base_model(input_ids=ids, is_causal=True).last_hidden_state[0, :-1].float()
        logits = states @ lm.get_output_embeddings().weight.float().T
        nats = float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        rounded = float(torch.nn.functional.cross_entropy(logits.bfloat16().float(), ids[0, 1:], reduction="sum"))
    perplexity = perplexity_of(encoder, [SENTENCES[0]])
    assert perplexity is not None and perplexity.nats == pytest.approx(nats, rel=1e-6)
    assert perplexity.nats != pytest.approx(rounded, rel=1e-6)


def test_nothing_to_predict_is_refused(make_encoder):
    with pytest.raises(ValueError, match="no text has a token to predict"):
        perplexity_of(make_encoder(), ["", ""])


def test_long_texts_are_read_in_windows(make_encoder, monkeypatch):
    """Every token is predicted once, in windows that know nothing of each other."""
    monkeypatch.setattr("embrew.analysis.domain_knowledge.WINDOW", 11)
    encoder = make_encoder()
    text = " ".join(SENTENCES)
    ids = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    perplexity = perplexity_of(encoder, [text])
    nats = 0.0
    for start in range(0, len(ids), 10):
        row = torch.tensor([[1, *ids[start : start + 10]]])
        with torch.no_grad():
            nats += float(encoder.backbone.causal_lm(input_ids=row, labels=row).loss) * (row.shape[1] - 1)
    assert perplexity is not None and perplexity.tokens == len(ids)
    assert perplexity.nats == pytest.approx(nats, rel=1e-5)


def test_encoders_have_no_perplexity(encoder_folder):
    from embrew.encoder import Encoder

    assert perplexity_of(Encoder.from_pretrained(str(encoder_folder("bert")), max_length=64), SENTENCES) is None


def figures(name, d_prime=None, bits=None, *, pairs=60, different=None, error=0.1, texts=20):
    """Findings with a given d′ and bits per byte."""
    means = (0.1 * (d_prime or 0), 0.0)
    apart = Separation(pairs, 500, means, (0.1, 0.1), 0.5, np.zeros((2, 200)), different or pairs, error)
    surprise = None if bits is None else Perplexity(texts, 1000, 4000, bits * 4000 * math.log(2))
    apart = None if d_prime is None else apart
    return Figures(name, apart, surprise)


@pytest.mark.parametrize(
    ("domain", "general", "level"),
    [
        (figures("d", 0.9), None, "much"),
        (figures("d", 1.5), None, "some"),
        (figures("d", 2.5), None, "little"),
        (figures("d", bits=1.2), None, None),
        (figures("d", 2.0, 1.0), figures("g", 2.1, 1.0), "little"),
        (figures("d", 1.6, 1.0), figures("g", 2.1, 1.0), "some"),
        (figures("d", 1.0, 1.0), figures("g", 2.1, 1.0), "much"),
        (figures("d", 2.0, 1.1), figures("g", 2.1, 1.0), "some"),
        (figures("d", 2.0, 1.3), figures("g", 2.1, 1.0), "much"),
        (figures("d", 2.0, 1.3), figures("g", bits=1.0), "much"),
        (figures("d", 0.5, 0.8), figures("g", 0.4, 1.0), "little"),
    ],
)
def test_gain(domain, general, level):
    diagnosis = diagnose(domain, general)
    words = diagnosis["words"]
    assert diagnosis["gain"] == level
    assert (f"may bring {level}" in " ".join(words)) == (level is not None)


def test_words():
    domain, general = figures("cats", 1.0, 1.5), figures("news", 2.0, 1.2)
    diagnosis = diagnose(domain, general)
    assert diagnosis["shift"] == pytest.approx(1.25) and diagnosis["gap"] == pytest.approx(0.5)
    assert diagnosis["words"] == [
        "matched and mismatched pairs of cats are apart, and overlap in part (d′ 1.00 [0.80, 1.20], 60 pairs)",
        "it predicts cats much worse than news (1.25 times the bits per byte)",
        "it tells pairs of cats apart much worse than those of news",
        "generative learning on cats may bring much (a rule of thumb, thresholds ours)",
    ]
    assert diagnose(domain, figures("news", -0.1))["gap"] is None, "a share of nothing"


@pytest.mark.parametrize(
    ("domain", "general", "reason"),
    [
        (figures("d", 2.5, pairs=49), None, "no verdict from 49 pairs of d: d′ needs 50 or more"),
        (figures("d", 2.5, pairs=80, different=2), None, "80 pairs (2 different) of d: d′ needs 50 or more"),
        (figures("d", 0.1), None, "the 95 % interval of d′ of d, [-0.10, 0.30], includes 0, which is chance"),
        (figures("d", 1.0), figures("g", 2.0, pairs=3), "no verdict from 3 pairs of g: d′ needs 50 or more"),
        (figures("d", bits=1.0, texts=3), figures("g", bits=2.0), "3 texts of d: bits per byte need 20 or more"),
    ],
)
def test_no_verdict_from_what_may_be_chance(domain, general, reason):
    words = diagnose(domain, general)["words"]
    assert diagnose(domain, general)["gain"] is None
    assert reason in " ".join(words) and "no verdict on what generative learning may bring on d" in words
    assert not any("may bring little" in line or "may bring much" in line for line in words)


def test_a_figure_without_a_verdict_could_have_raised_what_the_other_says():
    """The verdict is the larger of two: one alone decides where it is the highest already."""
    general = figures("g", 2.1, 1.0)
    highest = diagnose(figures("d", 0.1, 1.3), general)
    assert highest["gain"] == "much" and "this is by bits per byte alone" in highest["words"]
    assert [diagnose(figures("d", 0.1, bits), general)["gain"] for bits in (1.0, 1.1)] == [None, None]


def test_the_error_of_d_prime_is_the_jackknifes():
    """Against leaving each pair out and computing d′ anew; a question occurs twice."""
    generator = np.random.default_rng(1)
    answers = unit(generator.normal(size=(12, 6)))
    questions = unit(answers + generator.normal(size=(12, 6)))
    questions[5] = questions[3]
    same = np.array([[*range(5), 3, *range(6, 12)], range(12)])
    whole = separation(questions, answers, same=same)
    without = []
    for i in range(12):
        kept = [j for j in range(12) if j != i]
        without.append(separation(questions[kept], answers[kept], same=same[:, kept]).d_prime)
    assert whole.error == pytest.approx(
        math.sqrt(11 / 12 * sum((d - np.mean(without)) ** 2 for d in without)), rel=1e-4
    )
    assert whole.different == 11


def test_samples_are_the_same_every_time():
    pairs = [QA(f"q{i}", f"a{i % 4}") for i in range(20)]
    sample, again = Sample.of_pairs("x", pairs, max_pairs=6), Sample.of_pairs("x", pairs, max_pairs=6)
    assert sample == again and len(sample.questions) == 6
    assert len(sample.texts) == len(set(sample.answers))
    assert sample != Sample.of_pairs("x", pairs, max_pairs=7)


@pytest.mark.parametrize("other", [QA("q", "b"), QA("p", "a"), QA("q", "a")])
def test_a_sample_needs_different_questions_and_answers(other):
    with pytest.raises(ValueError, match="give two or more of each"):
        Sample.of_pairs("x", [QA("q", "a"), other])
