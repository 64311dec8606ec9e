"""Convert an opened model for OpenVINO, in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer

from embrew.encoder import Encoder
from embrew.runtimes.converted import converted
from embrew.runtimes.encoder import RuntimeEncoder
from embrew.settings.pooling import MODES
from embrew.text.numbers import SIDES
from embrew.text_encoder.interface import resolved_prompts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def on_openvino(opened: Encoder | SentenceTransformer, name: str, *, bfloat16: bool) -> RuntimeEncoder:
    """Return an opened model, converted for OpenVINO in memory and compared on a few texts.

    Args:
        opened: the model.
        name: its folder or Hub id.
        bfloat16: compute in bfloat16; also where the model's weights are in bfloat16.

    Raises:
        ValueError: OpenVINO gives other vectors; or a Sentence-Transformers model is more than a transformer, one
            pooling, and normalisation.
    """
    if isinstance(opened, Encoder):
        return converted(opened, bfloat16=bfloat16 or opened.backbone.dtype == torch.bfloat16)
    model: Any = opened
    bfloat16 = bfloat16 or next(opened.parameters()).dtype == torch.bfloat16
    return converted(as_encoder(opened, name), bfloat16=bfloat16, origin=model)


def as_encoder(model: SentenceTransformer, name: str) -> Encoder:
    """Return an encoder that reads texts as a Sentence-Transformers model does; their vectors are not compared here.

    Special tokens within a text are parsed, where the model's tokenizer does so.

    Args:
        model: the opened model: a transformer, one pooling, and perhaps normalisation.
        name: its folder or Hub id.

    Raises:
        ValueError: it has other modules, several poolings, or pooling that leaves out the prompt.
    """
    parts: list[Any] = list(model)
    prompted: Any = model
    kinds = [type(part).__name__ for part in parts]
    pooling: Any = parts[1] if len(parts) > 1 else None
    stock = {mode.stock: key for key, mode in MODES.items() if mode.stock}
    mode = stock.get(pooling.pooling_mode) if kinds[1:2] == ["Pooling"] else None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or mode is None:
        raise ValueError(
            f"{name} has the modules {', '.join(kinds)}; --backend openvino converts a Transformer with one Pooling "
            f"({', '.join(stock)}) and Normalize; use --backend torch"
        )
    if not pooling.include_prompt:
        raise ValueError(f"{name} leaves its prompt out of the pooling; use --backend torch")
    if (Path(name) / "parity.json").is_file():
        raise ValueError(
            f"{name} is an export for Sentence-Transformers, whose tokenizer adds the template; give the encoder that "
            "it was made of, or export that one with --for openvino"
        )
    encoder = Encoder.from_pretrained(
        name,
        dtype="float32",
        device="cpu",
        attention="bidirectional" if not getattr(parts[0].auto_model.config, "is_causal", None) else "causal",
        pooling={"mode": mode},
        prompts={**prompted.prompts, **{side: resolved_prompts(prompted)[side] for side in SIDES}},
        default_prompt_name=model.default_prompt_name,
        max_length=model.max_seq_length,
        normalize="Normalize" in kinds,
    )
    if not getattr(model.tokenizer, "split_special_tokens", False):
        _parse_special_tokens(encoder)
    return encoder


def _parse_special_tokens(encoder: Encoder) -> None:
    """Make an encoder's tokenizer parse special tokens within texts: they are marked as ordinary added tokens."""
    tokenizer: Any = encoder.tokenizer
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = False
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))
    encoder.templates = encoder.make_templates(tokenizer, [])
