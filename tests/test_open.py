"""Opening a model by name, to embed with it."""

import json

import numpy as np
import pytest
import torch
from peft import PeftModel

from embrew import opening
from embrew.files.formats import RUN
from embrew.storage import base_model
from embrew.text_encoder import model_hash
from tests.conftest import SENTENCES


@pytest.fixture
def trained(make_encoder, model_folder, tmp_path):
    encoder = make_encoder(lora={"lora_dropout": 0.5})
    encoder.base_folder = model_folder("llama")
    encoder.save_pretrained(tmp_path / "trained", verify="off")
    return encoder, str(tmp_path / "trained")


def test_a_trained_folder_opens_with_its_adapter_in_the_weights(trained):
    encoder, folder = trained
    opened = opening.open_model(folder)
    assert not isinstance(opened.backbone.model, PeftModel)
    np.testing.assert_allclose(opened.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-5)
    assert model_hash(opened) == model_hash(encoder)  # the same model, in another form


def test_a_model_opens_in_the_dtype_asked_for(trained, monkeypatch):
    encoder, folder = trained
    monkeypatch.setattr(base_model, "supports_natively", lambda dtype, device: True)
    for name, pooling in ((folder, None), ("nano", "last"), ("baselines/mean", None)):
        assert opening.open_model(name, dtype="bfloat16", pooling=pooling).describe()["dtype"] == "bfloat16"
    half = opening.open_model(folder, dtype="bfloat16").encode(SENTENCES)
    cosines = (half * encoder.encode(SENTENCES)).sum(1) / np.linalg.norm(half, axis=1)
    assert cosines.min() > 0.99
    monkeypatch.setattr(base_model, "supports_natively", lambda dtype, device: dtype != torch.bfloat16)
    with pytest.raises(ValueError, match="bfloat16"):
        opening.open_model("nano", dtype="bfloat16", pooling="mean")


def test_a_run_that_is_not_finished_says_how_to_go_on(tmp_path):
    run = {"format": RUN.number, "final": "compress", "stages": ["compress"]}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(FileNotFoundError, match=r"last stage, compress, is not there; embrew runs .* how to go on"):
        opening.open_model(str(tmp_path))
