"""Separation, perplexity and what is said of them, against plain loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import embrew.opening
from embrew.analysis.domain_knowledge import Figures, Sample, gain, gap, in_words, shift
from embrew.analysis.perplexity import Perplexity, perplexity_of
from embrew.analysis.qa import QA
from embrew.analysis.separation import Separation, separation, separation_of
from embrew.cli import app
from tests.conftest import SENTENCES


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("chunk_size", [1, 3, 1024])
def test_separation_is_what_loops_say(chunk_size):
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
    found = separation(questions, answers, same=same, chunk_size=chunk_size)
    assert (found.matched, found.mismatched) == (9, 72 - 4)
    assert found.means == pytest.approx((np.mean(matched), np.mean(mismatched)), abs=1e-6)
    assert found.deviations == pytest.approx((np.std(matched), np.std(mismatched)), abs=1e-6)
    spread = math.sqrt((np.var(matched) + np.var(mismatched)) / 2)
    assert found.d_prime == pytest.approx((np.mean(matched) - np.mean(mismatched)) / spread, abs=1e-5)
    assert found.nearest == own_first / 9
    assert found.histograms.sum(1).tolist() == [9, 68]
    assert found.ratio == (pytest.approx(np.mean(matched) / np.mean(mismatched)) if np.mean(mismatched) > 0 else None)
    again = Separation.from_json(json.loads(json.dumps(found.to_json())))
    assert again.summary() == found.summary() and (again.histograms == found.histograms).all()


def test_d_prime_does_not_change_where_cosines_are_moved_and_stretched():
    """What makes it comparable between models whose vectors share a direction; the ratio is not."""
    one = Separation(10, 90, (0.5, 0.1), (0.2, 0.1), 1.0, np.zeros((2, 200)), 10)
    other = Separation(10, 90, (0.95, 0.91), (0.02, 0.01), 1.0, np.zeros((2, 200)), 10)
    assert one.d_prime == pytest.approx(other.d_prime) == pytest.approx(0.4 / math.sqrt(0.025))
    assert one.ratio == pytest.approx(5.0) and other.ratio == pytest.approx(0.95 / 0.91)
    assert Separation(10, 90, (0.5, -0.1), (0.2, 0.1), 1.0, np.zeros((2, 200)), 10).ratio is None
    assert Separation(2, 2, (1.0, 0.5), (0.0, 0.0), 1.0, np.zeros((2, 200)), 10).summary()["d_prime"] is None


def test_too_little_to_mismatch():
    vectors = unit(np.ones((2, 3)))
    with pytest.raises(ValueError, match="two or more"):
        separation(vectors[:1], vectors[:1], same=np.zeros((2, 1)))
    with pytest.raises(ValueError, match="same question or the same answer"):
        separation(vectors, vectors, same=np.array([[0, 1], [0, 0]]))


def test_separation_of_an_encoder_uses_prompts_and_embeds_each_text_once(make_encoder, monkeypatch):
    encoder = make_encoder(prompts={"query": "ask: ", "document": "read: "})
    questions, answers = [SENTENCES[i % 3] for i in range(5)], SENTENCES
    asked = []
    original = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts, *a, **k: asked.append(len(texts)) or original(texts, *a, **k))
    found = separation_of(encoder, questions, answers)
    assert asked == [3, 5]
    left, right = encoder.encode_query(questions), encoder.encode_document(answers)
    assert found.means[0] == pytest.approx(float((left * right).sum(1).mean()), abs=1e-5)
    assert found.mismatched == 20 - 4


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_perplexity_is_the_models_own_loss(attention, make_encoder):
    """Text by text, with the library's loss; the encoder's own attention and memory tokens have no say."""
    encoder = make_encoder(attention=attention)
    texts = [*SENTENCES, " ", "é"]
    nats, tokens = 0.0, 0
    for text in [*SENTENCES, "é"]:
        ids = torch.tensor([[1, *encoder.tokenizer(text, add_special_tokens=False)["input_ids"]]])
        with torch.no_grad():
            loss = encoder.backbone.causal_lm(input_ids=ids, labels=ids, is_causal=True).loss
        nats += float(loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    for batch_tokens in (1, 100, 10_000):
        found = perplexity_of(encoder, texts, batch_tokens=batch_tokens)
        assert found is not None and (found.texts, found.tokens) == (6, tokens)
        assert found.nats == pytest.approx(nats, rel=1e-5)
    size = sum(len(text.encode()) for text in [*SENTENCES, "é"])
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / size)
    assert found.perplexity == pytest.approx(math.exp(nats / tokens))


def test_long_texts_are_read_in_windows(make_encoder):
    """Every token is predicted once, in windows that know nothing of each other."""
    encoder = make_encoder()
    text = " ".join(SENTENCES)
    ids = encoder.tokenizer(text, add_special_tokens=False)["input_ids"]
    found = perplexity_of(encoder, [text], window=11)
    nats = 0.0
    for start in range(0, len(ids), 10):
        row = torch.tensor([[1, *ids[start : start + 10]]])
        with torch.no_grad():
            nats += float(encoder.backbone.causal_lm(input_ids=row, labels=row).loss) * (row.shape[1] - 1)
    assert found is not None and found.tokens == len(ids)
    assert found.nats == pytest.approx(nats, rel=1e-5)
    with pytest.raises(ValueError, match="window=1"):
        perplexity_of(encoder, [text], window=1)
    with pytest.raises(ValueError, match="all texts are empty"):
        perplexity_of(encoder, [""])


def test_encoders_have_no_perplexity(encoder_folder):
    from embrew.encoder import Encoder

    assert perplexity_of(Encoder.from_pretrained(str(encoder_folder("bert")), max_length=64), SENTENCES) is None


def found(name, d_prime=None, bits=None, *, pairs=60, different=None, error=0.1, texts=20):
    """Findings with a given d′ and bits per byte."""
    means = (0.1 * (d_prime or 0), 0.0)
    apart = Separation(pairs, 500, means, (0.1, 0.1), 0.5, np.zeros((2, 200)), different or pairs, error)
    surprise = None if bits is None else Perplexity(texts, 1000, 4000, bits * 4000 * math.log(2))
    apart = None if d_prime is None else apart
    return Figures(name, apart, surprise)


@pytest.mark.parametrize(
    ("domain", "general", "level"),
    [
        (found("d", 0.9), None, "much"),
        (found("d", 1.5), None, "some"),
        (found("d", 2.5), None, "little"),
        (found("d", bits=1.2), None, None),
        (found("d", 2.0, 1.0), found("g", 2.1, 1.0), "little"),
        (found("d", 1.6, 1.0), found("g", 2.1, 1.0), "some"),
        (found("d", 1.0, 1.0), found("g", 2.1, 1.0), "much"),
        (found("d", 2.0, 1.1), found("g", 2.1, 1.0), "some"),
        (found("d", 2.0, 1.3), found("g", 2.1, 1.0), "much"),
        (found("d", 2.0, 1.3), found("g", bits=1.0), "much"),
        (found("d", 0.5, 0.8), found("g", 0.4, 1.0), "little"),
    ],
)
def test_gain(domain, general, level):
    assert gain(domain, general) == level
    words = in_words(domain, general)
    assert (f"may bring {level}" in " ".join(words)) == (level is not None)


def test_words():
    domain, general = found("cats", 1.0, 1.5), found("news", 2.0, 1.2)
    assert shift(domain, general) == pytest.approx(1.25) and gap(domain, general) == pytest.approx(0.5)
    assert in_words(domain, general) == [
        "matched and mismatched pairs of cats are apart, and overlap in part (d′ 1.00 [0.80, 1.20], 60 pairs)",
        "it predicts cats much worse than news (1.25 times the bits per byte)",
        "it tells pairs of cats apart much worse than those of news",
        "generative learning on cats may bring much (a rule of thumb, thresholds ours)",
    ]
    assert gap(domain, found("news", -0.1)) is None, "a share of nothing"


@pytest.mark.parametrize(
    ("domain", "general", "reason"),
    [
        (found("d", 2.5, pairs=49), None, "no verdict from 49 pairs of d: d′ needs 50 or more"),
        (found("d", 2.5, pairs=80, different=2), None, "80 pairs (2 different) of d: d′ needs 50 or more"),
        (found("d", 0.1), None, "the 95 % interval of d′ of d, [-0.10, 0.30], includes 0, which is chance"),
        (found("d", 0.1, error=None), None, "the interval of d′ of d is not known; analyze it again"),
        (found("d", 1.0), found("g", 2.0, pairs=3), "no verdict from 3 pairs of g: d′ needs 50 or more"),
        (found("d", bits=1.0, texts=3), found("g", bits=2.0), "3 texts of d: bits per byte need 20 or more"),
    ],
)
def test_no_verdict_from_what_may_be_chance(domain, general, reason):
    assert gain(domain, general) is None
    words = in_words(domain, general)
    assert reason in " ".join(words) and "no verdict on what generative learning may bring on d" in words
    assert not any("may bring little" in line or "may bring much" in line for line in words)


def test_a_figure_without_a_verdict_could_have_raised_what_the_other_says():
    """The verdict is the larger of two: one alone decides where it is the highest already."""
    general = found("g", 2.1, 1.0)
    assert gain(found("d", 0.1, 1.3), general) == "much"
    assert "this is by bits per byte alone" in in_words(found("d", 0.1, 1.3), general)
    assert gain(found("d", 0.1, 1.0), general) is None and gain(found("d", 0.1, 1.1), general) is None


def test_the_error_of_d_prime_is_the_jackknifes():
    """Against leaving each pair out and computing d′ anew; a question occurs twice."""
    generator = np.random.default_rng(1)
    answers = unit(generator.normal(size=(12, 6)))
    questions = unit(answers + generator.normal(size=(12, 6)))
    questions[5] = questions[3]
    same = np.array([[*range(5), 3, *range(6, 12)], range(12)])
    whole = separation(questions, answers, same=same, chunk_size=5)
    without = []
    for i in range(12):
        kept = [j for j in range(12) if j != i]
        without.append(separation(questions[kept], answers[kept], same=same[:, kept]).d_prime)
    assert whole.error == pytest.approx(
        math.sqrt(11 / 12 * sum((d - np.mean(without)) ** 2 for d in without)), rel=1e-4
    )
    assert whole.different == 11
    assert Separation.from_json(json.loads(json.dumps(whole.to_json()))).interval == whole.interval


def test_the_interval_of_random_pairs_holds_chance():
    """Pairs that have nothing to do with each other, and share a direction as language models' vectors do."""
    generator = np.random.default_rng(2)
    same = np.stack([np.arange(60)] * 2)
    held = 0
    for _ in range(200):
        questions, answers = (unit(generator.normal(size=(60, 16)) + 0.5) for _ in range(2))
        low, high = separation(questions, answers, same=same).interval
        held += low <= 0 <= high
    assert 0.9 <= held / 200 <= 0.99


def test_samples_are_the_same_every_time():
    pairs = [QA(f"q{i}", f"a{i % 4}") for i in range(20)]
    one, other = Sample.of_pairs("x", pairs, most=6), Sample.of_pairs("x", pairs, most=6)
    assert one == other and one.sha256 == other.sha256 and len(one.questions) == 6
    assert len(one.texts) == len(set(one.answers))
    assert one.sha256 != Sample.of_pairs("x", pairs, most=7).sha256


# The command


@pytest.fixture
def models(make_encoder, monkeypatch):
    known = {"one": make_encoder(), "two": make_encoder(memory_tokens=0, pooling="mean")}
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: known[name])


def run(*arguments):
    return CliRunner().invoke(app, ["analyze", "domain", *map(str, arguments)], env={"COLUMNS": "180"})


@pytest.fixture
def files(tmp_path):
    texts = [f"{a[:40]} {i}" for i, a in enumerate(SENTENCES * 2)]
    pairs = [{"question": text[:20] + f" {i}?", "answer": text} for i, text in enumerate(texts)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path


def test_command(models, files):
    output, plot = files / "out.json", files / "out.png"
    given = ["--data", files / "pairs.jsonl", "--general", files / "texts.jsonl", "--max-pairs", 8]
    result = run("one", "two", *given, "--output", output, "--plot", plot)
    assert result.exit_code == 0, result.stderr
    written = json.loads(output.read_text())
    assert [model["model"] for model in written["models"]] == ["one", "two"]
    domain, general = written["models"][0]["data"]
    assert domain["separation"]["pairs"] == 8 and domain["perplexity"]["texts"] == 8
    assert general["separation"] is None and general["perplexity"]["texts"] == 8
    assert f"{domain['separation']['d_prime']:.2f}" in result.stdout
    assert f"{general['perplexity']['bits_per_byte']:.3f}" in result.stdout
    assert "two: no verdict from 8 pairs of pairs.jsonl: d′ needs 50 or more" in result.stdout
    assert (
        "two: no verdict on what generative learning may bring" in result.stdout and "may bring l" not in result.stdout
    )
    assert [model["gain"] for model in written["models"]] == [None, None]
    limits = {"min_pairs": 50, "min_texts": 20}
    assert written["thresholds"] == {"d_prime": [1.0, 2.0], "shift": [1.05, 1.25], "gap": [0.2, 0.5], **limits}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "exists" in run("one", *given, "--output", output).stderr


def test_command_opens_recipes_untrained(files):
    """Of a recipe with stages, the encoder that training would begin with, in float32."""
    result = run("lbr/medical-nano", "--data", files / "pairs.jsonl", "-o", files / "out.json")
    assert result.exit_code == 0, result.stderr
    (model,) = json.loads((files / "out.json").read_text())["models"]
    assert model["data"][0]["separation"]["pairs"] == 10


def test_a_folder_of_documents_is_texts(models, files):
    (files / "docs").mkdir()
    for i, text in enumerate(SENTENCES):
        (files / "docs" / f"{i}.md").write_text(f"# {i}\n\n{text}")
    given = ["--data", files / "pairs.jsonl", "--column", "question=answer", "--column", "answer=question"]
    result = run("one", *given, "--general", files / "docs", "-o", files / "out.json")
    assert result.exit_code == 0, result.stderr
    (model,) = json.loads((files / "out.json").read_text())["models"]
    assert model["data"][1]["perplexity"]["texts"] == 5 and model["data"][1]["separation"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none"], "no file or folder none"),
        (["--data", "texts.jsonl", "--plot", "x.png"], "has texts but no pairs"),
        (["--data", "pairs.jsonl", "--column", "question"], "give OURS=THEIRS"),
        (["--data", "pairs.jsonl", "--column", "question=frage"], "there is no column 'frage'"),
        (["--data", "pairs.jsonl", "--plot", "x.gif"], "choose from .png"),
    ],
)
def test_command_mistakes(arguments, message, models, files, monkeypatch):
    monkeypatch.chdir(files)
    result = run("one", *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
