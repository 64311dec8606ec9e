"""The encoder of a recipe's stage, on the meta device: shapes, and no weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from embrew import build
from embrew.modeling.encoder import Encoder
from embrew.modeling.model.backbone import Backbone
from embrew.modeling.model.base import Base
from embrew.modeling.model.own_weights import without_adapter
from embrew.modeling.storage.loading import is_encoder, pick_dtype
from embrew.objectives import Objective
from embrew.planning.architectures import config_of, tokenizer_of
from embrew.recipe import Recipe
from embrew.training.stage_start import prepare_encoder


@dataclass(frozen=True)
class Parts:
    """What an encoder is made of, read once for all stages.

    Attributes:
        config: of the language model.
        own_config: whether it is the model's own file.
        tokenizer: of the model, or one that stands in for it.
        own_tokenizer: whether it is the model's.
    """

    config: Any
    own_config: bool
    tokenizer: Any
    own_tokenizer: bool

    @classmethod
    def of(cls, recipe: Recipe) -> Parts:
        """Read the parts of a recipe's encoder."""
        return cls(*config_of(recipe), *tokenizer_of(recipe))


@dataclass(frozen=True)
class Planned:
    """An encoder without values.

    Attributes:
        encoder: ready for a stage.
        spared: bytes that 4-bit weights take less than the weights of the encoder.
        widest: bytes of the largest layer that is dequantised for a product; 0: none is.
    """

    encoder: Encoder
    spared: int = 0
    widest: int = 0


def plan_encoder(recipe: Recipe, index: int, objective: Objective, parts: Parts, kind: str) -> Planned:
    """Return the encoder that stage `index` trains, on a type of device."""
    place = torch.device(kind)
    dtype = pick_dtype(build.opening_dtype(recipe, place), place)
    model = empty_model(parts.config, dtype)
    spared, widest = _quantized(model, recipe, dtype)
    backbone = Backbone(model)
    settings = recipe.encoder
    for name, count in (("memory", settings.memory_tokens), ("soft_prompt", settings.soft_prompt_tokens or 0)):
        if count:
            rows = torch.empty(count, model.config.hidden_size, device="meta")
            setattr(backbone, name, nn.Parameter(rows))
    encoder = _Planned(backbone, parts.tokenizer, Base("hub", settings.model), settings.settings)
    build.make_trainable(encoder, recipe, stage=index)
    backbone._changed = index > 0 and (settings.lora is None or recipe.stages[index].adapter == "merge")
    prepare_encoder(encoder, recipe, index, objective)
    if backbone.trains_all:
        backbone.round_frozen_lm(torch.bfloat16 if build.autocasts(recipe, place) else dtype)
    return Planned(encoder, spared, widest)


class _Planned(Encoder):
    """An encoder without weights, whose original LM is not read from a disk."""

    def keep_frozen_lm(self) -> None:
        """Keep another model of the same shape, where the original LM would be opened again."""
        self.backbone.keep_frozen_lm(lambda: copy.deepcopy(without_adapter(self.backbone.causal_lm)))


def empty_model(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Return a causal LM, or a BERT-type encoder without pooler, on the meta device."""
    kind: Any = AutoModel if is_encoder(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model: Any = kind.from_config(copy.deepcopy(config), dtype=dtype, attn_implementation="sdpa")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def _quantized(model: PreTrainedModel, recipe: Recipe, dtype: torch.dtype) -> tuple[int, int]:
    settings = recipe.encoder.quantization
    if settings is None:
        return 0, 0
    head = model.get_output_embeddings()
    counts = [layer.weight.numel() for layer in model.modules() if type(layer) is nn.Linear and layer is not head]
    spared = sum(counts) * (dtype.itemsize - settings.bits_per_weight / 8)
    return int(spared), max(counts, default=0) * dtype.itemsize
