"""A local base kept with its encoder: what happens to the user's model afterwards, and to its weights by a link."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from embrew.encoder import Encoder
from embrew.files.checksums import NAME, Damaged, read_checksums
from tests.conftest import SENTENCES, stir

WEIGHTS = "model.safetensors"


@pytest.fixture
def base(model_folder, tmp_path) -> Path:
    """The user's own model."""
    return shutil.copytree(model_folder("llama"), tmp_path / "mine")


def saved(base: Path, folder: Path) -> Encoder:
    encoder = Encoder.from_pretrained(base, device="cpu", pooling="mean")
    encoder.backbone.add_lora({"r": 2})
    stir(encoder.backbone)
    encoder.save_pretrained(folder, verify="off")
    return encoder


def vectors(folder: Path) -> np.ndarray:
    return np.asarray(Encoder.from_pretrained(folder, device="cpu").encode(SENTENCES))


def edit_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x12\x3f")


def test_only_weights_are_links(base, tmp_path):
    """An edit of the user's config.json moved the vectors by 0.4, since the encoder's was the same file."""
    saved(base, tmp_path / "encoder")
    before, kept = vectors(tmp_path / "encoder"), tmp_path / "encoder" / "base"
    names = {path.name: path.stat().st_nlink for path in kept.iterdir()}
    assert names.pop(WEIGHTS) == 2 and len(names) >= 3 and {*names.values()} == {1}
    for name in names:
        values = json.loads((base / name).read_text())
        (base / name).write_text(json.dumps({**values, "rms_norm_eps": 0.5, "bos_token": "</s>"}))
    np.testing.assert_array_equal(vectors(tmp_path / "encoder"), before)


@pytest.mark.parametrize("with_checksums", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_weights_that_are_edited_in_place_are_noticed(with_checksums, base, tmp_path):
    """The message says how, and what it says repairs the encoder and leaves the edited model as it is."""
    original = shutil.copyfile(base / WEIGHTS, tmp_path / "original.safetensors")
    saved(base, tmp_path / "encoder")
    before = vectors(tmp_path / "encoder")
    if not with_checksums:
        (tmp_path / "encoder" / NAME).unlink()
    edit_in_place(base / WEIGHTS)
    with pytest.raises(Damaged, match="a hard link, one file with one of another folder") as error:
        vectors(tmp_path / "encoder")
    kept = tmp_path / "encoder" / "base" / WEIGHTS
    assert "\n" not in str(error.value) and f"{kept}: a hard link" in str(error.value)
    edited = (base / WEIGHTS).read_bytes()
    kept.unlink()
    shutil.copyfile(original, kept)
    np.testing.assert_array_equal(vectors(tmp_path / "encoder"), before)
    assert (base / WEIGHTS).read_bytes() == edited


def test_weights_that_change_before_saving_are_not_kept(base, tmp_path):
    """The adapter would be saved with weights that it was not trained on."""
    encoder = Encoder.from_pretrained(base, device="cpu", pooling="mean")
    encoder.backbone.add_lora({"r": 2})
    edit_in_place(base / WEIGHTS)
    with pytest.raises(ValueError, match="its adapter means nothing on other weights"):
        encoder.save_pretrained(tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()


@pytest.mark.slow
def test_a_base_of_links_shards_and_other_folders(base, tmp_path):
    """As in the Hub's cache, where every file is a link into a folder of contents; and with a folder of its own."""
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / name, tmp_path / "sharded" / name)
    (tmp_path / "snapshot" / "tokenizer").mkdir(parents=True)
    for number, path in enumerate(sorted((tmp_path / "sharded").iterdir())):
        path.rename(tmp_path / f"blob{number}")
        (tmp_path / "snapshot" / path.name).symlink_to(tmp_path / f"blob{number}")
    encoder = saved(tmp_path / "snapshot", tmp_path / "encoder")
    kept = tmp_path / "encoder" / "base"
    shards = sorted(kept.glob("model-*.safetensors"))
    assert len(shards) >= 3 and (kept / "model.safetensors.index.json").is_file()
    assert not any(path.is_symlink() for path in kept.iterdir())
    assert {path.stat().st_nlink for path in shards} == {2}
    listed = read_checksums(tmp_path / "encoder") or {}
    assert {f"base/{path.name}" for path in kept.iterdir()} <= listed.keys()
    assert np.abs(vectors(tmp_path / "encoder") - encoder.encode(SENTENCES)).max() < 1e-6
    edit_in_place(shards[1].resolve())
    with pytest.raises(Damaged, match=rf"base/{shards[1].name} has changed"):
        vectors(tmp_path / "encoder")
