"""Scores of a teacher for written questions: of the passage and of mined negatives."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from embrew.mining import NoNegatives, mine
from embrew.opening import is_bare, is_recipe, open_model
from embrew.progress import is_chosen
from embrew.storage.base_model import open_config
from embrew.storage.loading import SETTINGS, final_stage
from embrew.text_encoder import TextEncoder, encode_options, unit_vectors

logger = logging.getLogger(__name__)
NEGATIVES, MARGIN = 4, 0.05  # of a question; texts above 95 % of the similarity of its passage are left out
COSINE_SCALE = 20.0  # of an embedding model's cosines, the inverse of a temperature of 0.05
Score = Callable[[Sequence[str], Sequence[str]], np.ndarray]  # of queries and of a document for each


def with_margins(
    rows: Sequence[Mapping[str, Any]], passages: Sequence[str], teacher: str, *, miner: str | None = None
) -> list[dict[str, Any]]:
    """Return pairs with mined negatives and a teacher's scores of the positive and of the negatives.

    Likely positives among the negatives are left out as in `embrew.mining.mine`. Scores are logits of a cross-encoder,
    or cosines × 20: with `distillation_weight`, and `distillation_temperature: 1`, a student learns their margins.

    Args:
        rows: pairs with `query` and `positive`.
        passages: texts that negatives are mined from.
        teacher: cross-encoder or embedding model.
        miner: embedding model that mines; None: the teacher.

    Raises:
        ValueError: nothing mines: a cross-encoder without a miner.
    """
    crossed = check_teacher(teacher, miner=miner)
    encoder: Any = open_model(teacher if miner is None else miner)
    columns = {column: [row[column] for row in rows] for column in ("query", "positive")}
    by_pair = {}
    if rows:
        try:
            mined = mine(
                encoder,
                Dataset.from_dict(columns),
                corpus=list(dict.fromkeys(passages)),
                num_negatives=NEGATIVES,
                relative_margin=MARGIN,
            )
            by_pair = {(row["query"], row["positive"]): row["negatives"] for row in mined.rows}
        except NoNegatives as error:
            logger.warning("%s", error)
    with_negatives = [{**row, "negatives": by_pair.get((row["query"], row["positive"]), [])} for row in rows]
    if not crossed and miner is not None:
        encoder = open_model(teacher)
    score = cross_scores(teacher) if crossed else cosine_scores(encoder)
    documents = [[row["positive"], *row["negatives"]] for row in with_negatives]
    scores = score(
        [row["query"] for row, texts in zip(with_negatives, documents, strict=True) for _ in texts],
        [text for texts in documents for text in texts],
    ).tolist()
    ends = np.cumsum([len(texts) for texts in documents]).tolist()
    return [
        {**row, "scores": scores[end - len(texts) : end]}
        for row, texts, end in zip(with_negatives, documents, ends, strict=True)
    ]


def check_teacher(teacher: str, *, miner: str | None) -> bool:
    """Return whether a teacher is a cross-encoder; raise if it cannot score, or nothing would mine negatives for it."""
    crossed = is_cross_encoder(teacher)
    if not crossed and is_bare(teacher):
        raise ValueError(
            f"teacher={teacher!r} is a language model without embedding settings; give an embedding model or a "
            "cross-encoder"
        )
    if crossed and miner is None:
        raise ValueError(
            f"{teacher} is a cross-encoder, which mines no negatives; give an embedding model as check, too"
        )
    return crossed


def is_cross_encoder(name: str) -> bool:
    """Return whether a model scores pairs of texts, by its configuration."""
    if is_recipe(name) or os.path.lexists(final_stage(Path(name)) / SETTINGS):
        return False
    architectures = getattr(open_config(name, trust_remote_code=False), "architectures", None) or []
    return any(architecture.endswith("ForSequenceClassification") for architecture in architectures)


def cross_scores(name: str) -> Score:
    """Return what scores pairs by a cross-encoder's logits.

    Raises:
        ValueError: the model has more than one logit.
    """
    from sentence_transformers import CrossEncoder
    from torch.nn import Identity

    model = CrossEncoder(name, trust_remote_code=False, model_kwargs={"use_safetensors": True})
    if (count := model.num_labels) != 1:
        raise ValueError(f"{name} gives {count} scores of a pair, and a teacher gives one; give another cross-encoder")

    def score(queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        pairs = list(zip(queries, documents, strict=True))
        return np.asarray(model.predict(pairs, activation_fn=Identity(), show_progress_bar=is_chosen()), np.float64)

    return score


def cosine_scores(encoder: TextEncoder) -> Score:
    """Return what scores pairs by an embedding model's cosines × 20."""
    options = encode_options(encoder, show_progress_bar=is_chosen())

    def vectors(encode: Callable[..., Any], texts: Sequence[str]) -> np.ndarray:
        unique = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        return unit_vectors(encode(list(unique), **options), what="texts")[[unique[text] for text in texts]]

    def score(queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        of_queries, of_documents = vectors(encoder.encode_query, queries), vectors(encoder.encode_document, documents)
        cosines: np.ndarray = (of_queries * of_documents).sum(-1, dtype=np.float64)
        return COSINE_SCALE * cosines

    return score
