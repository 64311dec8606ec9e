"""Adapters on a model's own weights: attach, switch off without a walk, merge."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from embrew.model.dropout import probabilities
from embrew.model.lora_linear import use_lora_linear
from embrew.model.quantized import add_beside, is_quantized, quantized_layers

logger = logging.getLogger(__name__)
ROUNDED = 0.1  # share of an adapter's change that rounding may take without a warning


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


def check_for_quantized(settings: Mapping[str, Any]) -> None:
    """Raise unless a LoRA is a plain sum of weights, and leaves those of the base as they are.

    Raises:
        ValueError: it is not; names the field.
    """
    begins = settings.get("init_lora_weights", True)
    if begins not in (True, False, "gaussian", "orthogonal"):
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


def restore_copies(model: PeftModel, tensors: Mapping[str, Tensor]) -> None:
    """Give trained copies of whole modules the float32 values of a saved adapter, which peft rounds as the base is."""
    copies = [module.modules_to_save for module in model.modules() if isinstance(module, ModulesToSaveWrapper)]
    for copy in copies:
        copy.float()
    if copies:
        set_peft_model_state_dict(model, dict(tensors))


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
    if share > ROUNDED:
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
                    total = getattr(layer.get_base_layer(), _held(layer)).float() + delta
                    error += float((total.to(dtype).float() - total).square().sum())
                    change += float(delta.square().sum())
    return (error / change) ** 0.5 if change else 0.0


def merge(model: PeftModel) -> PreTrainedModel:
    """Add the adapter to the weights, in float32, and return the plain model; 4-bit layers keep it beside them."""
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            _merge_layer(module)
    return model.unload()


def _held(layer: BaseTunerLayer) -> str:
    """Return the name of the parameter that a LoRA is on; experts of a layer are one parameter of three dimensions."""
    return getattr(layer, "parameter_name", "weight")


def _merge_layer(layer: BaseTunerLayer) -> None:
    base: Any = layer.get_base_layer()
    if is_quantized(base):
        lora: Any = layer
        for name in lora.active_adapters:
            if name in lora.lora_A:
                add_beside(base, lora.lora_A[name].weight, lora.lora_B[name].weight.float() * lora.scaling[name])
        return
    weight = getattr(base, _held(layer), None)
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
        self.dropouts = [pair for pair in probabilities(model) if not _inside_lora(pair[0], self.layers)]

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
            for layer, flag in zip(self.layers, before, strict=True):
                layer._disable_adapters = flag
            for module, name, value in active:
                setattr(module, name, value)


def _inside_lora(module: nn.Module, layers: list[nn.Module]) -> bool:
    return any(module is dropout for layer in layers for dropout in getattr(layer, "lora_dropout", {}).values())
