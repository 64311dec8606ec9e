"""A soft prompt: learned tokens before everything, trained, saved and switched off with the adapter's stage."""

import numpy as np
import pytest
import torch

from embrew.encoder import Encoder
from embrew.recipe import build
from tests.conftest import SENTENCES

TEMPLATE = "{soft_prompt}{instruction}{text}"


def test_rows_of_the_vocabulary_as_a_prompt_are_that_prompt(model_folder):
    """With the embeddings of real tokens in it, a soft prompt is those tokens."""
    soft = Encoder.from_pretrained(model_folder("llama"), template=TEMPLATE, soft_prompt_tokens=3)
    ids = soft.tokenizer("the fox", add_special_tokens=False).input_ids[:3]
    with torch.no_grad():
        soft.backbone.soft_prompt.copy_(soft.backbone.causal_lm.get_input_embeddings().weight[ids])
    (row,) = soft.template.rows([SENTENCES[0]])
    hard = Encoder.from_pretrained(model_folder("llama"))
    with torch.no_grad():
        wanted = hard(hard.tokenize([ids + row.ids[4:]]))
        torch.testing.assert_close(soft(soft.tokenize([SENTENCES[0]])), wanted, rtol=0, atol=1e-6)


def test_trained_saved_opened(model_folder, tmp_path):
    encoder = Encoder.from_pretrained(model_folder("llama"), template=TEMPLATE, soft_prompt_tokens=3, seed=7)
    encoder.backbone.add_lora({"r": 2})
    objective = build.objective({"type": "contrastive"})
    objective.setup(encoder.train())
    rows = [{"query": a, "positive": b} for a, b in zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True)]
    objective(encoder, objective.collate(rows, encoder))["loss"].backward()
    assert encoder.backbone.soft_prompt.grad.abs().sum(-1).min() > 0
    torch.optim.SGD([encoder.backbone.soft_prompt], lr=1.0).step()
    vectors = encoder.eval().encode(SENTENCES)
    encoder.save_pretrained(tmp_path / "saved", verify="fast")
    again = Encoder.from_pretrained(tmp_path / "saved")
    np.testing.assert_allclose(again.encode(SENTENCES), vectors, atol=1e-6)
    assert again.weights_hash() == encoder.weights_hash()
    with pytest.raises(ValueError, match="leave out soft_prompt_tokens"):
        Encoder.from_pretrained(tmp_path / "saved", soft_prompt_tokens=3)
