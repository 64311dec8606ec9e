"""Adapters on a model's own weights, 4-bit ones too: attach, switch off without a walk, merge; as peft saves them."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedModel

from embrew.model.attention import dropout_probabilities
from embrew.model.cpu.lora_linear import use_lora_linear
from embrew.settings.base import BLOCK, Quantization


@dataclass(frozen=True)
class AdapterState:
    """The configuration of a LoRA, and its tensors on the CPU."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def adapter_state(model: PeftModel) -> AdapterState:
    """Return the active adapter of a model, copied."""
    config = model.peft_config[model.active_adapter].to_dict()
    config = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    config["inference_mode"] = True
    tensors = get_peft_model_state_dict(model, save_embedding_layers=False)
    return AdapterState(config, {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()})


KEY_PREFIX = "base_model.model."  # before the name of a layer in every key that peft saves
Factors = dict[str, tuple[Tensor, Tensor]]
"""By the name of a layer: down `(rank, in)` and up `(out, rank)`, scaled; the change of its weights is up · down."""


def lora_factors(model: PeftModel) -> Factors | None:
    """Return the active LoRA of a model, float32, on the CPU; None: it changes more than the weights of linear layers.

    More are DoRA, biases, copies of whole modules, and layers that are no linear ones.
    """
    factors: Factors = {}
    for name, layer in model.get_base_model().named_modules():
        if isinstance(layer, BaseTunerLayer):
            lora: Any = layer
            (adapter,) = lora.active_adapters
            if hasattr(layer, "parameter_name") or adapter not in lora.lora_A:
                return None
            down, up = (each[adapter].weight.detach().float().cpu() for each in (lora.lora_A, lora.lora_B))
            factors[name] = down, up * lora.scaling[adapter]
    plain = {f"{KEY_PREFIX}{name}.lora_{part}.weight" for name in factors for part in "AB"}
    is_sum = adapter_state(model).tensors.keys() == plain and all(down.ndim == 2 for down, _ in factors.values())
    return factors if is_sum else None


def sum_of(chain: Sequence[Factors]) -> Factors:
    """Return the factors of the LoRA that is the sum of several; its rank is the sum of theirs, nothing is rounded."""
    names = dict.fromkeys(name for factors in chain for name in factors)
    parts = {name: [factors[name] for factors in chain if name in factors] for name in names}
    return {
        name: (torch.cat([down for down, _ in pairs]), torch.cat([up for _, up in pairs], dim=1))
        for name, pairs in parts.items()
    }


def lora_of(factors: Factors, config: Mapping[str, Any]) -> AdapterState:
    """Return a LoRA with given factors, which need not be of one rank; other settings are those of `config`."""
    ranks = {name: len(down) for name, (down, _) in factors.items()}
    rank = max(ranks.values())
    pattern = {re.escape(name): layer_rank for name, layer_rank in ranks.items() if layer_rank != rank}
    chosen: dict[str, Any] = {"r": rank, "lora_alpha": rank, "rank_pattern": pattern, "alpha_pattern": dict(pattern)}
    chosen |= {"target_modules": sorted(factors), "use_rslora": False, "init_lora_weights": True}
    chosen |= dict.fromkeys(("exclude_modules", "layers_to_transform", "layers_pattern"))
    tensors = {f"{KEY_PREFIX}{name}.lora_A.weight": down.contiguous() for name, (down, _) in factors.items()}
    tensors |= {f"{KEY_PREFIX}{name}.lora_B.weight": up.contiguous() for name, (_, up) in factors.items()}
    return AdapterState({**config, **chosen}, tensors)


class LowRank(nn.Module):
    """Up · down, float32: merged LoRAs, their factors concatenated, so that nothing is rounded.

    Attributes:
        down: factor `(rank, in)`.
        up: factor `(out, rank)`, scaled.
    """

    down: Tensor
    up: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.register_buffer("down", torch.zeros(0, in_features))
        self.register_buffer("up", torch.zeros(out_features, 0))

    @property
    def rank(self) -> int:
        """The sum of the ranks; 0 before anything is merged."""
        return len(self.down)

    def add(self, down: Tensor, up: Tensor) -> None:
        """Add `up @ down`."""
        self.down = torch.cat([self.down, down.detach().to(self.down)])
        self.up = torch.cat([self.up, up.detach().to(self.up)], dim=1)

    def weight(self) -> Tensor:
        """Return the sum as one matrix, `(out, in)`."""
        return self.up @ self.down

    def forward(self, x: Tensor) -> Tensor:
        """Return `(…, out)` of `(…, in)`, in float32 unless autocast says otherwise."""
        return nn.functional.linear(nn.functional.linear(x.to(self.down.dtype), self.down), self.up)


BITSANDBYTES = "bitsandbytes"


def check_library() -> None:
    """Import bitsandbytes.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise ValueError(
            'a 4-bit base needs bitsandbytes, which is not installed; install it with: pip install "embrew[qlora]"'
        ) from error


def loading_options(settings: Quantization, *, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what `from_pretrained` needs to quantise the linear layers of a model, all but the head.

    Args:
        settings: type and scales of 4-bit weights.
        dtype: dtype of the matrix products.
        device: device on which weights are quantised.

    Raises:
        ValueError: bitsandbytes is not installed.
    """
    check_library()
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=settings.type,
        bnb_4bit_use_double_quant=settings.double_quant,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def prepare_quantized(model: PreTrainedModel) -> None:
    """Make a model that was just quantised trainable after an evaluation, and its dequantised values float32.

    Raises:
        ValueError: a layer has weights that bitsandbytes cannot dequantise, or no linear layer's.
    """
    for name, layer in quantized_layers(model).items():
        if layer.source_cls is not nn.Linear or layer.in_features % BLOCK:
            raise ValueError(
                f"quantization: {type(model).__name__} has the layer {name}, which is no linear layer with an input "
                f"of a multiple of {BLOCK} dimensions; leave quantization out"
            )
        # in evaluation on such a CPU, it would change its weights to a form that has no gradient (bitsandbytes 0.50.2)
        layer.support_avx512bf16_for_cpu = False
        layer.weight.quant_state.dtype = torch.float32


def quantized_layers(model: nn.Module) -> dict[str, Any]:
    """Return the layers with 4-bit weights, by name."""
    return {name: module for name, module in model.named_modules() if is_quantized(module)}


def is_quantized(layer: nn.Module | None) -> bool:
    """Return whether a layer is a `Linear4bit` of bitsandbytes."""
    return hasattr(layer, "quant_state")


def _with_merged(layer: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    return output + layer.merged(*inputs).to(output.dtype)


def dequantize(model: Any, dtype: torch.dtype) -> None:
    """Replace 4-bit layers by linear layers, in place and one by one; what is beside their weights is added."""
    from bitsandbytes.functional import dequantize_4bit

    for name, layer in quantized_layers(model).items():
        weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        if hasattr(layer, "merged"):
            weight += layer.merged.weight()
        plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
        plain.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        plain.bias = layer.bias
        model.set_submodule(name, plain.train(layer.training))
    model.hf_quantizer.remove_quantization_config(model)


logger = logging.getLogger(__name__)
MAX_ROUNDED_SHARE = 0.1  # share of an adapter's change that rounding may take without a warning


def attach_lora(model: PreTrainedModel, settings: Mapping[str, Any], *, train_embeddings: bool = False) -> PeftModel:
    """Put a fresh, trainable LoRA on a causal LM or an encoder.

    Args:
        model: the base model; its weights are frozen.
        settings: fields of `peft.LoraConfig`, under its names; `target_modules` defaults to every linear layer.
        train_embeddings: also train a copy of the whole embedding matrix; the original stays for the switched-off
            model.

    Raises:
        ValueError: an unknown field, a dropout on experts, or a LoRA that cannot be on 4-bit weights.
    """
    if quantized_layers(model):
        check_for_quantized(settings)
    if train_embeddings:
        name = next(name for name, module in model.named_modules() if module is model.get_input_embeddings())
        saved = [*(settings.get("modules_to_save") or []), name.rsplit(".", 1)[-1]]
        settings = {**settings, "modules_to_save": saved}
    config = lora_config(settings, decoder=model.get_output_embeddings() is not None)
    try:
        with peft_warnings_off():
            adapted = get_peft_model(model, config).train(model.training)  # new dropouts would be on in a model at rest
    except re.error as error:
        raise ValueError(f"lora={settings} holds no regular expression: {error}; give names or patterns") from None
    except ValueError as error:
        if "ParamWrapper" not in str(error) or not config.lora_dropout:
            raise
        raise ValueError(
            f"lora_dropout={config.lora_dropout}: peft has no dropout for experts, which {type(model).__name__} keeps "
            "in one parameter; set lora_dropout: 0, or target_modules to the linear layers of its attention"
        ) from None
    for parameter in adapted.parameters():
        if parameter.requires_grad:  # peft does so for LoRA, but not for a trained copy of the embedding matrix
            parameter.data = parameter.data.float()
    use_lora_linear(adapted)
    return adapted


def lora_config(settings: Mapping[str, Any], *, decoder: bool = True) -> LoraConfig:
    """Return the LoRA of a recipe, for a causal LM or an encoder.

    Raises:
        ValueError: an unknown field, or fields that do not go together.
    """
    settings = {"target_modules": "all-linear", **settings}
    try:
        return LoraConfig(task_type="CAUSAL_LM" if decoder else "FEATURE_EXTRACTION", **settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"lora={settings}: {error}; the keys are those of peft.LoraConfig") from None


KEEP_BASE = (True, False, "gaussian", "orthogonal")
"""Values of `init_lora_weights` with which the weights under a LoRA stay as they are."""


def check_keeps_base(config: Mapping[str, Any], *, source: Path) -> None:
    """Raise ValueError where to put a LoRA on a model would change the weights of the model, which others share."""
    begins = config.get("init_lora_weights", True)
    if begins not in KEEP_BASE:
        raise ValueError(
            f"{source} has a LoRA with init_lora_weights={begins!r}, which changes the base weights; serve it in "
            "its own process"
        )


def check_for_quantized(settings: Mapping[str, Any]) -> None:
    """Raise unless a LoRA is a plain sum of weights, and leaves those of the base as they are.

    Raises:
        ValueError: it is not; names the field.
    """
    begins = settings.get("init_lora_weights", True)
    if begins not in KEEP_BASE:
        raise ValueError(
            f"lora.init_lora_weights={begins!r} changes the base weights, which is not possible in 4 bits; choose from "
            "true, gaussian, orthogonal"
        )
    for field in ("use_dora", "lora_bias"):
        if settings.get(field):
            raise ValueError(
                f"lora.{field}=true with a quantised base: such an adapter is more than a sum of weights, and cannot "
                f"be merged beside 4-bit weights; leave {field} or quantization out"
            )
    if settings.get("bias", "none") != "none":
        raise ValueError(
            f"lora.bias={settings['bias']} with a quantised base: bitsandbytes rounds trained biases to encoder.dtype; "
            "leave bias or quantization out"
        )


def reopened_lora(model: PreTrainedModel, state: AdapterState, *, trainable: bool) -> PeftModel:
    """Put a saved LoRA on a model; its trained copies of whole modules stay float32, which peft would round."""
    about = {**state.config, "inference_mode": not trainable, "base_model_name_or_path": None}
    with peft_warnings_off():
        adapted = get_peft_model(model, LoraConfig.from_peft_type(**about))
        for module in adapted.modules():
            if isinstance(module, ModulesToSaveWrapper):
                module.modules_to_save.float()
        set_peft_model_state_dict(adapted, state.tensors)
    use_lora_linear(adapted)
    return adapted


@contextmanager
def peft_warnings_off() -> Iterator[None]:
    """Silence what peft says about things that are meant: its own use of a renamed flag, tied embeddings, no Hub."""
    with warnings.catch_warnings():
        for message in (".*is_gradient_checkpointing.*", ".*tie_word_embeddings.*", ".*Could not find a config file.*"):
            warnings.filterwarnings("ignore", message=message)
        yield


def check_rounding(model: PeftModel, dtype: torch.dtype) -> None:
    """Warn if more than a tenth of an adapter's change is lost when the sum is rounded to `dtype`."""
    share = lost_to_rounding(model, dtype)
    if share > MAX_ROUNDED_SHARE:
        logger.warning(
            "an adapter merged into %s weights: rounding is %.0f %% of what it changes; open the encoder in float32 "
            "(encoder.dtype: float32 in a recipe) to keep it",
            str(dtype).removeprefix("torch."),
            100 * share,
        )


def lost_to_rounding(model: PeftModel, dtype: torch.dtype) -> float:
    """Return ‖round(W + Δ) − (W + Δ)‖ / ‖Δ‖ over all weights that an adapter would be merged into."""
    if dtype.itemsize >= 4:
        return 0.0
    error = change = 0.0
    tuned: list[Any] = [m for m in model.modules() if isinstance(m, BaseTunerLayer) and hasattr(m, "get_delta_weight")]
    layers = [layer for layer in tuned if not is_quantized(layer.get_base_layer())]  # which keep adapters in float32
    with torch.no_grad():
        for layer in layers:
            for name in layer.active_adapters:
                if name in getattr(layer, "lora_A", {}):
                    delta = layer.get_delta_weight(name).float()
                    total = getattr(layer.get_base_layer(), _parameter_name(layer)).float() + delta
                    error += float((total.to(dtype).float() - total).square().sum())
                    change += float(delta.square().sum())
    return (error / change) ** 0.5 if change else 0.0


def merge(model: PeftModel) -> PreTrainedModel:
    """Add the adapter to the weights, in float32, and return the plain model; 4-bit layers keep it beside them."""
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            _merge_layer(module)
    return model.unload()


def _parameter_name(layer: BaseTunerLayer) -> str:
    """Return the name of the parameter that a LoRA is on; experts of a layer are one parameter of three dimensions."""
    return getattr(layer, "parameter_name", "weight")


def _merge_layer(layer: BaseTunerLayer) -> None:
    base: Any = layer.get_base_layer()
    if is_quantized(base):
        lora: Any = layer
        for name in lora.active_adapters:
            if name in lora.lora_A:
                if not hasattr(base, "merged"):
                    base.merged = LowRank(base.in_features, base.out_features).to(base.weight.device)
                    base.register_forward_hook(_with_merged)
                base.merged.add(lora.lora_A[name].weight, lora.lora_B[name].weight.float() * lora.scaling[name])
        return
    weight = getattr(base, _parameter_name(layer), None)
    if not hasattr(layer, "get_delta_weight") or weight is None:
        raise ValueError(f"{type(layer).__name__} cannot be merged; embrew merges LoRA on linear layers and experts")
    with torch.no_grad():
        for name in layer.active_adapters:
            if name not in getattr(layer, "lora_A", {}):
                continue
            if name in getattr(layer, "lora_variant", {}) or getattr(layer, "lora_bias", {}).get(name):
                dtype = weight.dtype  # DoRA, or with a bias: more than a sum, as peft does it, in float32
                base.to(torch.float32)
                layer.merge(adapter_names=[name])
                base.to(dtype)
            else:
                delta = layer.get_delta_weight(name).float()
                weight.copy_((weight.float() + delta).to(weight.dtype))


class AdapterSwitch:
    """Turns the adapters of a model off and on by a flag on a cached list of layers.

    Gives the same outputs, to the bit, as `PeftModel.disable_adapter()`, which walks the whole model and rewrites
    `requires_grad` at each use. Dropout probabilities are set to zero while the adapters are off, so that the model is
    the original LM in training mode too (LoRA's own dropout is not reached).
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers: list[Any] = [
            m for m in model.modules() if isinstance(m, BaseTunerLayer | AuxiliaryTrainingWrapper)
        ]
        lora_dropouts = {
            id(dropout) for layer in self.layers for dropout in getattr(layer, "lora_dropout", {}).values()
        }
        self.dropouts = [pair for pair in dropout_probabilities(model) if id(pair[0]) not in lora_dropouts]

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within this context, adapters are off. Backward passes of what is computed inside must end inside."""
        before = [layer._disable_adapters for layer in self.layers]
        active = [(m, name, getattr(m, name)) for m, name in self.dropouts if getattr(m, name) > 0.0]
        try:
            for layer in self.layers:
                layer._disable_adapters = True
            for module, name, _ in active:
                setattr(module, name, 0.0)
            yield
        finally:
            for layer, was_off in zip(self.layers, before, strict=True):
                layer._disable_adapters = was_off
            for module, name, value in active:
                setattr(module, name, value)
