"""Encoders on the tokenizers of public models, which `EMBREW_TOKENIZERS` names; 40 texts that are hard to tokenise."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.recipe import Recipe
from embrew.training.stages import train
from tests import fresh
from tests.hard_texts import HARD_TEXTS, REAL_TOKENIZERS, real_tokenizer_folder
from tests.journeys import (
    MAX_LENGTH,
    check_same,
    check_template,
    reopened_afresh,
    save_and_export,
    tiny_encoder,
    tiny_lm,
)

FAMILY = {"qwen2": "qwen2", "mistral": "mistral", "pythia": "gpt-neox", "phi2": "phi"}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 512}


def lm_folder(name: str, folder: Path) -> Path:
    """A tiny random model with the tokenizer of a public one."""
    tokenizer = AutoTokenizer.from_pretrained(real_tokenizer_folder(name))
    return tiny_lm(FAMILY[name], tokenizer, folder, **SIZES)


@pytest.mark.parametrize(
    "names", [("mistral",), pytest.param(("qwen2", "pythia", "phi2"), marks=pytest.mark.slow)], ids="-".join
)
def test_saved_and_exported(names: tuple[str, ...], tmp_path: Path) -> None:
    """One fresh process for all, forked; below each has a new interpreter."""
    assert set(FAMILY) == set(REAL_TOKENIZERS) and set(names) < set(FAMILY)
    made: dict[str, tuple[Encoder, tuple[Path, Path]]] = {}
    for name in names:
        encoder = tiny_encoder(lm_folder(name, tmp_path / name / "lm"), prompts={"query": "Find: "})
        check_template(encoder)
        made[name] = encoder, save_and_export(encoder, tmp_path / name)
    reopened = reopened_afresh({name: folders for name, (_, folders) in made.items()}, tmp_path, run=fresh.run)
    for name, (encoder, folders) in made.items():
        check_same(name, encoder, folders[1], reopened)


def three_stages(model: Path, folder: Path) -> Recipe:
    """LLM2Comp's stages on the hard texts, two steps each."""
    texts = [text for text in HARD_TEXTS if text.strip()]
    pairs = [{"query": text, "positive": f"{text} {other}"} for text, other in pairwise(texts)]
    long = [{"text": f"{a} {b} {c}"} for a, b, c in zip(texts, texts[1:], texts[2:], strict=False)]
    for name, rows in (("texts", long), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"max_steps": 2, "learning_rate": 1.0e-2, "use_cpu": True, "warmup_steps": 0}
    values: dict[str, Any] = Recipe.load("llm2comp/nano").resolved()
    values["evaluation"] = None
    values["encoder"] |= {"model": str(model), "max_length": {"query": MAX_LENGTH, "document": MAX_LENGTH}}
    values["encoder"]["memory_tokens"] = 3
    values["encoder"]["lora"]["target_modules"] = "all-linear"
    for stage, name in zip(values["stages"], ("texts", "pairs", "pairs"), strict=True):
        columns = {"text": "query"} if stage["name"] == "unsupervised" else None
        stage["data"] = {"path": str(folder / f"{name}.jsonl"), **({"columns": columns} if columns else {})}
        stage["training"] = training | ({} if stage["batch"] else {"per_device_train_batch_size": 4})
        stage["batch"] = stage["batch"] and {"size": 8}
    return Recipe.from_values(values)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_TOKENIZERS)
def test_three_stages_saved_and_exported(name: str, tmp_path: Path) -> None:
    model = lm_folder(name, tmp_path / "lm")
    encoder = train(three_stages(model, tmp_path), tmp_path / "run")
    check_template(encoder)
    start = tiny_encoder(model).encode(list(HARD_TEXTS))
    assert np.abs(encoder.encode(list(HARD_TEXTS)) - start).max() > 1e-3, "trained"
    export_encoder(encoder, tmp_path / "stock")  # verified in a fresh process of its own
    saved = tmp_path / "run" / "supervised"
    check_same(name, encoder, tmp_path / "stock", reopened_afresh({name: (saved, tmp_path / "stock")}, tmp_path))
