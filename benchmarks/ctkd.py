"""Continuation with distillation: our step on one copy of the weights against the published one on two copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import harness
import torch
from harness import SEED
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from two_copy import TwoCopy, TwoCopyBatch

from embrew.encoder import Encoder
from embrew.methods.llm2comp import Compression
from embrew.model.backbone import Backbone
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Segment, Tokens
from embrew.training.step import TrainStep

BOS = 1
MEMORY_TOKENS = 8
QWEN3_VOCABULARY = 151_936
LORA: dict[str, Any] = {
    "r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,  # the paper has 0.05; noise would leave nothing to compare
    "target_modules": ["q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}
LOSS, GRADIENTS = 1e-6, 1e-5  # relative differences that are allowed
SAME = {"loss": LOSS, "gradient_norm": GRADIENTS}


class Texts(NamedTuple):
    """Token ids of texts that were split: contexts begin with BOS."""

    contexts: list[list[int]]
    continuations: list[list[int]]

    @property
    def tokens(self) -> int:
        """All of them."""
        return sum(map(len, self.contexts)) + sum(map(len, self.continuations))


class Side(NamedTuple):
    """One way to compute the step.

    Attributes:
        module: what holds the weights.
        batch: texts to what `loss` takes.
        loss: a batch to the loss, with its graph.
        trained: what gets a gradient, under names that both sides share.
    """

    module: nn.Module
    batch: Callable[[Any], Any]
    loss: Callable[[Any], Tensor]
    trained: dict[str, nn.Parameter]

    def step(self, batch: Any) -> Tensor:
        """Forward and backward, from cleared gradients; the loss."""
        for parameter in self.trained.values():
            parameter.grad = None
        loss = self.loss(batch)
        loss.backward()
        return loss.detach()


def random_model(config: PreTrainedConfig, device: str = "cpu", dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """Random weights, the same for the same configuration and device, of a size that gives logits of deviation 1."""
    torch.manual_seed(SEED)
    config.initializer_range = config.hidden_size**-0.5
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def random_texts(vocab_size: int, lengths: Iterable[tuple[int, int]], seed: int = SEED) -> Texts:
    """Texts of given lengths (context with BOS, continuation)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(length: int) -> list[int]:
        return torch.randint(3, vocab_size, (length,), generator=generator).tolist()

    pairs = list(lengths)
    return Texts([[BOS, *draw(context - 1)] for context, _ in pairs], [draw(more) for _, more in pairs])


def memory_rows(model: PreTrainedModel) -> Tensor:
    """What the memory tokens start from."""
    weight = model.get_input_embeddings().get_parameter("weight").detach()
    return weight[3 : 3 + MEMORY_TOKENS].float().clone()


def lora_parameters(model: nn.Module, memory: nn.Parameter) -> dict[str, nn.Parameter]:
    """LoRA's matrices, filled with noise so that the adapter does something, and the memory tokens."""
    generator = torch.Generator().manual_seed(SEED)
    trained = {name: p for name, p in model.named_parameters() if "lora_" in name}
    with torch.no_grad():
        for name in sorted(trained):
            noise = torch.randn(trained[name].shape, generator=generator)
            trained[name].copy_(noise * (0.02 if "lora_B" in name else trained[name].shape[-1] ** -0.5))
    return {**trained, "memory": memory}


def build_ours(model: PreTrainedModel) -> Side:
    """The `Compression` objective in the step that training runs."""
    backbone = Backbone(model)
    backbone.add_memory(MEMORY_TOKENS)
    assert backbone.memory is not None
    backbone.memory.data.copy_(memory_rows(model))
    backbone.add_lora(LORA)
    encoder = Encoder(
        backbone,
        bos_tokenizer(),
        Base("folder", "random"),
        template="{text}{memory}",
        attention="bidirectional",
        pooling=Pooling("mean", "memory"),
    )
    objective = Compression()
    objective.setup(encoder)
    step = TrainStep(encoder, objective).train()

    def batch(texts: Texts) -> dict[str, Tokens]:
        """The layout of `Compression.collate`, for texts that are split already."""
        bos = Row.labelled(encoder.template.bos_ids, Segment.PROMPT)
        soft = bos + Row.labelled([0] * MEMORY_TOKENS, Segment.SOFT)
        targets = [Row.labelled(ids, Segment.TARGET) for ids in texts.continuations]
        bare = [ids[1:] for ids in texts.contexts]
        contexts = [bos + Row.labelled(ids, Segment.TEXT) for ids in bare]
        rows = {
            "context": encoder.template.rows(bare),
            "student": [soft + target for target in targets],
            "teacher": [context + target for context, target in zip(contexts, targets, strict=True)],
        }
        return {name: Tokens.pad(part).to(encoder.device) for name, part in rows.items()}

    return Side(step, batch, lambda batch: step(**batch)["loss"], lora_parameters(backbone.model, backbone.memory))


def build_peer(model: PreTrainedModel) -> Side:
    """The published step."""
    peer = TwoCopy(model, memory_rows(model), LoraConfig(task_type="CAUSAL_LM", **LORA)).train()

    def batch(texts: Texts) -> TwoCopyBatch:
        return TwoCopyBatch.of(texts.contexts, texts.continuations, model.device)

    return Side(peer, batch, peer, lora_parameters(peer.encoder, peer.memory))


def bos_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that does nothing but put BOS first; the texts here are token ids."""
    built = Tokenizer(models.WordLevel({"<pad>": 0, "<s>": BOS, "a": 2}, unk_token="<pad>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    built.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", BOS)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=built, pad_token="<pad>", bos_token="<s>")


def require_same_step(
    ours: Side, peer: Side, texts: Any, *, loss: float = LOSS, gradient: float = GRADIENTS
) -> dict[str, float]:
    """Loss and every gradient of one step, compared."""
    losses = (ours.step(ours.batch(texts)), peer.step(peer.batch(texts)))
    if ours.trained.keys() != peer.trained.keys():
        raise harness.Unequal(f"trained: {sorted(ours.trained.keys() ^ peer.trained.keys())[:3]} on one side only")
    gradients = []
    for name, parameter in ours.trained.items():
        other = peer.trained[name]
        if parameter.grad is None or other.grad is None:
            raise harness.Unequal(f"{name} has no gradient on one side")
        gradients.append((parameter.grad, other.grad))
    return {
        f"loss ({float(losses[1]):.6f})": harness.require_equal("losses", [losses], loss),
        f"gradients ({len(gradients)} tensors)": harness.require_equal("gradients", gradients, gradient),
    }


# ---- shapes of models ----------------------------------------------------------------------------------------------


def small_llama(vocab_size: int) -> LlamaConfig:
    """6 layers, width 256."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=6,
        num_attention_heads=4,
        max_position_embeddings=1024,
        bos_token_id=BOS,
    )


def qwen3(hidden: int, intermediate: int, layers: int = 28) -> Qwen3Config:
    """The shapes of Qwen3-0.6B and 1.7B."""
    return Qwen3Config(
        vocab_size=QWEN3_VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
    )
