"""The folder of stock Sentence-Transformers modules: what they can reproduce, and what servers read from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from transformers import PreTrainedConfig

from embrew.encoder import Encoder
from embrew.model.forward import bidirectional_by
from embrew.model.pooling import LatentAttention

SIMULATION = """
import torch, transformers
from safetensors.torch import load_file
from transformers import AutoModel
version = "simulated from its loader's source"
reading = options["reading"]
model = AutoModel.from_pretrained(folder, trust_remote_code=False).eval().to(options["device"])
if reading["causal"] is not None:
    model.config.is_causal = reading["causal"]
matrices = [load_file(f"{folder}/{path}/model.safetensors")["linear.weight"].float() for path in reading["projections"]]
@torch.no_grad()
def vector(ids):
    states = model(input_ids=torch.tensor([ids], device=model.device)).last_hidden_state[0].float().cpu()
    pooled = {"cls": states[0], "last": states[-1], "mean": states.mean(dim=0)}[reading["pooling"]]
    for matrix in matrices:
        pooled = matrix @ pooled
    return torch.nn.functional.normalize(pooled, dim=0) if reading["normalize"] else pooled
"""
"""Computes vectors by `options["reading"]`, a `Reading`. It lacks `encode`: servers tokenise by different rules."""
ONE_TOKEN = (
    "train one memory token at the end of the template (template: '{instruction}{text}{memory}', memory_tokens: 1, "
    "pooling: {mode: last, over: memory}) or last-token pooling"
)


class Reading(TypedDict):
    """An encoder as a server reads it from a folder.

    Attributes:
        pooling: states of all tokens that become the vector: `cls`, `last` or `mean`.
        causal: whether attention is causal; None: as of the model's family.
        max_length: limit in tokens of a text, with its prompt and added tokens.
        normalize: whether vectors have unit length.
        projections: folders of the `Dense` modules that are applied to a pooled state, in order.
    """

    pooling: str
    causal: bool | None
    max_length: int
    normalize: bool
    projections: tuple[str, ...]


def stock_refusal(encoder: Encoder) -> str | None:
    """Return why stock modules cannot reproduce the encoder's attention or pooling; None: they can."""
    pooling = encoder.pooling
    if isinstance(encoder.head, LatentAttention):
        return "its states pass through latent attention before they are pooled, for which there is no stock module"
    if encoder.attention.is_causal is None:
        return f"attention={encoder.attention.mode} needs a mask; stock modules are causal or bidirectional"
    if encoder.attention.is_causal is False and bidirectional_by(encoder.backbone.inner) == "mask":
        return (
            f"attention=bidirectional needs an explicit mask on {type(encoder.backbone.inner).__name__}, which does "
            "not follow is_causal in its configuration; stock modules support attention: causal here"
        )
    if pooling.mode == "concat" and not pools_last_token(encoder):
        return (
            "it concatenates the states of several memory tokens, for which there is no stock module; their "
            "mean has one (pool_over, or pooling: {mode: mean, over: memory} in the recipe)"
        )
    if pooling.mode != "mean" and not (pools_every_token(encoder) or pools_last_token(encoder)):
        return f"pooling {pooling.mode} over {pooling.over} has no stock module; mean over memory or text has"
    return None


def pools_last_token(encoder: Encoder) -> bool:
    """Return whether pooling reads one memory token at the very end: its state is the last token's."""
    return (
        encoder.pooling.over == "memory"
        and len(encoder.template.memory_ids) == 1
        and encoder.template.tail[-1] == "memory"
    )


def pools_every_token(encoder: Encoder) -> bool:
    """Return whether pooling reads all tokens of a row: over all, or over a text to which no token is added."""
    template = encoder.template
    alone = not (template.first_ids or template.suffix_ids)
    return encoder.pooling.over == "all" or (encoder.pooling.over == "text" and alone)


def pooling_refused(encoder: Encoder) -> str | None:
    """Return why a server that pools over every token cannot pool as the encoder does; None: it can."""
    pooling, number = encoder.pooling, len(encoder.template.memory_ids)
    if any(layer.bias or layer.activation != "identity" for layer in pooling.dense or ()):
        return "its layers after pooling have a bias or an activation, with which this server was not checked"
    if pools_last_token(encoder):
        return None
    if not pools_every_token(encoder):
        over = "its text only" if pooling.over == "text" else f"its {number} memory tokens"
        if pooling.over == "memory" and number == 1:
            over = "a memory token that is not the last token"
        return f"it pools over every token of a row, and this encoder over {over}; {ONE_TOKEN}"
    if pooling.mode == "weighted_mean":
        return "it has no weighted mean; train pooling: last or mean"
    return None


def sliding_window(config: PreTrainedConfig) -> int | None:
    """Return the smallest number of tokens that a layer attends to; None: all of them."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None
    return getattr(config, "sliding_window", None) or None


def window_exceeded(encoder: Encoder) -> str | None:
    """Return what is said of texts that are longer than a sliding window of the model; None: no text is."""
    window = sliding_window(encoder.backbone.inner.config)
    if window is None or encoder.max_seq_length <= window:
        return None
    return (
        f"texts of up to {encoder.max_seq_length} tokens exceed the model's sliding window of {window}; export with "
        f"--max-length {window} or less"
    )


def read_json(path: Path) -> Any:
    """Return the content of a JSON file that a server requires."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent.name}/{path.name} is missing") from error
