"""Similarity of memory tokens, effective memory tokens, and pooling over those only.

    Cor   = 1/N Σᵢ Mᵢ Mᵢᵀ    with Mᵢ `(k, hidden)` the normalised states of text i's memory tokens
    k_eff = number of groups of tokens within which all entries of Cor are above a threshold

Source: *Learning to Compress*, section 4.2 and Eq. 7. Collapse also shows as memory tokens with the same state. One
token of each group is an *effective token*, and pooling over effective tokens only improved the model that was trained
by continuation (Fig. 7). The rows of M are normalised here, since the paper compares entries with 0.9, which is
meaningful for cosines only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from embrew.analysis.input_texts import Side
from embrew.encoder import Encoder
from embrew.model.batching import encode_rows
from embrew.settings.encoder import Pooling
from embrew.text.tokens import Row, Tokens


def memory_similarity(
    encoder: Encoder,
    texts: Sequence[str],
    *,
    side: Side = "text",
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> np.ndarray:
    """Return the mean over texts of the cosines between a text's memory tokens, float64 `(k, k)`.

    Args:
        encoder: an encoder with memory tokens.
        texts: texts to encode.
        side: `document` uses the prompt and the length limit of documents.
        batch_tokens: padded tokens per batch; default: batches of 32 texts.
        show_progress_bar: show a progress bar.
    """
    k = _memory_tokens(encoder)
    if not texts:
        raise ValueError("no texts; give one or more, since the similarity of memory tokens is a mean over texts")
    prompt_name = "document" if side == "document" else encoder.default_prompt_name
    instruction = encoder.prompts[prompt_name] if prompt_name else ""
    limit = encoder.max_length["document"] if side == "document" else encoder.max_seq_length
    encoder.eval()

    def rows(start: int, stop: int) -> list[Row]:
        return encoder.template.rows(texts[start:stop], instruction=instruction, max_length=limit, first=start)

    def cosines(tokens: Tokens, _: int) -> Tensor:
        unit = torch.nn.functional.normalize(encoder.memory_states(tokens.to(encoder.device)).float(), dim=-1)
        return (unit @ unit.mT).flatten(1)

    with torch.inference_mode():
        similarities = encode_rows(
            rows,
            len(texts),
            cosines,
            k * k,
            batch_size=32,
            batch_tokens=batch_tokens,
            show_progress_bar=show_progress_bar,
        )
    return np.asarray(similarities.mean(0, dtype=torch.float64).view(k, k))


def clusters(similarity: np.ndarray, *, threshold: float = 0.9) -> list[list[int]]:
    """Group memory tokens by complete linkage, so that all similarities within a group are above `threshold`.

    *Learning to Compress*, section 4.2, leaves open in which order; here the closest groups are merged first.

    Args:
        similarity: `(k, k)`, symmetric.
        threshold: lower bound of the similarities within a group.

    Examples:
        >>> clusters(np.array([[1.0, 0.95, 0.2], [0.95, 1.0, 0.3], [0.2, 0.3, 1.0]]))
        [[0, 1], [2]]
    """
    if len(similarity) == 1:
        return [[0]]
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    distances = squareform((1 - similarity).clip(0), checks=False)
    below = np.nextafter(1 - threshold, -1)  # scipy also merges at the threshold
    labels = fcluster(linkage(distances, "complete"), below, "distance")
    return sorted(np.flatnonzero(labels == label).tolist() for label in set(labels))


def effective_tokens(similarity: np.ndarray, *, threshold: float = 0.9, seed: int = 42) -> list[int]:
    """Return one memory token of each group of `clusters`, in order; their number is k_eff.

    Args:
        similarity: `(k, k)`, symmetric.
        threshold: lower bound of the similarities within a group.
        seed: the member of a group is drawn at random, as in the paper.
    """
    generator = random.Random(seed)
    return sorted(generator.choice(group) for group in clusters(similarity, threshold=threshold))


@dataclass(frozen=True)
class MemoryTokens:
    """Memory tokens of an encoder.

    Attributes:
        similarity: cosines between the tokens, `(k, k)`, symmetric.
        threshold: lower bound of the similarities within a group.
        seed: random seed of the choice within a group.
    """

    similarity: np.ndarray
    threshold: float = 0.9
    seed: int = 42

    @property
    def effective(self) -> list[int]:
        """One memory token of each group, in order."""
        return effective_tokens(self.similarity, threshold=self.threshold, seed=self.seed)

    def summary(self) -> dict[str, float | str | list[int] | list[list[int]] | None]:
        """Return k, k_eff, clusters, effective tokens and the cosines between different tokens, for JSON."""
        effective, between = self.effective, self.similarity[~np.eye(len(self.similarity), dtype=bool)]
        return {
            "k": len(self.similarity),
            "k_eff": len(effective),
            "threshold": self.threshold,
            "pick": "random",
            "seed": self.seed,
            "effective_tokens": effective,
            "clusters": clusters(self.similarity, threshold=self.threshold),
            "mean_cosine": float(between.mean()) if len(between) else None,
            "lowest_cosine": float(between.min()) if len(between) else None,
            "highest_cosine": float(between.max()) if len(between) else None,
        }


def pool_over(
    encoder: Encoder, slots: Sequence[int] | None = None, *, mode: Literal["mean", "concat"] = "mean"
) -> Encoder:
    """Return the encoder, on the same weights, with pooling over these memory tokens only (None: over all).

    `mean` is the mean of their states; `concat` are their concatenated states, which have more dimensions.

    Examples:
        >>> similarity = memory_similarity(encoder, texts)  # doctest: +SKIP
        >>> fewer = pool_over(encoder, effective_tokens(similarity))  # doctest: +SKIP
        >>> embrew.evaluate(fewer, ["STSB"])  # doctest: +SKIP
    """
    _memory_tokens(encoder)
    return encoder.with_settings(pooling=Pooling(mode, "memory", slots=None if slots is None else tuple(slots)))


def _memory_tokens(encoder: Encoder) -> int:
    k = len(encoder.template.memory_ids) if isinstance(encoder, Encoder) else 0
    if not k:
        raise ValueError("this encoder has no memory tokens; train one with memory_tokens and {memory} in its template")
    return k
