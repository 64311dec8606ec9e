"""Masked next-token prediction: LLM2Vec's training of a causal LM for bidirectional attention."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from embrew.encoder import Encoder
from embrew.losses.vocabulary import token_nll
from embrew.methods.base import Batch, DataRow, TokenObjective, text_ids
from embrew.model.frozen import trained_head
from embrew.settings.encoder import EncoderSettings
from embrew.text.tokens import Row, Segment, Tokens


@dataclass(kw_only=True)
class MaskedNextToken(TokenObjective):
    """−mean log p(x_t | text with some tokens masked), from the state at position t − 1.

    *LLM2Vec: Large Language Models Are Secretly Powerful Text Encoders* (arXiv 2404.05961), section 2.2. As in
    next-token prediction, the token at t is predicted from the state at t − 1, so that the model's head fits; but
    under the encoder's attention, which has to be bidirectional. Token mean over the optimiser step.

    Attributes:
        mask_probability: probability of choosing a token of the text (the paper: 0.2, for Mistral 0.8).
        replacement: `bert`: of the chosen, 80 % become the mask token, 10 % a random token, 10 % stay; `mask`: all
            become the mask token (the paper's choice for Mistral).
        mask_token: text of the mask token; a causal LM has no mask token, and the paper uses an underscore.
    """

    learning = "masked next-token prediction"
    mask_probability: Annotated[float, Field(gt=0, le=1)] = 0.2
    replacement: Literal["bert", "mask"] = "bert"
    mask_token: Annotated[str, Field(min_length=1)] = "_"

    def check_encoder(self, settings: EncoderSettings, memory_tokens: int) -> None:
        """Raise if attention is causal."""
        if settings.attention == "causal":
            raise ValueError(
                "attention=causal: masked next-token prediction is then next-token prediction with holes; set "
                "encoder.attention: bidirectional"
            )

    def setup(self, encoder: Encoder) -> None:
        """Train the head; raise unless `mask_token` is a single token."""
        super().setup(encoder)
        self._mask_id(encoder)

    def _mask_id(self, encoder: Encoder) -> int:
        (ids,) = text_ids([self.mask_token], encoder)
        if len(ids) != 1:
            raise ValueError(
                f"mask_token={self.mask_token!r} is {len(ids)} tokens of this tokenizer; choose a single token"
            )
        return ids[0]

    def collate(self, rows: Sequence[DataRow], encoder: Encoder, *, seed: int = 0) -> Batch:
        """Return BOS and text with some tokens replaced, `labels` and `positions`.

        Labels are `(batch, tokens)`, at t − 1 token t, or −100; `positions` are the indices of those that are tokens,
        in `labels` flattened. Seed and text decide which tokens are chosen.
        """
        mask_id, words = self._mask_id(encoder), len(encoder.tokenizer)
        bos = encoder.template.bos_ids
        limit = encoder.max_length["document"] - len(bos)
        texts, labels = [], []
        for text in text_ids([row["text"] for row in rows], encoder):
            ids = text[:limit]
            generator = random.Random(f"{seed} {ids}")
            positions = range(0 if bos else 1, len(ids))  # a token is predicted from the position before it
            chosen = [t for t in positions if generator.random() < self.mask_probability]
            chosen = chosen or ([generator.choice(positions)] if len(positions) else [])  # at least one per text
            masked, targets = list(ids), [-100] * (len(bos) + len(ids))
            for t in chosen:
                targets[len(bos) + t - 1] = ids[t]
                kind = generator.random()
                if self.replacement == "mask" or kind < 0.8:
                    masked[t] = mask_id
                elif kind < 0.9:
                    masked[t] = generator.randrange(min(words, encoder.backbone.vocab_size))
            texts.append(Row.labelled(bos, Segment.PROMPT) + Row.labelled(masked, Segment.TEXT))
            labels.append(targets)
        width = max(len(targets) for targets in labels)
        padded = [targets + [-100] * (width - len(targets)) for targets in labels]
        all_labels = torch.tensor(padded, dtype=torch.long)
        return {
            "text": Tokens.pad(texts),
            "labels": all_labels,
            "positions": (all_labels.flatten() != -100).nonzero()[:, 0],
        }

    def num_items(self, batch: Batch) -> dict[str, int]:
        """Return the number of chosen tokens."""
        return {"tokens": len(batch["positions"])}

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Tensor]:
        """Return the negative log-likelihood of the chosen tokens."""
        states = encoder.hidden_states(batch["text"])
        scored, labels = (part.flatten(0, 1).index_select(0, batch["positions"]) for part in (states, batch["labels"]))
        weight = self.item_weights(batch, states.device)["tokens"]
        head = trained_head(encoder.backbone.causal_lm)
        return {"loss": token_nll(scored, labels, *head, row_weights=weight)}
