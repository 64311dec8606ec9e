"""`embrew parity` against `embrew serve`: prompts, contexts, both limits, what no export can hold, and differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.model.contexts import Context
from embrew.parity.compare import Comparison, compare
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


def words_of(found: Comparison) -> str:
    assert not found.equal
    return found.verdict


def test_prompts_contexts_and_two_limits(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
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
def test_differences_are_found(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    base = model_folder("llama")
    folder = str(folder_of(base, tmp_path / "tiny"))
    others = {
        "prompts": {"prompts": {**PROMPTS, "query": ""}},
        "limits": {"max_length": {"query": 64, "document": 64}},
        "names": {"prompts": {"query": "find: "}},
        "pooling": {"pooling": "mean"},
    }
    said = {}
    for name, settings in others.items():
        with serving(folder_of(base, tmp_path / name, **settings)) as address:
            said[name] = words_of(compare(folder, f"{address}/v1"))
    assert "the prompt 'query'" in said["prompts"], said
    assert "1 of" in said["limits"] and "differ" in said["limits"], said
    assert "refused" in said["names"] and "this encoder has" in said["names"], said
    assert "no known fault gives these vectors" in said["pooling"], said


@pytest.mark.slow
def test_what_no_export_can_hold(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Several templates, and a text that is repeated."""
    for number, template in enumerate((["{text}{eos}", "so: {text}"], "{text} again: {echo}")):
        folder = folder_of(model_folder("llama"), tmp_path / str(number), template=template, prompts={})
        with serving(folder) as address:
            assert compare(str(folder), address).equal, template


@pytest.mark.slow
def test_an_export_against_its_encoder_and_itself(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = folder_of(model_folder("llama"), tmp_path / "tiny", max_length=48)
    export_encoder(Encoder.from_pretrained(folder), tmp_path / "export", verify="off")
    for served in (folder, tmp_path / "export"):
        with serving(served) as address:
            for reference in (folder, tmp_path / "export"):
                found = compare(str(reference), address)
                assert found.equal, (served, reference, found.verdict)
