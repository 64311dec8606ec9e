"""Tiny models of every family and a tokenizer, built in memory; no network."""

from __future__ import annotations

import ast
import copy
import functools
import json
import os
import subprocess
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer.main
import typer.testing
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AlbertConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    Gemma3TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    PhiConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2Tokenizer,
    Qwen3Config,
    RobertaConfig,
)

from embrew.encoder import Encoder
from embrew.model.backbone import Backbone
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from tests import fresh
from tests.copies import Copies

torch.set_num_threads(1)
# Typer builds all commands anew for every call, in 0.05 s, and what it builds is the same.
typer.testing._get_command = functools.cache(typer.main.get_command)

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
CONFIGS = {
    "llama": LlamaConfig(**GROUPED),
    "llama-tied": LlamaConfig(**GROUPED, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=8),
    "mistral": MistralConfig(**GROUPED, head_dim=8, sliding_window=8),
    "gemma3": Gemma3TextConfig(
        **GROUPED,
        head_dim=8,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
    ),
    "gpt-neox": GPTNeoXConfig(**SIZES),
    "phi": PhiConfig(**SIZES),
}
FAMILIES = tuple(CONFIGS)
DIFFERENT = ("llama", "gemma3", "gpt-neox")  # most from each other: plain; windows, scaled embeddings; names, biases
ENCODER_SIZES: dict[str, Any] = {**SIZES, "num_hidden_layers": 3, "max_position_embeddings": 130}
ENCODER_CONFIGS: dict[str, Any] = {
    "bert": BertConfig(**ENCODER_SIZES),
    "roberta": RobertaConfig(**ENCODER_SIZES),
    "mpnet": MPNetConfig(**{**ENCODER_SIZES, "pad_token_id": 1}),  # it takes id 1 for padding, whatever one says
    "distilbert": DistilBertConfig(
        vocab_size=300, dim=32, hidden_dim=64, n_layers=3, n_heads=4, max_position_embeddings=130, pad_token_id=0
    ),
    "albert": AlbertConfig(**ENCODER_SIZES, embedding_size=16),  # one layer, which runs three times
    "electra": ElectraConfig(**ENCODER_SIZES, embedding_size=16),  # input embeddings narrower than states
    "modernbert": ModernBertConfig(
        **ENCODER_SIZES, cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2, local_attention=16
    ),
}
ENCODER_FAMILIES = tuple(ENCODER_CONFIGS)
SENTENCES = [
    "The quick brown fox jumps over the lazy dog near the river.",
    "A small language model reads words and predicts what comes next.",
    "Embeddings turn a text into a vector; close texts have close vectors.",
    "She sells sea shells by the sea shore, and he buys them in the morning.",
    "Numbers such as 1234 and 3.14 are text too, and so are brackets (like these).",
]


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 300 that prefixes BOS."""
    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator(SENTENCES * 4, trainer)
    built.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=built, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, tokenizer) -> Callable[[str], Path]:
    """A saved tiny model of a family, with the tokenizer."""
    root = tmp_path_factory.mktemp("models")

    def folder(family: str) -> Path:
        place = root / family
        if not place.exists():
            tiny_model(family).save_pretrained(place)
            tokenizer.save_pretrained(place)
        return place

    return folder


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory, tokenizer) -> Callable[[str], Path]:
    """A saved tiny encoder, as masked LM, and a tokenizer that puts CLS and SEP around a text."""
    root = tmp_path_factory.mktemp("encoders")

    def framed(cls: str, pad: str) -> PreTrainedTokenizerFast:
        own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        own.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A </s>", special_tokens=[(cls, own.token_to_id(cls)), ("</s>", 2)]
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=own, pad_token=pad, cls_token=cls, sep_token="</s>", unk_token=pad
        )

    def folder(family: str) -> Path:
        place = root / family
        if not place.exists():
            torch.manual_seed(0)
            spread(AutoModelForMaskedLM.from_config(copy.deepcopy(ENCODER_CONFIGS[family]))).save_pretrained(place)
            framed(*(("<pad>", "<s>") if family == "mpnet" else ("<s>", "<pad>"))).save_pretrained(place)
        return place

    return folder


def verify_in_forks(patch: pytest.MonkeyPatch) -> None:
    """Let verification open folders in processes that are forked from one with libraries in it: see `fresh`."""
    from embrew.export import fresh_process
    from embrew.storage import saving

    for module in (fresh_process, saving):
        patch.setattr(module, "subprocess", SimpleNamespace(run=fresh.run))


@pytest.fixture(scope="session", autouse=True)
def _forked() -> Iterator[None]:
    """Verification in forks, for all tests but those that ask for `new_interpreter`."""
    with pytest.MonkeyPatch.context() as patch:
        verify_in_forks(patch)
        yield


@pytest.fixture
def forked() -> None:
    """Of tests that say so; verification is in forks without it."""


@pytest.fixture
def new_interpreter(monkeypatch) -> None:
    """Verification as a user has it, for one test."""
    from embrew.export import fresh_process
    from embrew.storage import saving

    for module in (fresh_process, saving):
        monkeypatch.setattr(module, "subprocess", subprocess)


def by_default(chosen: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Parameters of which the chosen ones run by default, and the others, on the same code path, with `-m slow`."""
    values = list(values)
    assert all(value in values for value in chosen), f"{chosen} of {values}"
    marks = [() if value in chosen else pytest.mark.slow for value in values]
    each = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*parts, marks=mark) for parts, mark in zip(each, marks, strict=True)]


def spread(model: PreTrainedModel, *, bias: float = 0.0) -> PreTrainedModel:
    """Give a random model weights so large that every token matters."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.15)
            elif bias and name.endswith("bias"):
                parameter.normal_(0, bias)
    return model.eval()


def tiny_model(family: str, *, attn_implementation: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    """Two random layers of a family, with weights large enough that every token matters.

    Its configuration is a copy: transformers keeps the object that it is given, and tests change the kernel in it.
    """
    torch.manual_seed(seed)
    config = copy.deepcopy(CONFIGS[family])
    return spread(AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation), bias=0.02)


@functools.cache
def _adapted(how: str, config: int) -> tuple[Copies, torch.Tensor, object]:
    """A backbone with an adapter, the state of torch's generator behind it, and the configuration of that `id`."""
    family, memory_tokens, soft_prompt_tokens, lora, noise, attn_implementation = ast.literal_eval(how)
    backbone = Backbone(tiny_model(family, attn_implementation=attn_implementation))
    if memory_tokens:
        backbone.add_memory(memory_tokens, seed=1)
    if soft_prompt_tokens:
        backbone.add_soft_prompt(soft_prompt_tokens, seed=1)
    if lora is not None:
        backbone.add_lora({"r": 4, "lora_alpha": 8, **lora})
        stir(backbone, noise)
    return Copies(backbone), torch.get_rng_state(), CONFIGS[family]


def adapted(family: str, *how: Any) -> Backbone:
    """A backbone, with or without an adapter: a copy of one that is made once, in a tenth of the time."""
    copies, generator, _ = _adapted(repr((family, *how)), id(CONFIGS[family]))
    torch.set_rng_state(generator)
    return copies.make()


@pytest.fixture(scope="session")
def make_encoder(tokenizer) -> Callable[..., Encoder]:
    """An encoder on a tiny model; by default LLM2Comp's: memory tokens, bidirectional, LoRA with noise in it."""

    def make(
        family: str = "llama",
        *,
        memory_tokens: int = 3,
        soft_prompt_tokens: int = 0,
        attention: str = "bidirectional",
        lora: dict[str, Any] | None = None,
        noise: float = 0.1,
        attn_implementation: str = "sdpa",
        **settings: Any,
    ) -> Encoder:
        backbone = adapted(family, memory_tokens, soft_prompt_tokens, lora, noise, attn_implementation)
        if memory_tokens:
            settings = {
                "template": "{instruction}{text}{memory}",
                "pooling": Pooling("mean", "memory"),
                **settings,
            }
        own = as_qwen2(tokenizer) if family == "qwen2" else tokenizer
        encoder = Encoder(backbone, own, Base("folder", "tiny"), attention=attention, **settings)  # type: ignore[arg-type]
        return encoder.eval()

    return make


def as_qwen2(tokenizer: PreTrainedTokenizerFast) -> Qwen2Tokenizer:
    """The same vocabulary in Qwen2's class, as which transformers opens every tokenizer beside a Qwen2 model."""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    model = backend["model"]
    made = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],
        **{name: getattr(tokenizer, name) for name in ("pad_token", "bos_token", "eos_token")},
    )
    made.backend_tokenizer.post_processor = tokenizer.backend_tokenizer.post_processor
    return made


def wide_model(place: Path, tokenizer: PreTrainedTokenizerFast, **sizes: int) -> Path:
    """Save a model whose linear layers have inputs of a multiple of 64 dimensions, in float16."""
    torch.manual_seed(0)
    wide = {"hidden_size": 64, "intermediate_size": 128, **sizes}
    LlamaForCausalLM(LlamaConfig(**{**GROUPED, **wide, "initializer_range": 0.1})).half().save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def stir(backbone: Backbone, noise: float = 0.1, seed: int = 2) -> None:
    """Give LoRA's B matrices, which start at zero, some values, so that the adapter does something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            if "lora_B" in name:
                parameter.copy_(noise * torch.randn(parameter.shape, generator=generator))


def data_folder() -> Path:
    """The folder of shared data, or skip."""
    if "EMBREW_DATA" not in os.environ:
        pytest.skip("set EMBREW_DATA to the folder of public data sets to run this test")
    return Path(os.environ["EMBREW_DATA"])
