"""Vectors of many texts as the analyses want them: a chunk at a time, raw or of unit length."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from embrew.modeling.encoder import Encoder
from embrew.progress import progress
from embrew.text_encoder.interface import encode_options

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Side = Literal["text", "document"]


def unnormalised(encoder: Encoder | SentenceTransformer) -> Encoder | SentenceTransformer:
    """The same encoder, on the same weights, whose vectors keep their length."""
    if isinstance(encoder, Encoder):
        view = copy.copy(encoder)
        view.normalize = False
        return view
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
    """Vectors of `texts`, float32 `(chunk_size, dimensions)` at a time.

    Args:
        encoder: what embeds.
        texts: what is embedded.
        side: `text` embeds with `encode`, `document` with `encode_document`.
        chunk_size: texts a chunk.
        batch_tokens: padded tokens a batch; an `Encoder` only.
        show_progress_bar: show one.
    """
    judged: Any = encoder  # a SentenceTransformer's own annotations are narrower than what it takes
    options = encode_options(judged, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    encode: Any = encoder.encode_document if side == "document" else encoder.encode
    with progress(len(texts), "encode", "text", shown=show_progress_bar) as bar:
        for start in range(0, len(texts), chunk_size):
            chunk = list(texts[start : start + chunk_size])
            with bar.shared():
                vectors = np.asarray(encode(chunk, **options), dtype=np.float32)
            bar.reach(start + len(chunk))
            yield vectors
