"""Rows of training data: their kinds, instructions, and keys of their texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Literal

import torch
from datasets import Dataset
from torch import Tensor

from embrew.encoder import Encoder

logger = logging.getLogger(__name__)
RowsKind = Literal["text", "pairs", "scored"]
"""What a row holds: `text`; `pairs`: query, positive, negatives; `scored`: sentence1, sentence2, score."""
COLUMNS = {"query": "instruction", "document": "document_instruction"}


def instructions_of(
    rows: Sequence[dict[str, Any]], encoder: Encoder, side: Literal["query", "document"] = "query"
) -> list[str]:
    """Return each row's instruction for its query or documents, by default the encoder's prompt."""
    given = [row.get(COLUMNS[side]) for row in rows]
    return [encoder.prompts[side] if one is None else one for one in given]


def text_keys(texts: Sequence[str]) -> Tensor:
    """Return hashes of texts, `(texts,)` int64, the same in every process and on every machine."""
    keys = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True) for text in texts]
    return torch.tensor(keys, dtype=torch.long)


def usable(dataset: Dataset, rows: Sequence[int], *, otherwise: str, left_out: str | None = None) -> Dataset:
    """Return the rows that an objective can use.

    Args:
        dataset: all rows.
        rows: indices of those that it can use.
        otherwise: error message if there are none.
        left_out: log message about the other rows, for example `compression leaves out {} of {} texts`.

    Raises:
        ValueError: the objective can use none of the rows.
    """
    if not rows:
        raise ValueError(otherwise)
    if left_out is not None and len(rows) < len(dataset):
        logger.info(left_out.format(len(dataset) - len(rows), len(dataset)))
    return dataset.select(rows)
