"""The configuration and the shape of a model, and of what a stage trains of it; no weights are read."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import PeftModel
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from embrew.model.adapters import attach_lora
from embrew.model.cpu.layer_parts import is_gated
from embrew.model.layers import layers_of
from embrew.recipe import Recipe, build
from embrew.settings.base import BLOCK, Quantization
from embrew.storage.base_model import (
    ASSETS,
    is_encoder,
    local_model,
    open_config,
    open_tokenizer_of,
    pick_dtype,
    quiet,
)
from embrew.storage.foreign import HubOptions

SCALES_PER_GROUP = 256  # scales that share a scale, where scales are quantised too (double_quant)


def config_of(recipe: Recipe) -> tuple[PreTrainedConfig, bool]:
    """Return the configuration of a recipe's language model, and whether it is the model's own file.

    Where that is not on this machine, the shapes that embrew ships for the models of its recipes are used.

    Raises:
        FileNotFoundError: neither is at hand.
    """
    name, options = recipe.encoder.model, _offline_options(recipe)
    trust = recipe.encoder.trust_remote_code
    try:
        return open_config(name, trust_remote_code=trust, **options), True
    except FileNotFoundError:
        shapes = yaml.safe_load((files("embrew") / "planning" / "architectures.yaml").read_text(encoding="utf-8"))
    if name in shapes:
        return AutoConfig.for_model(**shapes[name]), False
    if Path(name).is_absolute() or name.startswith("."):
        raise FileNotFoundError(f"no folder {name!r}; encoder.model is a folder or the id of a model")
    raise FileNotFoundError(
        f"the configuration of {name!r} is not on this machine, and its shape is none that embrew ships; download it "
        f"(hf download {name} config.json), or give a folder that holds config.json: encoder.model=DIR"
    )


def tokenizer_of(recipe: Recipe) -> tuple[PreTrainedTokenizerBase, bool]:
    """Return the tokenizer of a recipe's model, and whether it is its own; nano's stands in for one not at hand."""
    options, trust_remote_code = _offline_options(recipe), recipe.encoder.trust_remote_code
    with quiet():
        try:
            return open_tokenizer_of(recipe.encoder.model, trust_remote_code=trust_remote_code, **options), True
        except (OSError, ValueError, KeyError):
            return AutoTokenizer.from_pretrained(str(ASSETS["nano"]), trust_remote_code=False), False


def _offline_options(recipe: Recipe) -> HubOptions:
    """Return keywords to open a model of the Hub without network."""
    settings = recipe.encoder
    return {} if local_model(settings.model) else {"revision": settings.revision, "local_files_only": True}


FRAGMENTATION = 1.4  # resident memory per byte kept in float32 on a CPU, measured with SmolLM2-135M and a LoRA


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and of what is trained of it.

    Attributes:
        layers: number of layers.
        hidden: width of a state.
        inner: width of the feed-forward part.
        attention: width of all heads together.
        products: number of weights of all layers that are factors of matrix products.
        parameters: number of parameters, those of a second copy of the LM included.
        trained: number of trained parameters.
        trains_all: whether the base weights themselves are trained.
        weights: bytes of all weights.
        layer: bytes of one layer in matrix products.
        gated: whether training on a CPU keeps two of the four wide states of a feed-forward part, and computes the
            others again.
    """

    layers: int
    hidden: int
    inner: int
    attention: int
    products: int
    parameters: int
    trained: int
    trains_all: bool
    weights: int
    layer: int
    gated: bool = False

    def saved(self, arithmetic: str, kind: str, *, recompute: bool = False) -> float:
        """Return bytes that all layers keep of a token for the backward pass, and one more for gradients of states.

        Inputs and outputs of products, norms and activation: about 8 states and 4 inner ones a layer, on a CPU 2 of
        these where the feed-forward part is gated (`model.cpu.layer_parts`). Under autocast
        the inner ones are in bfloat16, and the states in part; on a CPU, attention keeps float32, and trained weights
        more. In float32 on a CPU, the C library does not return freed memory between tensors that are kept. With
        activation checkpointing, the input of each layer is kept, and one layer at a time.
        """
        inner = 2 if kind == "cpu" and self.gated else 4
        if arithmetic == "float32":
            layer = 4 * (8 * self.hidden + inner * self.inner) * (FRAGMENTATION if kind == "cpu" else 1)
        else:
            states = 16 if kind != "cpu" else 32 if self.trains_all else 20
            layer = states * self.hidden + 2 * inner * self.inner
        if recompute:
            return (4 if arithmetic == "float32" else 2) * self.layers * self.hidden + layer
        return (self.layers + 1) * layer

    def operations(self, tokens: float, length: float) -> float:
        """Return the operations of a forward pass over tokens, in rows of some length."""
        return tokens * (2 * self.products + 4 * self.layers * self.attention * length)


def empty_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return a causal LM, or a BERT-type encoder without pooler, on the meta device."""
    kind: Any = AutoModel if is_encoder(config) else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(copy.deepcopy(config), dtype=dtype, attn_implementation="sdpa")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def shape_of_stage(recipe: Recipe, index: int, config: PreTrainedConfig, kind: str) -> Shape:
    """Return the shape of what stage `index` trains, on a type of device."""
    settings, stage, target = recipe.encoder, recipe.stages[index], torch.device(kind)
    dtype = pick_dtype(build.opening_dtype(recipe, target), target)
    model: Any = empty_model(config, dtype).requires_grad_(False)
    base_parameters = sum(p.numel() for p in model.parameters())
    bytes_saved = _saved_by_quantization(model, recipe, dtype)
    objective = build.objective(stage.objective)
    if settings.lora is not None:
        full = settings.train_embeddings == "full" and stage.train_memory
        model = attach_lora(model, settings.lora, train_embeddings=full)
    else:
        model.float().requires_grad_(True)
        head = model.get_output_embeddings()
        if head is not None and head.weight is not model.get_input_embeddings().weight:
            head.requires_grad_(objective.trains_head)
    learned_rows = (settings.memory_tokens + (settings.soft_prompt_tokens or 0)) * config.hidden_size
    changed = settings.lora is None or (index > 0 and stage.adapter == "merge")
    in_bfloat16 = build.autocasts(recipe, target) or dtype != torch.float32
    copied = base_parameters if objective.reads_original_lm and changed else 0
    learned = learned_rows if stage.train_memory else 0
    shape = shape_of_model(model, config)
    return replace(
        shape,
        parameters=shape.parameters + learned + copied,
        trained=shape.trained + learned,
        weights=shape.weights + 4 * learned + copied * (2 if in_bfloat16 else 4) - bytes_saved,
    )


def shape_of_model(model: PreTrainedModel | PeftModel, config: PreTrainedConfig) -> Shape:
    """Return the shape of a model, adapters included, with or without values; `config` is of the language model."""
    parameters = list(model.parameters())
    language_model: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = layers_of(language_model.base_model)
    heads = config.num_attention_heads
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    in_layers = [parameter for layer in dict.fromkeys(layers) for parameter in layer.named_parameters()]
    return Shape(
        layers=len(layers),
        hidden=config.hidden_size,
        inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        attention=heads * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        products=sum(p.numel() for name, p in in_layers if p.ndim > 1 and "lora_" not in name),
        parameters=sum(p.numel() for p in parameters),
        trained=sum(p.numel() for p in parameters if p.requires_grad),
        trains_all=bool(names) and not any("lora_" in name for name in names),
        weights=sum(p.nbytes for p in parameters),
        layer=sum(p.nbytes for p in layers[0].parameters()),
        gated=any(is_gated(module) for module in layers[0].modules()),
    )


def _saved_by_quantization(model: PreTrainedModel, recipe: Recipe, dtype: torch.dtype) -> int:
    """Return bytes that 4-bit weights take less than those of the model."""
    if recipe.encoder.quantization is None:
        return 0
    head = model.get_output_embeddings()
    count = sum(layer.weight.numel() for layer in model.modules() if type(layer) is nn.Linear and layer is not head)
    return int(count * (dtype.itemsize - bits_per_weight(recipe.encoder.quantization) / 8))


def bits_per_weight(quantization: Quantization) -> float:
    """Bits of memory per quantised weight, its share of the scales included: 4.127, or 4.5 without double_quant.

    >>> [round(bits_per_weight(Quantization(double_quant=double)), 3) for double in (True, False)]
    [4.127, 4.5]
    """
    return 4 + (8 / BLOCK + 32 / (BLOCK * SCALES_PER_GROUP) if quantization.double_quant else 32 / BLOCK)
