"""A surface's cells are the scores of encoders that are really cut; what is read off it, by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from embrew.analysis.surface import Surface, milliseconds_of, surface_of, truncation_of
from embrew.cli.analyze.kinds import read_share
from embrew.cli.arguments import read_numbers
from embrew.cutting import cut
from embrew.evaluation import evaluate, find_task
from embrew.settings.encoder import Pooling
from tests.conftest import SENTENCES, by_default

WORDS = " ".join(SENTENCES).split()


@pytest.fixture
def sts(tmp_path):
    """Thirty pairs with random scores: any change of a ranking changes the correlation."""
    folder, random = tmp_path / "sts", np.random.default_rng(0)
    folder.mkdir()
    rows = [
        {"sentence1": _text(random), "sentence2": _text(random), "score": float(score)} for score in random.random(30)
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def retrieval(tmp_path):
    """Forty documents, twelve queries, three of the documents relevant to each."""
    folder, random = tmp_path / "retrieval", np.random.default_rng(1)
    (folder / "qrels").mkdir(parents=True)
    for name, count in (("corpus", 40), ("queries", 12)):
        rows = [{"_id": f"{name[0]}{i}", "title": "", "text": _text(random)} for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f"q{i}\tc{j}\t1" for i in range(12) for j in random.choice(40, 3, replace=False)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def _text(random):
    return " ".join(random.choice(WORDS, random.integers(2, 12)))


PROMPTS = {"query": "find: ", "document": "keep: "}
CASES = {
    "memory": {"lora": {}},
    "causal-last": {"memory_tokens": 0, "attention": "causal", "template": "{instruction}{text}{eos}"},
    "causal-mean": {"memory_tokens": 0, "attention": "causal", "pooling": Pooling("mean", "text")},
    "not-normalised": {"memory_tokens": 0, "pooling": "weighted_mean", "normalize": False},
    "limits": {"max_length": {"query": 20, "document": 12}},
    "two-templates": {
        "template": ["{instruction}{text}", "say {text}"],
        "memory_tokens": 0,
        "pooling": "last",
        "attention": "causal",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("case", by_default(["memory"], CASES))
def test_every_cell_equals_evaluate_of_the_cut_encoder(case, make_encoder, sts, retrieval):
    encoder = make_encoder(prompts=PROMPTS, **{"max_length": 64, **CASES[case]})
    tasks = [find_task(sts), find_task(retrieval)]
    surface = surface_of(encoder, tasks, dims=[4, 20], batch_tokens=200)
    assert (surface.layers, surface.dims) == ((1, 2), (4, 20, 32))
    assert surface.scores.shape == (2, 2, 3)
    for i, layer in enumerate(surface.layers):
        for j, dim in enumerate(surface.dims):
            evaluated = evaluate(cut(encoder, num_layers=layer, truncate_dim=dim), tasks, batch_tokens=200)
            np.testing.assert_allclose(surface.scores[:, i, j], [result.main_score for result in evaluated], atol=1e-9)
    assert len(np.unique(surface.scores[0])) == 6, "cells differ, so that a mix-up would show"
    assert surface.texts == 60 + 40 + 12
    assert min(surface.milliseconds) > 0


def test_every_text_is_computed_once(make_encoder, sts, retrieval, monkeypatch):
    """One pass over the layers for each text and side, however many cells there are."""
    encoder, rows = make_encoder(prompts=PROMPTS), []
    whole = type(encoder).layer_embeddings
    monkeypatch.setattr(
        type(encoder), "layer_embeddings", lambda self, tokens: rows.append(len(tokens)) or whole(self, tokens)
    )
    surface_of(encoder, [find_task(sts), find_task(retrieval), find_task(sts, name="again")], dims=[2, 4, 8])
    assert sum(rows) == 60 + 40 + 12


def test_milliseconds(make_encoder, monkeypatch):
    """The median a text, without the warm-up: 64 texts, layer i takes i seconds, and 100 at first; one round 50."""
    encoder, calls, now = make_encoder(), [], [0.0]

    def encode(texts, *, num_layers, **_):
        calls.append((len(set(texts)), num_layers))
        now[0] += 100 if len(calls) <= 2 else 50 if len(calls) == 5 else num_layers

    monkeypatch.setattr(encoder, "encode", encode)
    monkeypatch.setattr("embrew.analysis.surface.time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert milliseconds_of(encoder, [str(i) for i in range(100)], [1, 2]) == [1000 / 64, 2000 / 64]
    assert calls == [(64, 1), (64, 2)] * 6, "in turn"


def test_bert(encoder_folder, sts):
    from embrew import Encoder

    encoder = Encoder.from_pretrained(encoder_folder("bert"), device="cpu", pooling="cls", max_length=64)
    surface = surface_of(encoder, [find_task(sts)], layers=[2], dims=[8])
    assert (surface.layers, surface.dims) == ((2, 3), (8, 32))
    (evaluated,) = evaluate(cut(encoder, num_layers=2, truncate_dim=8), [sts])
    assert surface.scores[0, 0, 0] == pytest.approx(evaluated.main_score, abs=1e-9)
    assert surface.shallow_average() is None, "layer 1 was not scored"


def test_a_task_s_instruction_is_a_prompt(make_encoder, sts):
    encoder = make_encoder(template="{instruction}{text}{memory}")
    task = find_task(sts, instruction="Say what this means: ")
    surface = surface_of(encoder, [task], layers=[1], dims=[8])
    (evaluated,) = evaluate(cut(encoder, num_layers=1, truncate_dim=8), [task])
    assert surface.scores[0, 0, 0] == pytest.approx(evaluated.main_score, abs=1e-9)
    assert surface.scores[0, 0, 0] != surface_of(encoder, [find_task(sts)], layers=[1], dims=[8]).scores[0, 0, 0]


def test_vectors_that_need_more_than_half_of_the_free_memory_are_refused(make_encoder, sts, monkeypatch):
    encoder = make_encoder()
    monkeypatch.setattr("embrew.analysis.surface.total_and_free", lambda: (10**9, 2 * 2 * 60 * 32 * 4 - 2))
    monkeypatch.setattr(type(encoder), "layer_embeddings", lambda *_: pytest.fail("computed"))
    with pytest.raises(ValueError, match="2 layers × 60 texts × 32 dimensions .*half of the free memory"):
        surface_of(encoder, [find_task(sts)])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": [0, 3]}, "layers: 0, 3; this encoder has 1 to 2"),
        ({"dims": [64]}, "dims: 64; this encoder has 1 to 32"),
    ],
)
def test_what_the_encoder_has_not(options, words, make_encoder, sts):
    with pytest.raises(ValueError, match=words):
        surface_of(make_encoder(), [find_task(sts)], **options)


def test_a_sentence_transformer_is_refused(sts):
    with pytest.raises(ValueError, match="returns its last layer only; open its transformer by a recipe"):
        surface_of(SimpleNamespace(), [find_task(sts)])


# ---- what is read off, by hand -------------------------------------------------------------------------------------


def made(scores, kinds=("sts",), layers=None):
    scores = np.array(scores, dtype=float)
    layers = tuple(layers or range(1, scores.shape[1] + 1))
    tasks = tuple(SimpleNamespace(name=kind, kind=kind, split="test") for kind in kinds)
    dims = tuple(2 ** (j + 1) for j in range(scores.shape[2]))
    return Surface(layers, dims, tasks, scores, tuple(float(layer) for layer in layers), 10, ("10 pairs",) * len(kinds))


def test_pick():
    """Shares of 0.80: 0.792 is 99 %, 0.784 is 98 %. Costs are layers × dims."""
    surface = made([[[0.50, 0.70, 0.784], [0.60, 0.792, 0.79], [0.784, 0.70, 0.80]]])
    assert [(c.layers, c.dim) for c in (surface.pick(1), surface.pick(0.99), surface.pick(0.98))] == [
        (3, 8),
        (2, 4),
        (3, 2),
    ]
    cell = surface.pick(0.98)
    assert (cell.score, cell.bytes, cell.milliseconds) == (0.784, 8, 3.0)
    assert cell.kept == pytest.approx(0.98)
    tied = made([[[0.1, 0.8], [0.8, 0.8]]])
    assert (tied.pick(0.9).layers, tied.pick(0.9).dim) == (1, 4), "1 × 4 costs as much as 2 × 2 and has fewer layers"
    with pytest.raises(ValueError, match="a share of a score needs one above 0"):
        made([[[0.5, -0.1]]]).pick(0.9)


def test_pareto():
    surface = made([[[0.5, 0.4], [0.5, 0.7], [0.6, 0.7]]])
    assert [(cell.layers, cell.dim) for cell in surface.pareto()] == [(1, 2), (2, 4), (3, 2)]


def test_shallow_average():
    """All but the last layer; of fourteen layers the third to the thirteenth; STS alone."""
    surface = made([[[0.1, 0.2], [0.3, 0.5], [0.9, 0.9]], [[1, 1], [1, 1], [1, 1]]], kinds=("sts", "retrieval"))
    assert surface.shallow_average() == pytest.approx((0.2 + 0.5) / 2)
    assert surface.shallow_average(2) == pytest.approx((0.1 + 0.3) / 2)
    deep = made([[[layer / 100] for layer in range(1, 15)]])
    assert deep.shallow_average() == pytest.approx(sum(range(3, 14)) / 1100)
    last = made([[[layer / 100] for layer in range(3, 15)]], layers=range(3, 15))
    assert last.shallow_average() == deep.shallow_average()
    assert made([[[0.1], [0.2]]], kinds=("retrieval",)).shallow_average() is None
    assert made([[[0.1], [0.2]]], layers=(2, 3)).shallow_average() is None


@pytest.mark.parametrize("text", ["≥ 98 %", ">=98%", "98%", "0.98", " 98.0 % "])
def test_shares_are_read(text):
    assert read_share(text) == pytest.approx(0.98)


@pytest.mark.parametrize("text", ["98", "lots", "0 %", "120 %", "nan"])
def test_other_shares_are_refused(text):
    with pytest.raises(ValueError, match="is not a share of the full score"):
        read_share(text)


def test_numbers_are_read():
    assert read_numbers("1-3, 6") == [1, 2, 3, 6] and read_numbers("0..3") == [0, 1, 2, 3]
    for text in ("", "a", "3-", "-1", "1..", "1,,2"):
        with pytest.raises(ValueError, match="is not a list of numbers"):
            read_numbers(text)


# ---- whole and truncated in the plane ------------------------------------------------------------------------------


def test_truncation():
    """What lies in the leading dimensions stays where it is; what lies in the others moves."""
    random = np.random.default_rng(0)
    leading, both = (random.standard_normal((40, 10)) * scale for scale in ([1.0] * 4 + [0.001] * 6, [1.0] * 10))
    kept, moved = truncation_of(leading, 4), truncation_of(both, 4)
    assert kept.full.shape == kept.truncated.shape == (40, 2)
    assert kept.share < 0.05
    assert moved.share > 3 * kept.share
    distances = np.linalg.norm(moved.full - moved.truncated, axis=1)
    assert moved.distance == pytest.approx(distances.mean(), rel=1e-5)
    again = truncation_of(both, 4)
    assert np.array_equal(moved.full, again.full), "seeded"


def test_truncation_refuses():
    with pytest.raises(ValueError, match="vectors of 10 dimensions can be truncated to 1 to 9"):
        truncation_of(np.ones((60, 10)), 10)
    with pytest.raises(ValueError, match="15 texts for perplexity 30; give more than 15"):
        truncation_of(np.ones((15, 10)), 4)
