"""What embrew uses of bitsandbytes, in plain torch: for tests where it is not installed.

It dequantises element by element, from the two nibbles of a byte and the scale of its block, and multiplies.
"""

from __future__ import annotations

import copy
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from embrew.modeling.storage import saving
from tests.conftest import GROUPED

INSTALLED = find_spec("bitsandbytes") is not None
NAME = "embrew.modeling.model.linear_4bit"


class QuantState:
    def __init__(self, absmax: Tensor, **given: Any) -> None:
        self.absmax, self.state2, self.offset = absmax, None, None
        self.__dict__ |= given

    def weight(self, packed: Tensor) -> Tensor:
        scales = self.absmax
        if self.state2 is not None:
            inner: Any = self.state2
            groups = [inner.absmax[i // inner.blocksize] for i in range(len(scales))]
            scales = inner.code[scales.long()] * torch.stack(groups) + self.offset
        nibbles = torch.cat([packed >> 4, packed & 15], dim=1).reshape(-1, self.blocksize).long()
        return (self.code[nibbles] * scales[:, None]).reshape(self.shape)


class Params4bit(nn.Parameter):
    def __new__(cls, data: Tensor, requires_grad: bool = False, **given: Any) -> Params4bit:
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.__dict__ |= given
        return made

    def __deepcopy__(self, memo: Any) -> Params4bit:
        return Params4bit(self.data.clone(), **copy.deepcopy(self.__dict__))


class Linear4bit(nn.Linear):
    pass


def matmul_4bit(x: Tensor, packed: Tensor, quant_state: QuantState) -> Tensor:
    return nn.functional.linear(x, quant_state.weight(packed.data).to(x.dtype))


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import embrew's layer on these, where the library is not installed; no other library sees them."""
    if INSTALLED:
        return
    real = saving.version
    monkeypatch.setattr(saving, "version", lambda name: "stand-in" if name == "bitsandbytes" else real(name))
    if sys.modules.get(NAME) is not None:
        return
    library: Any = ModuleType("bitsandbytes")
    library.nn, library.functional = ModuleType("bitsandbytes.nn"), ModuleType("bitsandbytes.functional")
    library.nn.Linear4bit, library.nn.Params4bit = Linear4bit, Params4bit
    library.functional.QuantState, library.matmul_4bit = QuantState, matmul_4bit
    names = {"bitsandbytes": library, "bitsandbytes.nn": library.nn, "bitsandbytes.functional": library.functional}
    sys.modules |= names
    try:
        import_module(NAME)
    finally:
        for name in names:
            del sys.modules[name]


def wide_model(place: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Save a model whose linear layers are multiples of 64 wide, but for `down_proj`, in float16."""
    torch.manual_seed(0)
    config = LlamaConfig(**{**GROUPED, "hidden_size": 64, "intermediate_size": 96, "initializer_range": 0.1})
    LlamaForCausalLM(config).half().save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place
