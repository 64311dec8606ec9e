"""GenEOL: the mean over a text and the variants that a language model writes of it."""

import numpy as np
import pytest
from typer.testing import CliRunner

from embrew import opening
from embrew.cli import app
from embrew.evaluation import evaluate as score
from embrew.evaluation import find_task
from embrew.recipe import Recipe, build
from embrew.recipe.encoder import Variants
from embrew.serving.service import Service
from embrew.serving.settings import Settings
from embrew.text_encoder import describe_run
from embrew.variants import VariantEncoder

TEXTS = ["A man plays the guitar.", "How deep is the lake?", "A dog sleeps."]
PROMPTS = ["Say it again: {text}\nAgain:", "{text} In other words:"]


@pytest.fixture
def encoder(make_encoder):
    plain = make_encoder(
        template='This sentence : "{text}" means in one word:"', attention="causal", pooling="last", memory_tokens=0
    )
    return VariantEncoder(plain, plain, Variants(prompts=PROMPTS, per_prompt=2, max_new_tokens=4), seed=1)


def test_a_vector_is_the_unit_mean_of_all_versions(encoder, monkeypatch):
    written = {text: [f"{text} {i}" for i in range(4)] for text in TEXTS}
    monkeypatch.setattr(encoder, "write", written.__getitem__)
    raw = encoder.encoder.with_settings(normalize=False)
    vectors = encoder.encode(TEXTS)
    for vector, text in zip(vectors, TEXTS, strict=True):
        mean = sum(raw.encode(version) for version in (text, *written[text])) / 5
        assert vector == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
        assert np.abs(vector - encoder.encoder.encode(text)).max() > 1e-3
        shorter = encoder.encode_document(text, truncate_dim=8)
        assert shorter == pytest.approx(mean[:8] / np.linalg.norm(mean[:8]), abs=1e-5)


def test_variants_do_not_depend_on_the_batch(encoder):
    alone = [encoder.encode_query(text) for text in TEXTS]
    together = encoder.encode_query([*TEXTS, TEXTS[0]])
    assert together == pytest.approx(np.stack([*alone, alone[0]]), abs=1e-5)
    written = encoder.write(TEXTS[0])
    assert len(written) == 4 and len(set(written)) > 1
    assert written == encoder.write(TEXTS[0]) != encoder.write(TEXTS[1])
    other = VariantEncoder(encoder.encoder, encoder.encoder, encoder.settings, seed=2)
    assert other.write(TEXTS[0]) != written and other.weights_hash() != encoder.weights_hash()


def test_an_empty_variant_is_the_text_and_the_second_rewriting_reads_the_first(encoder, monkeypatch):
    both = VariantEncoder(encoder.encoder, encoder.encoder, Variants(prompts=PROMPTS[:1], then="{text}"), seed=1)
    first, second = [" \n one \n two", "", *["x"] * 6], ["", "short", *["y"] * 6]
    calls = []
    monkeypatch.setattr(both._prompts[0], "generate", lambda texts, **_: calls.append(list(texts)) or first)
    monkeypatch.setattr(both._then, "generate", lambda texts, **_: calls.append(list(texts)) or second)
    assert both.write("the text") == ["one", "short", *["y"] * 6]
    assert calls == [["the text"], ["one", "the text", *["x"] * 6]]


def test_the_recipe_is_evaluated_and_hashed(model_folder, tmp_path):
    model = model_folder("llama")
    few = [f"encoder.model={model}", "encoder.max_length={query: 320, document: 320}", "encoder.dtype=float32"]
    few += ["encoder.variants.per_prompt=1", "encoder.variants.max_new_tokens=2"]
    encoder = opening.open_model("baselines/geneol", few)
    assert isinstance(encoder, VariantEncoder) and encoder.generator.base == encoder.encoder.base
    other = opening.open_model("baselines/geneol", [*few, f"encoder.variants.generator={model}"])
    assert isinstance(other, VariantEncoder) and other.generator.backbone is not other.encoder.backbone
    assert other.write(TEXTS[0]) == encoder.write(TEXTS[0])  # the same language model, opened twice
    (tmp_path / "test.jsonl").write_text(
        "\n".join(f'{{"sentence1": "{text}", "sentence2": "{text} x", "score": {i}}}' for i, text in enumerate(TEXTS))
    )
    (result,) = score(encoder, [find_task(tmp_path)])
    assert -1 <= result.main_score <= 1
    about = describe_run(encoder)
    assert about["model"]["variants"]["per_prompt"] == 1 and about["model_hash"] == encoder.weights_hash()


def test_what_cannot_have_variants_refuses_them(encoder, tmp_path):
    with pytest.raises(ValueError, match="not trained on; leave them out"):
        Recipe.load("baselines/nli-nano", ["encoder.variants.prompts=['{text}']"])
    with pytest.raises(ValueError, match="encoder.variants goes with evaluate"):
        build.encoder(Recipe.load("baselines/geneol"))
    with pytest.raises(ValueError, match="use --backend torch"):
        opening.open_model("baselines/geneol", backend="openvino")
    service = Service(Settings("baselines/geneol"))
    service.load()
    assert "which is not served" in str(service.failure)
    exported = CliRunner().invoke(app, ["export", "baselines/geneol", str(tmp_path / "x")])
    assert exported.exit_code == 1 and "which no export does" in exported.stderr
    with pytest.raises(ValueError, match="decode it"):
        encoder.encode([[1, 2, 3]])
    with pytest.raises(ValueError, match=r"no \{text\}|text"):
        Variants(prompts=["nothing to rewrite"])
