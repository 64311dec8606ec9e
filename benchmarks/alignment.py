"""Conditional distribution alignment: our step against a plain one with three encoder passes and two copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import harness
import numpy as np
import peaks
import torch
from ctkd import (
    BOS,
    LORA,
    Side,
    bos_tokenizer,
    lora_parameters,
    memory_rows,
    random_model,
    require_same_step,
    small_llama,
)
from harness import SEED, Bar, Benchmark, Outcome
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from embrew.encoder import Encoder
from embrew.methods.autoregembed import Alignment
from embrew.model.backbone import Backbone
from embrew.settings.base import Base
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Segment, Tokens
from embrew.training.step import TrainStep

MEMORY = 5
VOCABULARY = 32_000
TRIPLETS = 8
INSTRUCTION = 10  # tokens after every text that is encoded
BETA = TEMPERATURE = 0.1
# Scores are sums of some hundred logarithms in float32, and the loss looks at their differences.
LOSS, GRADIENTS = 1e-5, 1e-4
SAME = {"loss": LOSS, "gradient_norm": GRADIENTS}


class Triplets(NamedTuple):
    """Token ids; `reference` `(triplets, 2)`: scores of positive and negative before training."""

    queries: list[list[int]]
    positives: list[list[int]]
    negatives: list[list[int]]
    reference: Tensor


def random_triplets(vocab_size: int, count: int = TRIPLETS, seed: int = SEED) -> Triplets:
    """Texts of 6 to 60 tokens, most of them short, as NLI's are (the mean there is 15 to 17 of nano's tokens).

    References are what random weights give a text of that length, so that margins are neither nought nor saturated.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = (torch.randn(3 * count, generator=generator) * 0.5 + 2.75).exp().round().long().clamp(6, 60).tolist()
    texts = [torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths]
    queries, positives, negatives = texts[:count], texts[count : 2 * count], texts[2 * count :]
    a_token = -(torch.tensor(float(vocab_size)).log() + 0.5)
    reference = torch.tensor([[len(p), len(n)] for p, n in zip(positives, negatives, strict=True)]) * a_token
    return Triplets(queries, positives, negatives, reference)


def encoded(texts: list[list[int]], vocab_size: int) -> list[list[int]]:
    """Texts with the instruction behind them."""
    words = torch.randint(3, vocab_size, (INSTRUCTION,), generator=torch.Generator().manual_seed(SEED + 1)).tolist()
    return [text + words for text in texts]


class ThreePasses(nn.Module):
    """A direct reading of Eq. 2: one encoder pass for every decoder pass, so that a query is encoded twice.

    As the public training code does: encoder and frozen decoder are two models, texts are padded to the longest, the
    decoder gives logits of all positions, a softmax over all of them is taken, and one backward follows. In its favour:
    the encoder makes no logits, there is no cache, and the sign of the margin is the paper's.
    """

    def __init__(self, model: PreTrainedModel, memory: Tensor) -> None:
        super().__init__()
        self.decoder = copy.deepcopy(model).requires_grad_(False)
        self.encoder = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **LORA))
        self.memory = nn.Parameter(memory.clone())

    def forward(self, batch: Triplets) -> Tensor:
        """The mean loss."""
        vocab_size = self.decoder.config.vocab_size
        queries, positives = encoded(batch.queries, vocab_size), encoded(batch.positives, vocab_size)
        a = self.log_probs(self.encode(queries), batch.positives)
        b = self.log_probs(self.encode(positives), batch.positives)
        c = self.log_probs(self.encode(queries), batch.negatives)
        s1 = -torch.sigmoid(BETA * (a - b).abs())
        s2 = -torch.sigmoid(BETA * ((a - batch.reference[:, 0]) - (c - batch.reference[:, 1])))
        return -logsigmoid((s1 - s2) / TEMPERATURE).mean()

    def encode(self, texts: list[list[int]]) -> Tensor:
        """Memory states `(batch, k, hidden)`."""
        ids = pad_sequence([torch.tensor([BOS, *text]) for text in texts], batch_first=True)
        embedded, k = self.encoder.get_input_embeddings()(ids), len(self.memory)
        lengths = [len(text) + 1 for text in texts]
        rows = [torch.cat([row[:n], self.memory, row[n:]]) for row, n in zip(embedded, lengths, strict=True)]
        mask = torch.tensor([[int(i < n + k) for i in range(ids.shape[1] + k)] for n in lengths])
        inner = self.encoder.get_base_model().base_model  # without the head
        states = inner(inputs_embeds=torch.stack(rows), attention_mask=mask, use_cache=False).last_hidden_state
        return torch.stack([row[n : n + k] for row, n in zip(states, lengths, strict=True)])

    def log_probs(self, memory: Tensor, texts: list[list[int]]) -> Tensor:
        """Summed log-probabilities `(batch,)` of texts after memory states."""
        ids = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
        there = pad_sequence([torch.ones(len(text)) for text in texts], batch_first=True)
        k = memory.shape[1]
        inputs = torch.cat([memory, self.decoder.get_input_embeddings()(ids)], dim=1)
        mask = torch.cat([torch.ones(len(texts), k), there], dim=1).long()
        logits = self.decoder(inputs_embeds=inputs, attention_mask=mask, use_cache=False).logits
        scores = logits.log_softmax(-1)[:, k - 1 : -1].gather(-1, ids[..., None])[..., 0]
        return (scores * there).sum(-1)


def build_ours(model: PreTrainedModel) -> Side:
    """The `Alignment` objective in the step that training runs."""
    vocab_size = model.config.vocab_size
    backbone = Backbone(model)
    backbone.add_memory(MEMORY)
    assert backbone.memory is not None
    backbone.memory.data.copy_(memory_rows(model)[:MEMORY])
    backbone.add_lora(LORA)
    encoder = Encoder(
        backbone,
        bos_tokenizer(),
        Base("folder", "random"),
        template="{text}{memory}",
        attention="causal",
        pooling=Pooling("mean", "memory"),
    )
    objective = Alignment(beta=BETA, temperature=TEMPERATURE, end=False)
    objective.setup(encoder)
    step = TrainStep(encoder, objective).train()

    def batch(texts: Triplets) -> dict[str, Any]:
        """The layout of `Alignment.collate`, for token ids."""
        size = len(texts.queries)
        soft = Row.labelled([0] * MEMORY, Segment.SOFT)
        targets = [*texts.positives, *texts.positives, *texts.negatives]
        rows = encoder.template.rows(encoded([*texts.queries, *texts.positives], vocab_size))
        return {
            "text": Tokens.pad(rows),
            "decoded": Tokens.pad([soft + Row.labelled(target, Segment.TARGET) for target in targets]),
            "owner": np.tile(np.arange(size), 3),
            "source": np.concatenate([np.arange(2 * size), np.arange(size)]),
            "part": np.arange(3).repeat(size),
            "reference": texts.reference.flatten(),
        }

    return Side(step, batch, lambda batch: step(**batch)["loss"], lora_parameters(backbone.model, backbone.memory))


def build_peer(model: PreTrainedModel) -> Side:
    """The plain step."""
    peer = ThreePasses(model, memory_rows(model)[:MEMORY]).train()
    return Side(peer, lambda texts: texts, peer, lora_parameters(peer.encoder, peer.memory))


def step_time(benchmark: Benchmark, *, bar: Bar) -> Outcome:
    """Forward and backward."""
    texts = random_triplets(VOCABULARY)
    ours, peer = (build(random_model(small_llama(VOCABULARY))) for build in (build_ours, build_peer))
    equality = require_same_step(ours, peer, texts, loss=LOSS, gradient=GRADIENTS)
    own, theirs = partial(ours.step, ours.batch(texts)), partial(peer.step, peer.batch(texts))
    measure = harness.time_pairs("step time", own, theirs, bar)
    return Outcome(
        equality=equality,
        measures=[measure],
        notes={
            "mean tokens of a text": sum(map(len, [*texts.queries, *texts.positives, *texts.negatives])) / 3 / TRIPLETS,
        },
    )


def memory_variant(build: Callable[[PreTrainedModel], Side]) -> Callable[[], dict[str, float]]:
    """One side alone, for a process of its own; a step returns what tells whether it computed the same."""
    side = build(random_model(small_llama(VOCABULARY)))
    batch = side.batch(random_triplets(VOCABULARY))
    return peaks.loss_and_norm(partial(side.step, batch), side.trained)


SETTING = f"6-layer Llama of width 256, V={VOCABULARY:,}, {TRIPLETS} triplets of 6 to 60 tokens, float32, LoRA r=16"
BENCHMARKS = (
    Benchmark(
        name="alignment-step",
        title=f"Time of an alignment step, three encoder passes and two copies against two and one: {SETTING}.",
        run=partial(step_time, bar=Bar(gate=1.5, target=1.5)),
    ),
    Benchmark(
        name="alignment-memory",
        title=f"Memory of an alignment step, three encoder passes and two copies against two and one: {SETTING}.",
        run=partial(peaks.memory_growth, tolerances=SAME, bar=Bar(gate=2.5, target=2.5)),
        variants={"ours": partial(memory_variant, build_ours), "peer": partial(memory_variant, build_peer)},
    ),
)
