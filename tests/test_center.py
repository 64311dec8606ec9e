"""`pooling.center`: what numpy subtracts, in memory, saved, exported, of ready models, and at the end of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from transformers import BertConfig
from typer.testing import CliRunner

from embrew import Encoder, center
from embrew.adapting.defaults import CenterDefaults
from embrew.adapting.plan_training import _score_centered
from embrew.adapting.recipes import spread
from embrew.centering import read_groups
from embrew.cli import app
from embrew.cutting import cut
from embrew.export.exporting import export_encoder
from embrew.merging import average
from embrew.model.center import centered, uncentered
from embrew.model.encoder_module import CardFacts
from embrew.opening import open_model
from embrew.runtimes.llama_cpp import refused_by_llama_cpp
from embrew.runtimes.stock_folder import pooling_refused
from embrew.settings.encoder import Pooling
from embrew.training.stages import train
from tests.conftest import SENTENCES
from tests.models import ENCODER_SIZES
from tests.rows import write_rows
from tests.test_stock_starts import added, stock
from tests.training.one_stage import one_stage

TEXTS = [f"{number} {text}" for number in range(4) for text in SENTENCES]
PAIRS = [{"query": f"which {text[:9]}", "positive": text} for text in TEXTS]
NEW = ["A heron waits in the shallow water.", "Interest rates rose.", "ok"]


def subtracted(raw: np.ndarray, vectors: np.ndarray, components: int) -> np.ndarray:
    """Unit vectors of `vectors`, without the mean and the first components of `raw`, by an SVD in float64."""
    raw, vectors = raw.astype(np.float64), vectors.astype(np.float64) - raw.mean(0, dtype=np.float64)
    first = np.linalg.svd(raw - raw.mean(0), full_matrices=False)[2][:components]
    kept = vectors - vectors @ first.T @ first
    return np.asarray(kept / np.linalg.norm(kept, axis=1, keepdims=True))


def raw_vectors(encoder: Encoder, pairs: list[dict[str, str]]) -> np.ndarray:
    plain = encoder.with_settings(normalize=False)
    sides = {"query": plain.encode_query, "positive": plain.encode_document}
    return np.concatenate([encode(list({row[side]: 0 for row in pairs})) for side, encode in sides.items()])


def same(a: Any, b: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=atol)


PROMPTS = {"query": "find: ", "document": "keep: "}
CASES: dict[str, dict[str, Any]] = {
    "mean": {"memory_tokens": 0, "template": "{instruction}{text}", "pooling": Pooling("mean"), "attention": "causal"},
    "concat": {"memory_tokens": 2, "pooling": Pooling("concat", "memory")},
    "projection": {"memory_tokens": 2, "pooling": Pooling("mean", "memory", projection=12)},
    "latents": {"memory_tokens": 2, "pooling": Pooling("mean", "memory", latents=4, heads=2)},
}


@pytest.mark.parametrize("case", CASES)
def test_the_vectors_are_those_of_numpy_and_stay_so_in_a_folder_and_exports(case, make_encoder, tmp_path):
    """Both sides with their own prompts make one mean; it comes after a head, before truncation."""
    encoder = make_encoder(lora={}, prompts=PROMPTS, max_length=64, **CASES[case])
    groups = read_groups(write_rows(tmp_path / "pairs.jsonl", PAIRS))
    new = centered(encoder, groups, 2)
    expected = subtracted(raw_vectors(encoder, PAIRS), encoder.with_settings(normalize=False).encode_query(NEW), 2)
    same(new.encode_query(NEW), expected)
    short = expected[:, :5] / np.linalg.norm(expected[:, :5], axis=1, keepdims=True)
    same(new.encode_query(NEW, truncate_dim=5), short)
    assert (
        encoder.center is None and encoder.weights_hash() != new.weights_hash() != centered(new, groups).weights_hash()
    )
    same(uncentered(new).encode(NEW), encoder.encode(NEW), atol=0)
    if case in ("mean", "projection"):
        export_encoder(new, tmp_path / "stock", verify="off")
        same(SentenceTransformer(str(tmp_path / "stock"), device="cpu").encode_query(NEW), new.encode_query(NEW))
        export_encoder(new, tmp_path / "cut", verify="off", truncate_dim=5)
        same(SentenceTransformer(str(tmp_path / "cut"), device="cpu").encode_query(NEW), short)
    if case == "mean":
        pytest.importorskip("openvino")
        export_encoder(new, tmp_path / "openvino", runtimes=["openvino"], verify="off")
        same(open_model(str(tmp_path / "openvino")).encode_query(NEW), new.encode_query(NEW))
        with pytest.raises(ValueError, match="output of a graph; centre the encoder that it was made of"):
            center(tmp_path / "openvino", tmp_path / "pairs.jsonl", tmp_path / "out")


def test_saved_verified_in_a_fresh_process_and_refused_where_it_cannot_be(model_folder, tmp_path, forked):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join([*TEXTS, "", TEXTS[0]]))
    arguments = ["center", str(model_folder("llama")), "--texts", str(texts), "-o", str(tmp_path / "out")]
    assert "it has no pooling; choose one with --pooling" in CliRunner().invoke(app, arguments).stderr
    done = CliRunner().invoke(app, [*arguments, "--pooling", "mean", "--components", "3", "--verify", "full"])
    assert done.exit_code == 0, done.stderr
    new = Encoder.from_pretrained(tmp_path / "out")
    plain = open_model(str(model_folder("llama")), pooling="mean")
    raw = plain.with_settings(normalize=False)
    same(new.encode(NEW), subtracted(raw.encode_document(TEXTS), raw.encode(NEW), 3))
    assert new.settings.as_dict()["pooling"] == {"mode": "mean", "over": "all", "center": True, "components": 3}
    assert "first 3 principal components, are subtracted" in (tmp_path / "out" / "README.md").read_text()
    assert "checksums.json" in {path.name for path in (tmp_path / "out").iterdir()}
    again = center(tmp_path / "out", texts, tmp_path / "again")  # what it subtracted is replaced
    same(again.encode(NEW), subtracted(raw.encode_document(TEXTS), raw.encode(NEW), 0))
    for refused in (lambda: new.encode(NEW, num_layers=1), lambda: cut(new, num_layers=1)):
        with pytest.raises(ValueError, match=r"\(pooling.center\) is that of all 2 layers; leave num_layers out"):
            refused()
    with pytest.raises(ValueError, match="average encoders that are not centred"):
        average([tmp_path / "out", tmp_path / "out"], tmp_path / "averaged")
    with pytest.raises(ValueError, match="belong to trained weights"):
        new.with_settings(pooling=Pooling("mean"))
    with pytest.raises(ValueError, match=r"pooling.center: its mean is that of training texts"):
        Encoder.from_pretrained(model_folder("llama"), pooling={"mode": "mean", "center": True})
    pytest.importorskip("gguf")
    assert "a mean is subtracted from its vectors (pooling.center)" in str(refused_by_llama_cpp(new))
    assert "a mean is subtracted from its vectors" in str(pooling_refused(new))


@pytest.mark.parametrize("dense", [False, True])
def test_a_ready_model_stays_one(dense, tokenizer, tmp_path):
    """A layer more, before normalisation; opened by Sentence-Transformers alone and, to train it, by embrew."""
    layers = [Dense(32, 20, activation_function=torch.nn.Tanh())] if dense else []
    folder = stock(
        tmp_path, BertConfig(**ENCODER_SIZES), added(tokenizer, "<s> $A </s>"), "mean", *layers, Normalize(),
        prompts=PROMPTS,
    )  # fmt: skip
    (Path(folder) / "README.md").write_text("---\nlicense: mit\n---\n\n# Mine\n")
    pairs = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    arguments = ["center", folder, "--texts", pairs, "-o", tmp_path / "out", "--components", 1]
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.stderr
    before, out = SentenceTransformer(folder, device="cpu"), str(tmp_path / "out")
    raw = SentenceTransformer(modules=list(before)[:-1], prompts=PROMPTS, device="cpu")
    sides = {"query": raw.encode_query, "positive": raw.encode_document}
    vectors = np.concatenate([encode(list({row[side]: 0 for row in PAIRS})) for side, encode in sides.items()])
    expected = subtracted(vectors, raw.encode_query(NEW), 1)
    new = SentenceTransformer(out, device="cpu")
    same(new.encode_query(NEW), expected)
    assert [type(module).__name__ for module in new][-2:] == ["Dense", "Normalize"]
    same(open_model(out).encode_query(NEW), expected)
    same(Encoder.from_pretrained(out).encode_query(NEW), expected)
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit") and "## Centred" in card and "1 principal components are" in card
    again = CliRunner().invoke(app, [*map(str, arguments)])
    assert again.exit_code == 1 and "exists already" in again.stderr
    with pytest.raises(ValueError, match="is centred already; centre the model that it was made of"):
        center(out, pairs, tmp_path / "twice")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "a mean is subtracted" in config["architectures"][0], "vLLM refuses it"
    assert "a mean is subtracted" in config["max_trained_positions"], "Text Embeddings Inference, too"


def test_a_normalisation_that_is_not_the_last_layer_stays(tokenizer, tmp_path):
    layers = [Normalize(), Dense(32, 20, activation_function=torch.nn.Identity()), Normalize()]
    folder = stock(tmp_path, BertConfig(**ENCODER_SIZES), added(tokenizer, "<s> $A </s>"), "mean", *layers)
    center(folder, write_rows(tmp_path / "pairs.jsonl", PAIRS), tmp_path / "out", components=1)
    raw = SentenceTransformer(modules=list(SentenceTransformer(folder, device="cpu"))[:-1], device="cpu")
    vectors = np.concatenate([raw.encode([row[side] for row in PAIRS]) for side in ("query", "positive")])
    same(SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(NEW), subtracted(vectors, raw.encode(NEW), 1))


def test_what_is_said_of_the_model_before_is_not_said_of_the_centred_one(model_folder, tmp_path):
    """Its scores, its passport, its graphs."""
    pytest.importorskip("openvino")
    encoder = Encoder.from_pretrained(model_folder("llama"), pooling="mean", max_length=64)
    about = {"sts": {"kind": "sts", "split": "dev", "metric": "spearman", "examples": 20}}
    encoder.card_facts = CardFacts(
        stage="one", objectives={"one": "contrastive"}, arithmetic={}, recipe="{}", data={"one": []},
        scores={"one": {"sts": 0.5}}, curves={}, kept={}, about=about,
    )  # fmt: skip
    encoder.save_pretrained(tmp_path / "trained")
    export_encoder(encoder, tmp_path / "export", runtimes=["sentence-transformers", "openvino"])
    texts = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    for name in ("trained", "export"):
        assert "value: 0.5" in (tmp_path / name / "README.md").read_text()
        center(tmp_path / name, texts, tmp_path / f"{name}-centred", components=1)
        assert "model-index" not in (tmp_path / f"{name}-centred" / "README.md").read_text()
    left = {"passport.json", "passport.safetensors", "openvino", "parity.json"}
    assert left <= {path.name for path in (tmp_path / "export").iterdir()}
    assert not left & {path.name for path in (tmp_path / "export-centred").iterdir()}


def test_too_little_to_subtract_is_one_error(make_encoder, tmp_path):
    last = {"memory_tokens": 0, "template": "{text}", "attention": "causal", "pooling": Pooling("last")}
    encoder, group = make_encoder(**last), lambda *texts: {("document", None): list(texts)}
    for groups, components, message in (
        ({}, 0, "0 texts with words; a mean to subtract needs two or more"),
        (group(*TEXTS), 32, "components=32 of 20 texts and 32 dimensions; give fewer than both"),
        (group(*TEXTS[:3]), 3, "components=3 of 3 texts"),
        (group(*TEXTS[:3]), 2, "the vectors of 3 texts vary in no more directions"),
        (group(*TEXTS), -1, r"components=-1; give 0 \(the mean alone\) or more"),
    ):
        with pytest.raises(ValueError, match=message):
            centered(encoder, groups, components)
    first = make_encoder(**{**last, "pooling": Pooling("cls")})  # of BOS, which reads nothing
    with pytest.raises(ValueError, match="are equal up to rounding"):
        centered(first, group(*TEXTS))
    encoder.backbone.inner.norm.weight.data[0] = torch.nan
    with pytest.raises(ValueError, match="has a NaN or infinite embedding"):
        centered(encoder, group(*TEXTS))
    with pytest.raises(ValueError, match="compared with another model's documents"):
        centered(make_encoder(**last, space="0" * 64), group(*TEXTS))
    with pytest.raises(ValueError, match="set center: true too"):
        Pooling("mean", components=2)
    assert Pooling("mean", center=False, components=0) == Pooling("mean")
    for rows, message in (([], "holds no rows"), ([{"label": 1}], "no texts in the columns label")):
        with pytest.raises(ValueError, match=message):
            read_groups(write_rows(tmp_path / "rows.jsonl", rows))
    sentences = write_rows(tmp_path / "sts.jsonl", [{"sentence1": "a", "sentence2": "b", "score": 1.0}])
    assert read_groups(sentences) == {("document", None): ["a", "b"]}
    (tmp_path / "corpus").mkdir()
    write_rows(tmp_path / "corpus" / "corpus.jsonl", [{"_id": "1", "title": "t", "text": "x"}])
    assert read_groups(tmp_path / "corpus") == {("document", None): ["t x"]}


def test_of_a_recipe_after_the_last_stage(model_folder, tmp_path):
    """Scores are those of the centred encoder; it is resumed, and kept steps have their own."""
    pairs = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    encoder = {"pooling": {"mode": "mean", "center": True, "components": 2}, "prompts": PROMPTS}
    recipe = one_stage(model_folder("llama"), pairs, encoder=encoder, training={"max_steps": 2, "keep": [1]})
    stage = recipe.stages[0].model_copy(update={"name": "two", "training": {**recipe.stages[0].training, "keep": None}})
    recipe = recipe.model_copy(update={"stages": [stage.model_copy(update={"name": "zero"}), recipe.stages[0]]})
    scored: list[Encoder] = []

    def evaluate(encoder: Encoder) -> dict[str, float]:
        scored.append(encoder)
        return {"dev": float(encoder.center is not None)}

    trained = train(recipe, tmp_path / "run", evaluate=evaluate)
    expected = subtracted(
        raw_vectors(uncentered(trained), PAIRS), uncentered(trained).with_settings(normalize=False).encode(NEW), 2
    )
    same(trained.encode(NEW), expected)
    same(Encoder.from_pretrained(tmp_path / "run").encode(NEW), expected)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["scores"]["one"]["dev"] == 1.0
    zero, kept = (Encoder.from_pretrained(tmp_path / "run" / name) for name in ("zero", "one.step-1"))
    assert zero.center is None and kept.center is not None and trained.center is not None
    assert not torch.equal(kept.center.mean, trained.center.mean)
    count = len(scored)
    same(train(recipe, tmp_path / "run", resume=True, evaluate=evaluate).encode(NEW), expected)
    assert len(scored) == count
    other = one_stage(model_folder("llama"), pairs, encoder={**encoder, "pooling": {"mode": "mean", "center": True}})
    other = recipe.model_copy(update={"encoder": other.encoder})
    with pytest.raises(ValueError, match=r"other settings \(encoder.pooling.components\)"):
        train(other, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="pooling.center without stages: its mean is that of training texts"):
        file = tmp_path / "plain.yaml"
        file.write_text(json.dumps({"encoder": {"model": "nano", "pooling": {"mode": "mean", "center": True}}}))
        open_model(str(file))


@pytest.mark.parametrize("score", [0.9, 0.1])
def test_it_is_an_untrained_baseline_of_adapt_where_dev_says_so(score, model_folder, tmp_path):
    """Of the best pooling; few texts of each side are read."""
    defaults = SimpleNamespace(center=CenterDefaults(texts=16, components=1))
    candidate: Any = SimpleNamespace(
        options=SimpleNamespace(defaults=defaults),
        data=SimpleNamespace(texts=lambda: {"query": TEXTS[:4], "document": TEXTS}),
        score=lambda encoder, name, split: SimpleNamespace(main_score=score * (encoder.center is not None)),
        centered=tmp_path / "centred",
    )
    encoder, scores = open_model(str(model_folder("llama")), pooling="mean"), {"mean": 0.5}
    pays = score > 0.5
    assert _score_centered(candidate, encoder, "mean", scores) == ("mean-centered" if pays else "mean")
    assert scores == {"mean": 0.5, "mean-centered": score} and candidate.centered.is_dir() == pays
    if pays:
        raw = encoder.with_settings(normalize=False)
        texts = [*raw.encode_document(spread(TEXTS, 8)), *raw.encode_query(TEXTS[:4])]
        expected = subtracted(np.stack(texts), raw.encode(NEW), 1)
        same(Encoder.from_pretrained(candidate.centered).encode(NEW), expected)


@pytest.mark.slow
def test_a_centred_start_and_too_many_components(model_folder, tmp_path, caplog):
    """The mean of the start is left out of training, and computed again."""
    pairs = write_rows(tmp_path / "pairs.jsonl", PAIRS)
    encoder = {"pooling": {"mode": "mean", "center": True, "components": 2}, "prompts": PROMPTS}
    recipe = one_stage(model_folder("llama"), pairs, encoder=encoder, training={"max_steps": 1})
    first = train(recipe, tmp_path / "run")
    with caplog.at_level("INFO"):
        further = train(recipe, tmp_path / "further", start=tmp_path / "run")
    assert "is left out of training" in caplog.text and further.center is not None and first.center is not None
    assert not torch.equal(further.center.mean, first.center.mean)
    with pytest.raises(ValueError, match="components=32 of 40 texts and 32 dimensions"):
        wide = {**encoder, "pooling": {**encoder["pooling"], "components": 32}}  # type: ignore[dict-item]
        train(one_stage(model_folder("llama"), pairs, encoder=wide), tmp_path / "wide")
