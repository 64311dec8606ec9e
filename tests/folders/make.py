"""Folders of encoders of every kind."""

from __future__ import annotations

from typing import Any

import torch

from embrew.encoder import Encoder
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
from embrew.storage.base_model import supports_natively
from tests.folders.inputs import LORA, SENTENCES


def stirred(encoder: Encoder) -> Encoder:
    """The encoder with values in LoRA's B matrices, which start at zero."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in encoder.backbone.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return encoder.eval()


def encoders() -> dict[str, dict[str, dict[str, Any]]]:
    """Write one folder per way in which an encoder can be stored; return options of calls to encode, by folder."""

    def opened(base: str = "tiny", **settings: Any) -> Encoder:
        return Encoder.from_pretrained(base, device="cpu", **{"max_length": 48, "pooling": "mean", **settings})

    prompts = {"query": "Find: ", "document": "Text: "}
    lora = opened(prompts=prompts, attention="bidirectional")
    lora.backbone.add_lora(LORA)
    stirred(lora).save_pretrained("encoders/lora")

    native = supports_natively(torch.bfloat16, torch.device("cpu"))
    dtype = "bfloat16" if native else "float32"
    whole = opened(pooling="last", prompts=prompts, default_prompt_name="document", dtype=dtype)
    whole.backbone.train_all()
    with torch.no_grad():
        for parameter in whole.backbone.parameters():
            parameter.add_(0.01)
    whole.save_pretrained("encoders/full")  # the weights themselves; no base beside them

    memory = opened(
        template="{soft_prompt}{instruction}{text}{memory}",
        memory_tokens=3,
        soft_prompt_tokens=2,
        memory_ratio=0.2,
        preparation="sentence",
        attention="memory_causal",
        pooling=Pooling("mean", "memory"),
        normalize=False,
    )
    memory.backbone.add_lora(LORA)
    stirred(memory).save_pretrained("encoders/memory")

    latent = opened(pooling=Pooling("mean", "text", latents=3, heads=2, head_width=4))
    latent.backbone.add_lora(LORA)
    stirred(latent).save_pretrained("encoders/latent")  # with head.safetensors

    pairs = [Demonstration("a fox", SENTENCES[0]), Demonstration("sea shells", SENTENCES[3])]
    reads = {"template": "{instruction}{text}{eos}", "pooling": "last", "demonstrations": Demonstrations()}
    vectors = opened(**reads, max_length=64)
    vectors.backbone.add_lora(LORA)
    stirred(vectors).add_context("foxes", Context("Retrieve animals: ", tuple(pairs)))
    vectors.save_pretrained("encoders/contexts")

    reads["demonstrations"] = Demonstrations(format="query", compress="none")
    icl = opened("nano", **reads, max_length=96)
    icl.backbone.add_lora({**LORA, "r": 1, "target_modules": ["q_proj"]})
    stirred(icl).add_context("foxes", Context("Retrieve animals: ", tuple(pairs)))
    icl.save_pretrained("encoders/nano")  # on the shipped base, which is named and not stored

    foxes = {"foxes": {"prompt_name": "foxes"}}
    plain: dict[str, dict[str, dict[str, Any]]] = {f"encoders/{name}": {} for name in ("full", "memory", "latent")}
    lora = {"four": {"truncate_dim": 4}, "first layer": {"num_layers": 1}}
    return {**plain, "encoders/lora": lora, "encoders/contexts": foxes, "encoders/nano": foxes}
