"""Encoders on the tokenizers of public models, which `EMBREW_TOKENIZERS` names; 40 texts that are hard to tokenise."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from embrew.encoder import Encoder
from tests import fresh
from tests.hard_texts import REAL_TOKENIZERS, real_tokenizer_folder
from tests.journeys import (
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


@pytest.mark.slow
def test_saved_and_exported(tmp_path):
    """One fresh process for all, forked; below each has a new interpreter."""
    assert set(FAMILY) == set(REAL_TOKENIZERS)
    made: dict[str, tuple[Encoder, tuple[Path, Path]]] = {}
    for name in REAL_TOKENIZERS:
        encoder = tiny_encoder(lm_folder(name, tmp_path / name / "lm"), prompts={"query": "Find: "})
        check_template(encoder)
        made[name] = encoder, save_and_export(encoder, tmp_path / name)
    reopened = reopened_afresh({name: folders for name, (_, folders) in made.items()}, tmp_path, run=fresh.run)
    for name, (encoder, folders) in made.items():
        check_same(name, encoder, folders[1], reopened)
