"""A LoRA as peft saves it, in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from torch import Tensor


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
