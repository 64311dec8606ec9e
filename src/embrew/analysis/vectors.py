"""Vectors of many texts in chunks, with or without normalisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from embrew.encoder import Encoder
from embrew.progress import progress
from embrew.text_encoder.interface import encode_options

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Side = Literal["text", "document"]


def unnormalised(encoder: Encoder | SentenceTransformer) -> Encoder | SentenceTransformer:
    """Return the encoder, on the same weights, without normalisation of its vectors."""
    if isinstance(encoder, Encoder):
        return encoder.with_settings(normalize=False)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize

    return SentenceTransformer(
        modules=[module for module in encoder if not isinstance(module, Normalize)],
        prompts={name: prompt or "" for name, prompt in encoder.prompts.items()},
        default_prompt_name=encoder.default_prompt_name,
        device=str(encoder.device),
        truncate_dim=encoder.truncate_dim,
        trust_remote_code=False,
    )


def vector_chunks(
    encoder: Encoder | SentenceTransformer,
    texts: Sequence[str],
    *,
    side: Side = "text",
    chunk_size: int = 4096,
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> Iterator[np.ndarray]:
    """Yield float32 vectors of `texts`, `(chunk_size, dimensions)` at a time.

    Args:
        encoder: the encoder.
        texts: texts to encode.
        side: `text` calls `encode`, `document` calls `encode_document`.
        chunk_size: texts per chunk.
        batch_tokens: padded tokens per batch; for an `Encoder` only.
        show_progress_bar: show a progress bar.
    """
    accepting: Any = encoder  # the annotations of SentenceTransformer are narrower than what it accepts
    options = encode_options(accepting, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    encode: Any = encoder.encode_document if side == "document" else encoder.encode
    with progress(len(texts), "encode", "text", shown=show_progress_bar) as bar:
        for start in range(0, len(texts), chunk_size):
            chunk = list(texts[start : start + chunk_size])
            with bar.shared():
                vectors = np.asarray(encode(chunk, **options), dtype=np.float32)
            bar.reach(start + len(chunk))
            yield vectors
