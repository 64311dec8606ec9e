"""Contexts beside a model: the same vectors after re-opening, one at a time, whole or not at all."""

import json

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.files.checksums import write_checksums
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations
from embrew.storage import parts
from embrew.storage.parts import read_contexts, remove_context, write_context
from embrew.text_encoder import vectors_hash
from tests.conftest import SENTENCES, stir

PAIRS = (Demonstration("fox", SENTENCES[0]), Demonstration("sea", SENTENCES[3]))
FIRST, SECOND = Context("Find it: ", PAIRS), Context("Say the same: ", PAIRS[::-1], "Text: ")


@pytest.fixture
def saved(model_folder, tmp_path):
    """An encoder with a LoRA and two contexts, and its folder."""
    encoder = Encoder.from_pretrained(
        model_folder("llama"), device="cpu", template="{instruction}{text}{eos}", demonstrations=Demonstrations()
    )
    encoder.backbone.add_lora({"r": 4})
    stir(encoder.backbone)
    encoder.add_context("first", FIRST)
    encoder.add_context("second", SECOND)
    encoder.save_pretrained(tmp_path / "model", verify="off")
    return encoder, tmp_path / "model"


def test_the_same_vectors_after_opening(saved):
    encoder, folder = saved
    again = Encoder.from_pretrained(folder, device="cpu")
    assert list(again.contexts) == ["first", "second"]
    for name, context in (("first", FIRST), ("second", SECOND)):
        assert again.contexts[name].context == context
        assert again.contexts[name].row == encoder.contexts[name].row
        assert torch.equal(again.contexts[name].vectors, encoder.contexts[name].vectors)
        assert again.contexts[name].model_hash == vectors_hash(again)
        wanted = encoder.encode(SENTENCES, prompt_name=name)
        assert np.abs(again.encode(SENTENCES, prompt_name=name) - wanted).max() < 1e-6
    assert "`first`: `'Find it: '`, 2 demonstrations" in (folder / "README.md").read_text()


def test_contexts_of_another_tokenizer_are_computed_anew(saved, tmp_path):
    encoder, folder = saved
    path = folder / "tokenizer.json"
    written = json.loads(path.read_text())
    path.write_text(
        json.dumps({**written, "normalizer": {"type": "Replace", "pattern": {"String": "f"}, "content": "s"}})
    )
    write_checksums(folder)
    changed = Encoder.from_pretrained(folder, device="cpu")
    assert changed.weights_hash() == encoder.weights_hash() and vectors_hash(changed) != vectors_hash(encoder)
    changed.save_pretrained(tmp_path / "other")
    again = Encoder.from_pretrained(tmp_path / "other", device="cpu")
    assert not torch.equal(again.contexts["first"].vectors, encoder.contexts["first"].vectors)


def test_one_more_and_one_less_leave_the_others_alone(saved):
    encoder, folder = saved
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_context(folder, "third", encoder.add_context("third", Context("Third: ", PAIRS[:1])))
    assert {path: path.read_bytes() for path in before} == before
    assert list(read_contexts(folder)) == ["first", "second", "third"]
    remove_context(folder, "third")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    with pytest.raises(FileNotFoundError, match="has no context third; it has first, second"):
        remove_context(folder, "third")
    for name in ("first", "second"):
        remove_context(folder, name)
    assert not (folder / "contexts").exists()
    assert Encoder.from_pretrained(folder, device="cpu").contexts == {}


def test_what_is_stopped_leaves_nothing(saved, monkeypatch):
    encoder, folder = saved
    prepared = encoder.contexts["first"]
    monkeypatch.setattr(parts, "save_file", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_context(folder, "third", prepared)
    with pytest.raises(OSError, match="no space"):
        write_context(folder, "first", prepared, overwrite=True)
    assert list(read_contexts(folder)) == ["first", "second"]
    assert sorted(path.name for path in (folder / "contexts").iterdir()) == ["first", "second"]


def test_after_training_they_are_made_anew(saved, tmp_path):
    encoder, _ = saved
    old = encoder.contexts["first"].vectors
    stir(encoder.backbone, noise=0.2, seed=9)
    encoder.save_pretrained(tmp_path / "later")
    again = Encoder.from_pretrained(tmp_path / "later", device="cpu")
    fresh = encoder.add_context("fresh", FIRST)
    assert not torch.equal(again.contexts["first"].vectors, old)
    torch.testing.assert_close(again.contexts["first"].vectors, fresh.vectors)


def test_mistakes(saved):
    encoder, folder = saved
    with pytest.raises(FileExistsError, match="exists already"):
        write_context(folder, "first", encoder.contexts["first"])
    for name in ("", "a/b", "../up", ".hidden", "end.", "ä"):
        with pytest.raises(ValueError, match="a name is letters, digits"):
            encoder.add_context(name, FIRST)
    with pytest.raises(ValueError, match="a prompt has this name already"):
        encoder.add_context("query", FIRST)
    about = folder / "contexts" / "first" / "context.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "format": 1}))
    write_checksums(about.parent)
    with pytest.raises(ValueError, match="format 1; this embrew reads format 2"):
        Encoder.from_pretrained(folder, device="cpu")
