"""Vectors of demonstrations: computed with an encoder, and the start of what is trained for them."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embrew.text.tokens import Segment, Tokens

if TYPE_CHECKING:
    from embrew.encoder import Encoder

TEXTS = ["A heron waits in the shallow water.", "How do I reverse a linked list?", "The train to Brno leaves today."]


def start(encoder: Encoder, *, seed: int = 42) -> None:
    """Bring an encoder's new `Demonstrator`, if it has one, onto the scale of its input embeddings.

    The last layer of g is scaled so that the mean square of what it makes of a few texts is that of the embedding
    matrix; learned vectors become rows of that matrix, drawn from `seed`.
    """
    demonstrator = encoder.demonstrator
    if demonstrator is None:
        return
    embedding = encoder.backbone.causal_lm.get_input_embeddings()
    scale = getattr(embedding, "scalar_embed_scale", 1.0)  # Gemma scales its embeddings by sqrt(hidden)
    weight = embedding.weight.detach()
    with torch.no_grad():
        if demonstrator.learned is not None:
            places = torch.randperm(len(weight), generator=torch.Generator().manual_seed(seed))
            rows = weight[places[: len(demonstrator.learned)].to(weight.device)]
            demonstrator.learned.copy_(scale * rows.float())
        if demonstrator.project is not None:
            wanted = scale * torch.linalg.vector_norm(weight, dtype=torch.float32) / weight.numel() ** 0.5
            made = demonstrator(encoder(encoder.tokens(TEXTS)))
            factor = wanted / made.float().square().mean().sqrt()
            for parameter in demonstrator.project[2].parameters():
                parameter.mul_(factor)


def sampled(encoder: Encoder, tokens: Tokens) -> Tensor:
    """Return raw embeddings of texts, and the states of every n-th of their tokens (`Demonstrations.every`).

    A text of l tokens has ⌈l / n⌉ vectors: the states after n, 2n, … of its tokens, and its embedding in place of the
    last. Further vectors are 0.

    Returns:
        Float32 `(1 + most, texts, width)`: the embeddings, then first, second, … states; `most` is that of a text as
        long as the encoder allows. `(1, texts, width)` where one vector represents a text.
    """
    every = None if encoder.demonstrator is None else encoder.demonstrator.settings.every
    if every is None:
        return encoder(tokens)[None]
    states = encoder.hidden_states(tokens)
    text = tokens.where(Segment.TEXT)
    count = text.long().cumsum(-1)
    found = [encoder.pool(states, tokens)]
    for number in range(1, most_samples(encoder) + 1):
        chosen = text & (count == number * every) & (count[:, -1:] > number * every)
        found.append(torch.einsum("bt,bth->bh", chosen.to(states.dtype), states).to(found[0].dtype))
    return torch.stack(found)


def most_samples(encoder: Encoder) -> int:
    """Return the number of states that, with its embedding, represent a text of the maximum length."""
    settings = None if encoder.demonstrator is None else encoder.demonstrator.settings
    return 0 if settings is None or settings.every is None else ceil(encoder.max_seq_length / settings.every) - 1
