"""Quantise a base as it is opened, to the bit as it was when the encoder was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from transformers import PreTrainedModel

from embrew.modeling.model.base import Base, Quantized
from embrew.modeling.model.precision import cast_weights
from embrew.modeling.model.quantized import quantize
from embrew.modeling.settings.quantization import Quantization


@dataclass(frozen=True)
class Quantizing:
    """What is to be done to a base that was opened in the dtype of its files.

    Attributes:
        settings: how to quantise it.
        to: dtype of what is not quantised, or of everything.
        dequantize: give the dequantised weights, without bitsandbytes.
        expected: sha256 of the blocks; None: any.
    """

    settings: Quantization
    to: torch.dtype
    dequantize: bool
    expected: str | None

    @classmethod
    def of(
        cls, settings: Quantization | None, expected: Base | None, *, to: torch.dtype, dequantize: bool
    ) -> Self | None:
        """Return what the settings ask for, or the base that is expected; None: no quantisation."""
        known = None if expected is None else expected.quantization
        if known is not None:
            return cls(known.settings, to, dequantize, known.sha256)
        return None if settings is None else cls(settings, to, dequantize, None)

    def apply(self, model: PreTrainedModel) -> Quantized:
        """Quantise a model in place.

        Raises:
            ValueError: bitsandbytes is not installed, or the blocks are not the expected ones.
        """
        found = quantize(model, self.settings, dequantized=self.to if self.dequantize else None)
        if self.expected not in (None, found):
            raise ValueError(
                f"the base gives other {self.settings.type} blocks (sha256 {found[:12]}…) than those that the encoder "
                f"was trained on ({str(self.expected)[:12]}…); the weights of the base are others, or this embrew "
                "quantises in another way: give the base and the embrew of that training"
            )
        cast_weights(model, self.to)
        return Quantized(self.settings, found)


def check_not_quantized(name: str, config: Any, *, quantization: bool) -> None:
    """Raise where a model is stored in blocks of bitsandbytes, or is quantised already and shall be again.

    Raises:
        ValueError: it is.
    """
    key = "quantization_config"
    stored = config.get(key) if isinstance(config, dict) else getattr(config, key, None)
    if stored is None:
        return
    values = stored if isinstance(stored, dict) else vars(stored)
    method = str(values.get("quant_method") or "")
    in_blocks = method.endswith("bitsandbytes") or values.get("load_in_4bit") or values.get("load_in_8bit")
    if quantization or in_blocks:
        raise ValueError(
            f"{name} is stored quantised ({method or 'quantization_config in its config.json'}); give the original "
            "model, which has weights of 16 or 32 bits, and quantization: nf4 (encoder.quantization in a recipe)"
        )
