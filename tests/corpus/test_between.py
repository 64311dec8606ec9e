"""The passport that vectors carry: the fault of another model is named, and a linear map is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import embrew.opening
from embrew import check_passport
from embrew.cli import app
from embrew.corpus import encode_corpus, open_index, update_corpus
from embrew.corpus.between import ENOUGH, between
from embrew.data import Document
from embrew.opening import passport_files
from embrew.passport.of_index import passport_sha256
from embrew.search import SearchIndex
from tests.corpus.conftest import TEXTS
from tests.corpus.stub import Stub
from tests.parity.faulty import FORMS, LIMIT, THREE_PROMPTS

DOCUMENTS = [Document(id=str(i), text=f"text number {i}") for i in range(300)]


class Changed(Stub):
    """Vectors of `Stub`, multiplied by a matrix."""

    def __init__(self, matrix: np.ndarray, noise: float = 0.0) -> None:
        super().__init__(name="changed")
        self.matrix, self.noise = matrix, noise

    def encode(self, inputs: Any, **options: Any) -> np.ndarray:
        """Return the vectors of these texts."""
        drawn = np.random.default_rng(1).normal(size=(len(inputs), self.matrix.shape[1]))
        return (super().encode(inputs, **options) @ self.matrix + self.noise * drawn).astype(np.float32)


def orthonormal(rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(0).normal(size=(columns, rows)))[0].T


@pytest.mark.parametrize("dimensions", [16, 40])
def test_vectors_that_were_rotated_are_mapped(dimensions, tmp_path):
    SearchIndex.build(Stub(), DOCUMENTS).save(tmp_path / "index")
    result = between(tmp_path / "index", Changed(orthonormal(16, dimensions)))
    assert result.mapped == 1.0 and "a linear map would do" in result.verdict
    assert (result.fitted, result.held_out, result.faults) == (240, 60, {})
    assert (result.as_it_is is None) == (dimensions != 16) and (result.as_it_is or 0) < 0.3


def test_unrelated_vectors_and_half_of_the_dimensions_are_not_mixed(tmp_path):
    """Of unrelated vectors, a map finds what chance does: 10 of 299."""
    SearchIndex.build(Stub(), DOCUMENTS).save(tmp_path / "index")
    unrelated = between(tmp_path / "index", Stub(prompts={"document": "another text: "}, name="other"))
    assert unrelated.mapped < 0.15 and "do not mix" in unrelated.verdict
    half = between(tmp_path / "index", Changed(np.eye(16)[:, :8]))
    assert unrelated.mapped < half.mapped < ENOUGH and "do not mix" in half.verdict
    same = between(tmp_path / "index", Changed(np.eye(16)))
    assert same.as_it_is == 1.0 and "nearly the vectors of the index" in same.verdict


def test_what_cannot_be_measured(corpus, tmp_path):
    SearchIndex.build(Stub(), [*DOCUMENTS[:60], *(Document(f"again {i}", "the same") for i in range(90))]).save(
        tmp_path / "index"
    )
    few = between(tmp_path / "index", Stub(name="other"))
    assert few.mapped is None and "fewer than 100 documents with different texts" in few.verdict
    encode_corpus(Stub(), corpus, tmp_path / "vectors")
    with pytest.raises(ValueError, match="these documents have no texts"):
        between(tmp_path / "vectors", Stub(name="other"))
    assert between(tmp_path / "vectors", Stub(name="other"), corpus).mapped is None, "60 texts"


@pytest.fixture
def stored(make_encoder, corpus, tmp_path) -> tuple[Path, Any]:
    """A folder with an index and vectors, with the passport of an encoder that has prompts; and the encoder."""
    encoder = make_encoder(max_length=LIMIT, prompts=THREE_PROMPTS, **FORMS["last"])
    files = passport_files(encoder, "tiny")
    index = SearchIndex.build(encoder, corpus)
    index.passport = files
    index.save(tmp_path / "index")
    encode_corpus(encoder, corpus, tmp_path / "vectors", passport=lambda: files)
    return tmp_path, encoder


@pytest.mark.parametrize("kind", ["index", "vectors"])
def test_a_missing_prompt_is_named(kind, stored, make_encoder, corpus):
    folder, encoder = stored
    options = {"max_length": LIMIT, **FORMS["last"]}
    texts = corpus if kind == "vectors" else None
    assert open_index(folder / kind, encoder, texts).search([TEXTS[3]], top_k=1)
    with pytest.raises(ValueError, match=r"by its passport, different: the prompt is missing"):
        open_index(folder / kind, make_encoder(**options), texts)
    prompts = {**THREE_PROMPTS, "document": ""}
    message = r"queries are equal: within the tolerance of float32; documents are different: the prompt is missing"
    with pytest.raises(ValueError, match=message):
        open_index(folder / kind, make_encoder(prompts=prompts, **options), texts)
    with pytest.raises(ValueError, match="another model, or other weights"):
        open_index(folder / kind, Stub(32), texts)
    swapped = make_encoder(prompts={**THREE_PROMPTS, "document": THREE_PROMPTS["query"]}, **options)
    assert "'query'" in between(folder / kind, swapped, texts).faults["document"]


def test_a_passport_stays_with_its_vectors(stored, corpus):
    folder, encoder = stored
    index, _ = SearchIndex.load(folder / "index", encoder).updated([Document("a", "one more")])
    index.save(folder / "index", overwrite=True)
    corpus.write_text(corpus.read_text() + '{"_id": "more", "text": "one more"}\n')
    update_corpus(encoder, corpus, folder / "vectors")
    encode_corpus(encoder, corpus, folder / "vectors", passport=lambda: pytest.fail("it has one"))
    for about, manifest in (("index", "manifest.json"), ("vectors/__embrew__", "vectors.json")):
        stored_hash = json.loads((folder / about / manifest).read_text())["passport"]
        file = folder / about / check_passport.FILE
        assert stored_hash == passport_sha256({check_passport.FILE: file.read_bytes()})
        result = check_passport.check(check_passport.Passport.read(file), encoder.encode_query, prompt="query")
        assert result.equal, "the checker reads it where it lies"


@pytest.mark.parametrize("name", [check_passport.FILE, check_passport.TENSORS])
def test_a_damaged_passport_is_refused(name, stored):
    folder, encoder = stored
    for about, opened in (("index", "index"), ("vectors/__embrew__", "vectors")):
        file = folder / about / name
        file.write_bytes(file.read_bytes()[:-1] + b" ")
        with pytest.raises(ValueError, match="passport.json or passport.safetensors is missing or has changed"):
            open_index(folder / opened, encoder)
        file.unlink()
        with pytest.raises(ValueError, match="passport.json or passport.safetensors is missing or has changed"):
            open_index(folder / opened, encoder)


def test_the_command(make_encoder, monkeypatch, caplog, tmp_path):
    """`--build` and `encode` store the passport of the model, and `--why` names the fault."""
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"_id": d.id, "text": d.text}) + "\n" for d in DOCUMENTS))
    models = {"tiny": make_encoder(max_length=LIMIT, prompts=THREE_PROMPTS, **FORMS["last"])}
    models["bare"], models["stub"] = make_encoder(max_length=LIMIT, **FORMS["last"]), Stub()
    monkeypatch.setattr(embrew.opening, "open_model", lambda name, **_: models[name])

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [*map(str, arguments)])

    index, corpus = tmp_path / "index", tmp_path / "corpus.jsonl"
    assert run("search", "tiny", "--index", index, "--build", corpus).exit_code == 0
    why = run("search", "bare", "--index", index, "--why", "--json")
    assert why.exit_code == 0, why.stderr
    said = json.loads(why.stdout)
    assert "the prompt is missing" in said["faults"]["query"] and 0 < said["mapped"] <= 1
    text = run("search", "bare", "--index", index, "--why")
    assert "by the passport of the index" in text.stdout and said["verdict"][-40:] in " ".join(text.stdout.split())
    assert run("search", "bare", "--index", index, "--why", "a question").exit_code == 1
    assert run("encode", "tiny", corpus, tmp_path / "vectors").exit_code == 0
    assert (tmp_path / "vectors" / "__embrew__" / check_passport.FILE).is_file()
    assert run("search", "stub", "--index", tmp_path / "other", "--build", corpus).exit_code == 0
    assert "no passport is stored" in caplog.text and not (tmp_path / "other" / check_passport.FILE).exists()
