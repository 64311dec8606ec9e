"""Encoders of one language model, of every kind that a `Resident` loads, as saved folders."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from embrew.model.context_vectors import initialize_demonstrator
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from tests.conftest import SENTENCES
from tests.models import stir

TEMPLATE = (
    "{% for message in messages %}{% if message.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('unknown role') }}{% endif %}<s>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
PROMPTS = {"query": "find: ", "document": ""}
CAUSAL: dict[str, Any] = {"attention": "causal", "template": "{instruction}{text}{eos}", "prompts": PROMPTS}
KINDS: dict[str, dict[str, Any]] = {
    "contrast": {**CAUSAL, "pooling": "mean"},
    "memory": {
        "memory_tokens": 3,
        "template": "{instruction}{text}{memory}",
        "pooling": Pooling("mean", "memory"),
        "attention": "bidirectional",
        "prompts": PROMPTS,
    },
    "tasks": {**CAUSAL, "pooling": "last", "demonstrations": Demonstrations()},
    "chain": {**CAUSAL, "pooling": "weighted_mean"},
    "head": {**CAUSAL, "pooling": Pooling("mean", "text", latents=4, heads=2)},
    "attention only": {**CAUSAL, "pooling": "last", "lora": {"target_modules": ["q_proj", "v_proj"], "r": 4}},
    "untrained": {**CAUSAL, "pooling": "mean", "lora": None},
}


def tenant(base: Path, kind: str, place: Path, seed: int = 1) -> Path:
    """Save an encoder of a kind on a base; return its folder."""
    options = dict(KINDS[kind])
    lora = options.pop("lora", {"r": 4})
    encoder = Encoder.from_pretrained(base, max_length={"query": 40, "document": 48}, **options)
    for number in range(0 if lora is None else 2 if kind == "chain" else 1):
        encoder.merge_adapter()
        encoder.backbone.add_lora(lora)
        stir(encoder.backbone, seed=seed + number)
    if kind == "tasks":
        initialize_demonstrator(encoder)
        pairs = (Demonstration("sea?", SENTENCES[3]), Demonstration("what is a fox?", SENTENCES[0]))
        encoder.eval().add_context("sea", Context("Find it: ", pairs))
    encoder.eval().save_pretrained(place, verify="off")
    return place


@pytest.fixture(scope="session")
def resident_base(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose tokenizer has a chat template."""
    place = tmp_path_factory.mktemp("resident") / "base"
    tokenizer = copy.deepcopy(AutoTokenizer.from_pretrained(model_folder("llama")))
    tokenizer.chat_template = TEMPLATE
    place.mkdir()
    for file in model_folder("llama").iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture(scope="session")
def tenants(resident_base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of an encoder of each kind."""
    place = tmp_path_factory.mktemp("tenants")
    return {kind: tenant(resident_base, kind, place / kind) for kind in KINDS}
