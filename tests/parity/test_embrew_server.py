"""`embrew parity` against `embrew serve`: prompts, contexts, both limits, what no export can hold, and differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.parity.compare import compare
from embrew.settings.encoder import Demonstrations
from tests.conftest import SENTENCES, stir
from tests.serving.running import serving

PROMPTS = {"query": "find: ", "document": "", "title": "a title: "}
FORM: dict[str, Any] = {"template": "{instruction}{text}{eos}", "pooling": "last", "prompts": PROMPTS}
TWO = {"query": 40, "document": 64}


def folder_of(base: Path, folder: Path, *, context: bool = False, **settings: Any) -> Path:
    reads = {"demonstrations": Demonstrations()} if context else {}
    encoder = Encoder.from_pretrained(base, **{**FORM, "max_length": TWO, **reads, **settings})
    torch.manual_seed(0)
    encoder.backbone.add_lora({"r": 4, "lora_alpha": 8})
    stir(encoder.backbone)
    if context:
        encoder.add_context("sea", Context("Find it: ", (("sea?", SENTENCES[3]), ("what is a fox?", SENTENCES[0]))))
    encoder.save_pretrained(folder, verify="off")
    return folder


@pytest.mark.slow
def test_prompts_contexts_and_two_limits(model_folder, tmp_path):
    folder = folder_of(model_folder("llama"), tmp_path / "tiny", context=True)
    with serving(folder) as address:
        for end, api in (("", "Text Embeddings Inference"), ("/embed", "Text Embeddings Inference"), ("/v1", "OpenAI")):
            found = compare(str(folder), address + end)
            assert found.equal, found.verdict
            assert "embrew" in found.runtime and api in found.runtime
            sent = {(line.condition, line.prompt): line for line in found.conditions}
            assert {prompt for _, prompt in sent} == {"", "query", "document", "title", "sea"}
            assert all(line.difference is not None and line.difference < 5e-6 for line in found.conditions)
            assert sent["alone", "query"].texts == 18, "with the empty text, and one beyond both limits"


@pytest.mark.slow
def test_what_no_export_can_hold(model_folder, tmp_path):
    """Several templates, and a text that is repeated."""
    for number, template in enumerate((["{text}{eos}", "so: {text}"], "{text} again: {echo}")):
        folder = folder_of(model_folder("llama"), tmp_path / str(number), template=template, prompts={})
        with serving(folder) as address:
            assert compare(str(folder), address).equal, template
