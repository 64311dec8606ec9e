"""A text whose numbers are not finite is named, and does not fail the others."""

import httpx
import pytest
import torch

from embrew.serving.service import EXAMPLE
from tests.serving.encoders import made, serving_copy


@pytest.mark.parametrize("path", ["/embed", "/embed_all"])
def test_a_text_whose_numbers_are_not_finite_is_named(make_encoder, path):
    encoder = made(make_encoder, "last")
    embeddings = encoder.backbone.model.get_input_embeddings().weight
    poison = 73
    assert poison not in encoder.tokenizer(EXAMPLE).input_ids
    with torch.no_grad():
        embeddings[poison] = float("nan")
    with serving_copy(encoder) as address:
        bad = httpx.post(address + path, json={"inputs": [[70, 71], [72, poison], [74]]}, timeout=60)
        good = httpx.post(address + path, json={"inputs": [[70, 71], [74]]}, timeout=60)
    assert (bad.status_code, good.status_code) == (422, 200)
    assert bad.json()["error"]["code"] == "not_embedded"
    assert "text 1 cannot be embedded" in bad.json()["error"]["message"]
    assert "text 0" not in bad.json()["error"]["message"]
