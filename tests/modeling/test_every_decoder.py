"""Every decoder that transformers maps: vectors are those of the library's own call, or the model is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from embrew.encoder import Encoder
from embrew.model.forward import causal_masks
from embrew.model.kernels import use_own_sdpa
from embrew.storage import base_model
from tests import decoders
from tests.models import SENTENCES, spread

PROMPT = "an instruction that is the same for every text, and long: "
TEXTS = [SENTENCES[0], SENTENCES[1][:12], "", "long " * 15]


def written(name: str, folder: Path, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Write a random model in which every token matters, and return it as transformers opens it again."""
    torch.manual_seed(0)
    config = decoders.config_of(name)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    assert size < 4e6, f"{size} parameters"
    spread(AutoModelForCausalLM.from_config(config), bias=0.02).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def by_library(model: Any, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> np.ndarray:
    """Return last states of texts, each in a call of its own."""
    rows = []
    for text in texts:
        with torch.no_grad():
            states = model.base_model(**tokenizer(text, return_tensors="pt"), use_cache=False).last_hidden_state
        rows.append(states[0, -1].float().numpy())
    return np.stack(rows)


def states_of(encoder: Encoder, texts: list[str]) -> np.ndarray:
    """Return last states as a training step computes them."""
    tokens = encoder.tokenize(texts)
    states = encoder.hidden_states(tokens).detach()
    return np.stack([states[i, length - 1].numpy() for i, length in enumerate(tokens.lengths)])


def outcome(name: str, folder: Path, tokenizer: PreTrainedTokenizerFast) -> str:
    """Return `equal`, `library's masks`, `refused` or `not built`; assert that what opens has the library's states."""
    try:
        model = written(name, folder, tokenizer)
    except Exception:
        return "not built"
    settings: dict[str, Any] = {"attention": "causal", "pooling": "last", "normalize": False, "max_length": 128}
    try:
        encoder = Encoder.from_pretrained(folder, device="cpu", dtype="float32", **settings)
    except ValueError:
        return "refused"
    expected, prompted = (by_library(model, tokenizer, [prompt + text for text in TEXTS]) for prompt in ("", PROMPT))
    masks = causal_masks(encoder.backbone.inner)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-4 * np.abs(expected).max())
    vectors = encoder.encode(TEXTS, prompt=PROMPT)
    np.testing.assert_allclose(vectors, prompted, atol=1e-4 * np.abs(prompted).max(), err_msg="a shared prompt")
    use_own_sdpa(encoder.backbone.inner)
    states = states_of(encoder, TEXTS)
    np.testing.assert_allclose(states, expected, atol=1e-4 * np.abs(expected).max(), err_msg="in training")
    return {"usual": "equal", "library": "library's masks"}[masks]


def expected_outcome(name: str) -> str:
    listed = {
        "library's masks": decoders.LIBRARY_MASKS,
        "refused": [name for names in decoders.REFUSED.values() for name in names],
        "not built": decoders.NOT_BUILT,
    }
    return next((kind for kind, names in listed.items() if name in names), "equal")


@pytest.mark.slow
@pytest.mark.parametrize("name", decoders.NAMES)
def test_vectors_are_those_of_the_library(name, tokenizer, tmp_path):
    assert outcome(name, tmp_path, tokenizer) == expected_outcome(name)


def test_the_documentation_has_the_lists():
    assert len(decoders.NAMES) > 150
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    assert decoders.table() in page, "docs/families.md: put in what tests.decoders.table() returns"


@pytest.mark.parametrize("name", ["falcon", "falcon-alibi"])
def test_in_bfloat16_and_in_training(name, tokenizer, tmp_path, monkeypatch):
    """Rows without padding, and the CPU kernel, are used only where the library's states stay."""
    monkeypatch.setattr(base_model, "supports_natively", lambda dtype, device: True)
    model = written(name, tmp_path, tokenizer)
    expected, in_bfloat16 = (by_library(m, tokenizer, TEXTS) for m in (model, copy.deepcopy(model).bfloat16()))
    settings: dict[str, Any] = {"pooling": "last", "normalize": False, "max_length": 128, "device": "cpu"}
    rounded = Encoder.from_pretrained(tmp_path, dtype="bfloat16", **settings)
    np.testing.assert_allclose(rounded.encode(TEXTS), in_bfloat16, atol=5e-2 * np.abs(in_bfloat16).max())
    encoder = Encoder.from_pretrained(tmp_path, dtype="float32", **settings)
    use_own_sdpa(encoder.backbone.inner)
    np.testing.assert_allclose(states_of(encoder, TEXTS), expected, atol=1e-4 * np.abs(expected).max())
