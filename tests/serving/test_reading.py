"""The text side of an encoder: what `/tokenize` says of characters, and which requests share a forward pass."""

from __future__ import annotations

from typing import Any

import pytest

from embrew.encoder import Encoder
from embrew.serving.models import ReadOptions, ServedEncoder
from embrew.serving.settings import Settings

DECODER: dict[str, Any] = {"memory_tokens": 0, "attention": "causal", "pooling": "last"}
TEXTS = ("the cat sat", 'he said "no" and left', " x", "", "long text " * 30, "long text " * 300)


@pytest.mark.parametrize(
    "template",
    [
        "{instruction}{text}{eos}",
        '{instruction}This sentence: "{text}" means in one word:"',
        "{instruction}{text} again: {echo}",
    ],
)
def test_characters_of_tokens(template):
    """Also of a first token that begins with the last space of the prompt, and where the text is truncated."""
    preparation = "sentence" if "This" in template else "none"
    encoder = Encoder.from_pretrained("nano", **DECODER, template=template, preparation=preparation, max_length=60)
    reader, compared = ServedEncoder(encoder, Settings("tiny")), 0
    for text in TEXTS:
        for prompt in ("", "find: "):
            tokens = reader.tokenize(text, ReadOptions(prompt=prompt), special=False)
            for token in tokens:
                start, stop = token["start"], token["stop"]
                assert 0 <= start <= stop <= len(text), (text, prompt, token)
                shown = encoder.tokenizer.decode([token["id"]]).strip()
                if shown == text[start:stop].strip() and shown:
                    compared += 1
                else:  # it holds what the template puts before and after a sentence
                    assert '"' in shown or not shown or preparation == "sentence", (text, prompt, token)
    assert compared > 100, "no token names its characters"


def test_all_layers_by_number_share_a_pass_with_none(make_encoder):
    encoder = make_encoder(**DECODER, template="{text}{eos}")
    reader = ServedEncoder(encoder, Settings("tiny"))
    keys = [reader.read(["a"], ReadOptions(num_layers=depth)).key for depth in (None, encoder.backbone.num_layers, 1)]
    assert keys[0] == keys[1] != keys[2]
