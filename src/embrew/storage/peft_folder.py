"""Adapters that peft saved: the base that they name, and every tensor of the file matched on the model, or none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embrew.files.reading import BrokenFile, content_of, read_json
from embrew.model.adapters import KEY_PREFIX, AdapterState, adapter_state, reopened_lora
from embrew.model.backbone import Backbone
from embrew.storage.foreign import ADAPTER, check_adapter, file_of
from embrew.storage.parts import TENSORS, read_tensors

logger = logging.getLogger(__name__)
OTHER_BASE = (
    "give the base that the adapter was trained on: encoder.model=BASE and encoder.adapter=FOLDER in a recipe, "
    "Encoder.from_pretrained(BASE, adapter=FOLDER) in Python"
)


def adapter_config(name: str) -> dict[str, Any] | None:
    """Return the configuration of a LoRA that peft saved; None: the folder or Hub id is none, or of a whole model.

    Raises:
        ValueError: another kind of adapter, or one whose settings name other files or modules.
    """
    path = file_of(name, ADAPTER)
    if path is None or file_of(name, "config.json") is not None:
        return None
    config = read_json(Path(path))
    config.pop("auto_mapping", None)  # of a class that only peft's AutoPeftModel would import
    check_adapter(config, source=Path(path))
    return config


def base_of_adapter(name: str, config: Mapping[str, Any]) -> str:
    """Return the base model that an adapter's configuration names.

    Raises:
        ValueError: it names none, or another adapter.
    """
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ValueError(f"{name}: its {ADAPTER} does not say which model it was trained on; {OTHER_BASE}")
    if base.startswith(("/", "~", ".")) and not Path(base).exists():
        raise FileNotFoundError(f"{name} was trained on {base}, which is not on this machine; {OTHER_BASE}")
    if file_of(base, ADAPTER) is not None:
        raise ValueError(
            f"{name} is an adapter on {base}, which is an adapter itself; merge that one and save it first"
        )
    return base


def apply_adapter(backbone: Backbone, name: str) -> AdapterState:
    """Merge a LoRA that peft saved into a model without an adapter, in float32, and return it under the model's names.

    Its keys may be those of `AutoModelForCausalLM` or of `AutoModel`.

    Args:
        backbone: the model.
        name: the adapter's folder or Hub id.

    Raises:
        BrokenFile: a tensor has no place on the model, or one of the model's has none in the file.
        ValueError: it is no LoRA, or its weights are pickled.
    """
    config, path = adapter_config(name), file_of(name, TENSORS)
    if config is None:
        raise ValueError(f"{name} is no folder or Hub id of a LoRA that peft saved; it holds {ADAPTER} and {TENSORS}")
    if path is None:
        raise ValueError(f"{name} has no {TENSORS}; embrew reads no pickled weights: save the adapter again with peft")
    tensors = read_tensors(Path(path))
    state = AdapterState(config, _renamed(tensors, backbone.causal_lm))
    try:
        with content_of(Path(path), also=(RuntimeError,)):
            adapted = reopened_lora(backbone.causal_lm, state, trainable=False)
    except BrokenFile as error:
        raise BrokenFile(f"{name} does not fit {type(backbone.causal_lm).__name__}: {error}; {OTHER_BASE}") from error
    placed = adapter_state(adapted).tensors
    lost = [
        old for old, new in zip(tensors, state.tensors, strict=True) if not same_values(placed.get(new), tensors[old])
    ]
    absent = sorted(placed.keys() - state.tensors.keys())
    if lost or absent:
        raise BrokenFile(
            f"{name}: {len(tensors) - len(lost)} of {len(tensors)} tensors matched; "
            + (f"{lost[0]} has no place on the model" if lost else f"the file lacks {absent[0]}")
            + f"; {OTHER_BASE}"
        )
    logger.info("%s: %d of %d tensors matched", name, len(tensors), len(tensors))
    backbone.use_adapter(adapted)
    backbone.merge_adapter()
    return replace(state, config={**config, "inference_mode": True})


def same_values(placed: Tensor | None, stored: Tensor) -> bool:
    """Return whether a tensor is on a model as a file holds it, up to the model's dtype."""
    return placed is not None and placed.shape == stored.shape and torch.equal(placed.cpu(), stored.to(placed.dtype))


def _renamed(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Return tensors under a model's own names, where another class of the same family was trained."""
    modules = {name for name, _ in model.named_modules()}
    inner = f"{getattr(model, 'base_model_prefix', '')}."

    def matched(change: Any) -> int:
        return sum(change(key.removeprefix(KEY_PREFIX)).partition(".lora_")[0] in modules for key in tensors)

    changes = (lambda key: key, lambda key: inner + key, lambda key: key.removeprefix(inner))
    best = max(changes, key=matched)
    return {KEY_PREFIX + best(key.removeprefix(KEY_PREFIX)): tensor for key, tensor in tensors.items()}
