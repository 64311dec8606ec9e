"""The peer of the compression benchmarks: continuation with distillation on two copies of the model.

A clean re-implementation of what the public training code of LLM2Comp ("Learning to Compress: Unlocking the Potential
of Large Language Models for Text Representation", arXiv 2511.17129) computes in a step of its first stage: a second
full copy of the model as teacher and decoder, every forward through `...ForCausalLM` with logits for all positions and
all hidden states kept, a Python loop over the texts of a batch, one ordinary backward.

Where we depart, it is so that results can be compared, or in the peer's favour:

* the logarithm of the softmax is taken in float32 and in one go (the public code takes `softmax(x).log()`, which is
  −inf where a probability underflows);
* memory tokens are a parameter of their own; the public code trains the whole embedding matrix along with them;
* the cross-entropy that the public code computes and throws away, and the cache of keys and values, are left out.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel


class TwoCopyBatch(NamedTuple):
    """Right-padded ids, and how long each text's parts are.

    Attributes:
        context: `(batch, tokens)` BOS and context.
        whole: `(batch, tokens)` BOS, context and continuation.
        continuation: `(batch, tokens)` BOS and continuation.
        context_lengths: tokens of the context, BOS included.
        continuation_lengths: tokens of the continuation, BOS not included.
    """

    context: Tensor
    whole: Tensor
    continuation: Tensor
    context_lengths: list[int]
    continuation_lengths: list[int]

    @classmethod
    def of(cls, contexts: list[list[int]], continuations: list[list[int]], device: torch.device | str) -> TwoCopyBatch:
        """A batch of texts, each split into a context that begins with BOS, and its continuation."""

        def pad(rows: list[list[int]]) -> Tensor:
            return pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(device)

        pairs = list(zip(contexts, continuations, strict=True))
        return cls(
            pad(contexts),
            pad([context + continuation for context, continuation in pairs]),
            pad([context[:1] + continuation for context, continuation in pairs]),
            [len(context) for context in contexts],
            [len(continuation) for continuation in continuations],
        )


class TwoCopy(nn.Module):
    """An encoder with LoRA and memory tokens, and a frozen copy of the model that continues from them.

    Args:
        model: the causal LM; becomes the encoder.
        memory: `(k, hidden)` rows the memory tokens start from.
        lora: the adapter's settings.
    """

    def __init__(self, model: PreTrainedModel, memory: Tensor, lora: LoraConfig) -> None:
        super().__init__()
        self.decoder = copy.deepcopy(model).requires_grad_(False)
        model.config.is_causal = False  # the encoder reads in both directions
        self.encoder = get_peft_model(model, lora)
        self.memory = nn.Parameter(memory.clone())

    def forward(self, batch: TwoCopyBatch) -> Tensor:
        """The mean over texts of KL( teacher ‖ student ), rows averaged per text."""
        states = self.encode(batch)
        teacher = self.decoder(
            input_ids=batch.whole,
            attention_mask=torch.ones_like(batch.whole),
            output_hidden_states=True,
            use_cache=False,
        ).logits

        k = len(self.memory)
        memories, wanted = [], []
        for row, (length, more) in enumerate(zip(batch.context_lengths, batch.continuation_lengths, strict=True)):
            memories.append(states[row, length : length + k])
            wanted.append(teacher[row, length - 1 : length + more])

        embedded = self.decoder.get_input_embeddings()(batch.continuation)
        inputs = torch.cat([embedded[:, :1], torch.stack(memories).to(embedded.dtype), embedded[:, 1:]], dim=1)
        student = self.decoder(
            inputs_embeds=inputs,
            attention_mask=torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device),
            output_hidden_states=True,
            use_cache=False,
        ).logits

        losses = []
        for row, more in enumerate(batch.continuation_lengths):
            log_p = _log_softmax(wanted[row])
            log_q = _log_softmax(student[row, k : k + more + 1])
            losses.append((log_p.exp() * (log_p - log_q)).sum(-1).mean())
        return torch.stack(losses).mean()

    def encode(self, batch: TwoCopyBatch) -> Tensor:
        """The encoder's final hidden states `(batch, tokens, hidden)`; memory tokens follow each context."""
        embedded = self.encoder.get_input_embeddings()(batch.context)
        k, width = len(self.memory), batch.context.shape[1]
        inputs, mask = [], torch.zeros(len(embedded), width + k, dtype=torch.long, device=embedded.device)
        for row, length in enumerate(batch.context_lengths):
            memory = self.memory.to(embedded.dtype)
            inputs.append(torch.cat([embedded[row, :length], memory, embedded[row, length:]]))
            mask[row, : length + k] = 1
        outputs = self.encoder(
            inputs_embeds=torch.stack(inputs), attention_mask=mask, output_hidden_states=True, use_cache=False
        )
        return outputs.hidden_states[-1]


def _log_softmax(logits: Tensor) -> Tensor:
    """In float32, or in float64 where the model is."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
