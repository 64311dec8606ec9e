"""The steps of `Encoder.encode`: its arguments checked, rows embedded in batches, vectors converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from embrew.model.batching import encode_rows, usual_tokens
from embrew.model.contexts import PreparedContext, insert
from embrew.model.prefix import Prefix
from embrew.text.template import Template
from embrew.text.texts import SIDES, Text
from embrew.text.tokens import Row, Tokens

if TYPE_CHECKING:
    from embrew.encoder import Encoder

MTEB = ("task_metadata", "hf_split", "hf_subset", "prompt_type")
"""Keywords of mteb's calls of `encode`."""
PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def check_offered(output_value: str | None, precision: str | None, pool: Any, chunk_size: Any) -> None:
    """Raise ValueError for arguments of Sentence-Transformers' `encode` that are not offered here."""
    if output_value != "sentence_embedding":
        raise ValueError(f"output_value={output_value!r}; only sentence_embedding (use hidden_states for tokens)")
    if pool is not None or chunk_size is not None:
        raise ValueError("pool and chunk_size are not offered; run one process per device")
    if precision not in (None, *PRECISIONS):
        raise ValueError(f"precision={precision!r}; choose from {', '.join(PRECISIONS)}")


def read_mteb(
    encoder: Encoder, batches: Any, prompt_name: str | None, max_length: int | None, keywords: Mapping[str, Any]
) -> tuple[list[str], str | None, int | None]:
    """Return texts of mteb's batches, and the prompt name and length limit of their side.

    Raises:
        TypeError: keywords that are not mteb's.
    """
    unknown = next((name for name in keywords if name not in MTEB), None)
    if unknown is not None:
        raise TypeError(f"encode() got an unexpected keyword argument {unknown!r}")
    side = getattr(keywords.get("prompt_type"), "value", keywords.get("prompt_type"))
    if side in SIDES:
        prompt_name = side if prompt_name is None else prompt_name
        max_length = encoder.max_length[side] if max_length is None else max_length
    texts: list[str] = []
    for batch in batches:
        if "text" not in batch:
            raise ValueError(f"mteb gives {', '.join(batch)} and no text; an encoder reads texts only")
        texts += batch["text"]
    return texts, prompt_name, max_length


def of_side(
    encoder: Encoder, side: str, prompt_name: str | None, prompt: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return keywords of `encode` for texts of one side: its prompt and its length limit, unless others are given."""
    limit = encoder.max_length[side] if options.get("max_length") is None else options["max_length"]
    name = side if prompt_name is prompt is None else prompt_name
    return {**options, "prompt_name": name, "prompt": prompt, "max_length": limit}


def rows_by_text(
    encoder: Encoder, texts: Sequence[Text], instruction: str, context: PreparedContext | None, limit: int | None
) -> list[list[Row]]:
    """Return the rows of texts, one per template, as `encode` makes them; without a limit, none is truncated."""
    parts = [_rows(template, texts, instruction, context, limit, 0, len(texts)) for template in encoder.templates]
    return [list(rows) for rows in zip(*parts, strict=True)]


def _rows(
    template: Template,
    texts: Sequence[Text],
    instruction: str,
    context: PreparedContext | None,
    limit: int | None,
    start: int,
    stop: int,
) -> list[Row]:
    rows = template.rows(texts[start:stop], instruction=instruction, max_length=limit, first=start)
    return rows if context is None else insert(rows, context.row, template)


def embed_texts(
    encoder: Encoder,
    texts: Sequence[Text],
    instruction: str,
    context: PreparedContext | None,
    limit: int,
    *,
    normalize: bool,
    **options: Any,
) -> Tensor:
    """Return vectors of texts, the mean over the encoder's templates, float32 on the CPU; `options` as of `embed`."""
    averaged = len(encoder.templates) > 1
    parts = [
        embed(
            encoder,
            partial(_rows, template, texts, instruction, context, limit),
            len(texts),
            context=context,
            normalize=normalize and not averaged,
            **options,
        )
        for template in encoder.templates
    ]
    vectors = torch.stack(parts).mean(0) if averaged else parts[0]
    return nn.functional.normalize(vectors, dim=-1) if averaged and normalize else vectors


def embed(
    encoder: Encoder,
    rows: Callable[[int, int], list[Row]],
    total: int,
    *,
    context: PreparedContext | None,
    num_layers: int | None,
    batch_size: int | None,
    batch_tokens: int | None,
    dimensions: int | None = None,
    normalize: bool = False,
    show_progress_bar: bool = False,
) -> Tensor:
    """Return vectors of rows of one template, float32 `(total, dimensions)` on the CPU.

    Args:
        encoder: embeds them.
        rows: gives the rows start..stop-1.
        total: number of rows.
        context: with which they were made.
        num_layers: number of layers to run.
        batch_size: rows per batch, where `batch_tokens` is not given.
        batch_tokens: budget of padded tokens per batch; where neither is given, 2,048 on a CPU and 16,384 on a GPU.
        dimensions: leading dimensions to keep; None: all.
        normalize: to unit length.
        show_progress_bar: show one.

    Raises:
        NotFinite: a vector is not finite; names the row.
    """
    prefix = encoder.backbone.kept_prefix or Prefix()

    def embed_batch(tokens: Tokens, count: int) -> Tensor:
        tokens = tokens if context is None else tokens.with_soft(context.vectors)
        shared = prefix.at(tokens, count) if count else None
        pooled = encoder(tokens.to(encoder.device), num_layers=num_layers, shared=shared)[:, :dimensions]
        return nn.functional.normalize(pooled, dim=-1) if normalize else pooled

    if batch_size is None and batch_tokens is None:
        batch_tokens = usual_tokens(encoder.device)
    with torch.inference_mode():
        return encode_rows(
            rows,
            total,
            embed_batch,
            dimensions or encoder.width,
            batch_size=batch_size or 1,
            batch_tokens=batch_tokens,
            show_progress_bar=show_progress_bar,
            tokenize_ahead=encoder.device.type != "cpu",
            share=encoder.shares_prefixes,
            cost=encoder.cost,
        )


def convert(
    vectors: Tensor, single: bool, precision: str | None, as_numpy: bool, as_tensor: bool
) -> np.ndarray | Tensor | list[Tensor]:
    """Return vectors in the form the caller asked for, quantised as Sentence-Transformers does it."""
    if precision not in (None, "float32"):
        from sentence_transformers.util import quantize_embeddings

        quantized = quantize_embeddings(vectors.numpy(), precision=precision)  # type: ignore[arg-type]
        vectors = torch.from_numpy(np.asarray(quantized))
    if single:
        vectors = vectors[0]
    if as_tensor:
        return vectors
    if as_numpy:
        return vectors.numpy()
    return vectors if single else list(vectors)


def unit(vectors: Any) -> Tensor:
    """Return unit vectors, float32 `(vectors, dimensions)`, of an array, a tensor, one vector, or a list of vectors."""
    if isinstance(vectors, list | tuple) and vectors and isinstance(vectors[0], Tensor):
        vectors = torch.stack(list(vectors))
    array = torch.as_tensor(vectors).float()
    return nn.functional.normalize(array[None] if array.ndim == 1 else array, dim=-1)
