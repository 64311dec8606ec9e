"""Vectors of demonstrations, computed by an encoder: contexts prepared for it, and the initial values of g."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor

from embrew.model.contexts import Context, Example, PreparedContext, concatenate, demonstration_rows, instruction_ids
from embrew.model.encoder_module import EncoderModule
from embrew.settings.encoder import Demonstrations, Part
from embrew.text.tokens import Segment, Tokens

logger = logging.getLogger(__name__)
BATCH = 8  # texts per forward pass, where vectors of demonstrations are computed


def prepare_context(encoder: EncoderModule, context: Context) -> PreparedContext:
    """Embed the demonstrations of a context, and return it as an encoder reads it.

    Raises:
        ValueError: the encoder does not read demonstrations; more of them than learned vectors; the
            template has the instruction after the text, or there are several templates.
    """
    settings = demonstration_settings(encoder)
    template, pairs = encoder.template, context.demonstrations
    if settings.learnable is not None and len(pairs) > settings.learnable:
        raise ValueError(
            f"{len(pairs)} demonstrations, and this encoder learned vectors for {settings.learnable}; give fewer"
        )
    if encoder.training:
        encoder.eval()
    instruction_row = instruction_ids(template, context.instruction)
    table: list[Tensor] = []
    examples = [Example() for _ in pairs]
    answer = context.passage_instruction
    sides: tuple[tuple[Part, str, int], ...] = (
        ("query", context.instruction, encoder.max_length["query"]),
        ("passage", encoder.prompts["document"] if answer is None else answer, encoder.max_length["document"]),
    )
    with torch.no_grad():
        for part, instruction, limit in sides:
            texts = [getattr(pair, part) for pair in pairs]
            if settings.form(part) == "text":
                token_ids = template.text_ids(texts, limit=settings.text_tokens, after=part == "passage")
                examples = [e._replace(**{part: ids}) for e, ids in zip(examples, token_ids, strict=True)]
            elif settings.form(part) == "vector":
                if settings.learnable is None:
                    indices = _embedded(encoder, texts, instruction, limit, table)
                else:
                    indices = [[2 * number + (part == "passage")] for number in range(len(pairs))]
                examples = [e._replace(**{f"{part}_vectors": ids}) for e, ids in zip(examples, indices, strict=True)]
        if pairs and settings.form("instruction") == "vector":
            (instruction_indices,) = _embedded(encoder, [""], context.instruction, encoder.max_length["query"], table)
            instruction_row = instruction_row._replace(vectors=instruction_indices)
        vectors = _vectors(encoder, table)
    rows = demonstration_rows(settings, template, instruction_row, examples)
    if len(rows) < len(pairs):
        logger.warning(
            "%d of %d demonstrations fit demonstrations.budget=%s tokens; the others are left out",
            len(rows),
            len(pairs),
            settings.budget,
        )
    row = concatenate(rows)
    encoder.backbone.check_row_length(
        encoder.max_seq_length + len(row.ids),
        f"the demonstrations take {len(row.ids)} tokens and texts up to {encoder.max_seq_length}",
        "give fewer demonstrations, or set max_length lower",
    )
    return PreparedContext(context, row, vectors)


def demonstration_settings(encoder: EncoderModule) -> Demonstrations:
    """Return how an encoder reads demonstrations.

    Raises:
        ValueError: it does not read them.
    """
    if encoder.demonstrator is None:
        raise ValueError(
            "this encoder does not read demonstrations; set encoder.demonstrations in its recipe "
            "(compress: none reads them as text), and train it so"
        )
    return encoder.demonstrator.settings


def _vectors(encoder: EncoderModule, table: list[Tensor]) -> Tensor:
    demonstrator = encoder.demonstrator
    if demonstrator is not None and demonstrator.learned is not None:
        return demonstrator.learned.detach().float().cpu()
    if demonstrator is None or not table:
        return torch.zeros(0, encoder.backbone.hidden_size)
    return demonstrator(torch.cat(table)).float().cpu()


def _embedded(
    encoder: EncoderModule, texts: Sequence[str], instruction: str, limit: int, table: list[Tensor]
) -> list[list[int]]:
    """Append the raw vectors of texts to a table; return the indices of each text's vectors."""
    settings = demonstration_settings(encoder)
    indices = []
    for begin in range(0, len(texts), BATCH):
        rows = encoder.template.rows(texts[begin : begin + BATCH], instruction=instruction, max_length=limit)
        vectors = sampled_vectors(encoder, Tokens.pad(rows).to(encoder.device))
        for number, row in enumerate(rows):
            count = settings.slots(row.segments.count(Segment.TEXT))
            first = sum(len(part) for part in table)
            table.append(vectors[[*range(1, count), 0], number])
            indices.append(list(range(first, first + count)))
    return indices


SCALE_TEXTS = [
    "A heron waits in the shallow water.",
    "How do I reverse a linked list?",
    "The train to Brno leaves today.",
]


def initialize_demonstrator(encoder: EncoderModule, *, seed: int = 42) -> None:
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
            indices = torch.randperm(len(weight), generator=torch.Generator().manual_seed(seed))
            rows = weight[indices[: len(demonstrator.learned)].to(weight.device)]
            demonstrator.learned.copy_(scale * rows.float())
        if demonstrator.project is not None:
            wanted = scale * torch.linalg.vector_norm(weight, dtype=torch.float32) / weight.numel() ** 0.5
            vectors = demonstrator(encoder(encoder.tokenize(SCALE_TEXTS)))
            factor = wanted / vectors.float().square().mean().sqrt()
            for parameter in demonstrator.project[2].parameters():
                parameter.mul_(factor)


def sampled_vectors(encoder: EncoderModule, tokens: Tokens) -> Tensor:
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
    pooled = [encoder.pool(states, tokens)]
    for number in range(1, max_samples(encoder) + 1):
        chosen = text & (count == number * every) & (count[:, -1:] > number * every)
        pooled.append(torch.einsum("bt,bth->bh", chosen.to(states.dtype), states).to(pooled[0].dtype))
    return torch.stack(pooled)


def max_samples(encoder: EncoderModule) -> int:
    """Return the number of states that, with its embedding, represent a text of the maximum length."""
    settings = None if encoder.demonstrator is None else encoder.demonstrator.settings
    return 0 if settings is None or settings.every is None else ceil(encoder.max_seq_length / settings.every) - 1
