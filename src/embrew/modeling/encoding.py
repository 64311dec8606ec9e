"""Many texts to vectors: batches by token budget, longest first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from embrew.modeling.tokens import Row, Tokens

WINDOW = 16_384  # texts that are tokenised ahead; bounds memory, whatever the size of the input


def plan(lengths: Sequence[int], *, batch_size: int, batch_tokens: int | None = None) -> list[list[int]]:
    """Split row indices into batches of similar length, longest first.

    Args:
        lengths: tokens a row.
        batch_size: rows a batch, where no token budget is given.
        batch_tokens: budget of a batch in padded tokens (rows × longest row); a longer single row goes alone.

    Returns:
        Batches of indices; every index exactly once, no batch empty.

    >>> plan([3, 9, 4, 2], batch_size=32, batch_tokens=10)
    [[1], [2, 0], [3]]
    """
    if batch_size < 1 or (batch_tokens is not None and batch_tokens < 1):
        raise ValueError(f"batch_size={batch_size}, batch_tokens={batch_tokens}; both must be 1 or more")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches:
            longest, rows = lengths[batches[-1][0]], len(batches[-1])
            fits = rows < batch_size if batch_tokens is None else (rows + 1) * longest <= batch_tokens
            if fits:
                batches[-1].append(index)
                continue
        batches.append([index])
    return batches


def encode_rows(
    rows_of: Callable[[int, int], list[Row]],
    total: int,
    embed: Callable[[Tokens], Tensor],
    width: int,
    *,
    batch_size: int,
    batch_tokens: int | None,
    show_progress_bar: bool,
) -> Tensor:
    """Embed `total` texts into a preallocated float32 CPU tensor `(total, width)`.

    Args:
        rows_of: gives the rows of texts start..stop-1.
        total: number of texts.
        embed: from a batch to `(batch, width)`.
        width: dimensions of an embedding.
        batch_size: rows a batch, where no token budget is given.
        batch_tokens: token budget a batch.
        show_progress_bar: show one.

    Raises:
        ValueError: an embedding is not finite; names the text.
    """
    out = torch.empty(total, width, dtype=torch.float32)
    with tqdm(total=total, desc="encode", unit="text", disable=not show_progress_bar) as bar:
        for start in _windows(total):
            rows = rows_of(start, min(start + WINDOW, total))
            for batch in plan([len(r.ids) for r in rows], batch_size=batch_size, batch_tokens=batch_tokens):
                vectors = embed(Tokens.pad([rows[i] for i in batch])).float().cpu()
                finite = torch.isfinite(vectors).all(-1)
                if not finite.all():
                    bad = start + batch[int((~finite).nonzero()[0])]
                    raise ValueError(f"text {bad} has a NaN or infinite embedding; the model's weights are broken")
                out[torch.tensor(batch) + start] = vectors
                bar.update(len(batch))
    return out


def _windows(total: int) -> Iterator[int]:
    return iter(range(0, total, WINDOW))


def convert(
    vectors: Tensor, single: bool, precision: str, as_numpy: bool, as_tensor: bool
) -> np.ndarray | Tensor | list[Tensor]:
    """Vectors in the form the caller asked for, quantised as Sentence-Transformers does it."""
    if precision != "float32":
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
