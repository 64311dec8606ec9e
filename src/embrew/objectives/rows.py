"""Rows of training data: which kinds there are, their instructions, and keys of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Literal

import torch
from torch import Tensor

from embrew.modeling.encoder import Encoder

RowsKind = Literal["text", "pairs", "scored"]
"""What a row holds: `text`; `pairs`: query, positive, negatives; `scored`: sentence1, sentence2, score."""
COLUMNS = {"query": "instruction", "document": "document_instruction"}


def instructions_of(
    rows: Sequence[dict[str, Any]], encoder: Encoder, side: Literal["query", "document"] = "query"
) -> list[str]:
    """Return each row's own instruction for its query, or its documents; where it has none, the encoder's prompt."""
    given = [row.get(COLUMNS[side]) for row in rows]
    return [encoder.prompts[side] if one is None else one for one in given]


def text_keys(texts: Sequence[str]) -> Tensor:
    """`(texts,)` int64 from a hash of the text, the same on every process and machine."""
    keys = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True) for text in texts]
    return torch.tensor(keys, dtype=torch.long)
