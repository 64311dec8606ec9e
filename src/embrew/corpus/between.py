"""What lies between an index and another model: the fault, by the index's passport, and whether a linear map would do.

The map is a ridge regression from the model's vectors to those of the index, fitted on a sample of its documents and
the texts of its passport. It is measured on documents of the sample that it was not fitted on: each one's vector, as a
query, against all documents of the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeCV

from embrew.check_passport import FILE, Passport
from embrew.corpus.vectors import open_index
from embrew.passport.of_index import checks_of, embed_side
from embrew.search import SearchIndex
from embrew.stores import Place
from embrew.text.texts import SIDES
from embrew.text_encoder import TextEncoder, space_of, unit_vectors

SAMPLE = 500  # documents that are encoded again
HELD_OUT = 0.2  # share of the sample that the map is measured on
FEWEST = 100  # documents of other texts, at least; of fewer, the ten nearest say little
NEAREST = 10
ENOUGH = 0.9  # share of the nearest documents from which vectors can be mixed
ALPHAS = np.logspace(-6, 2, 9)  # strengths of the ridge, chosen by leaving one text out


@dataclass(frozen=True, kw_only=True)
class Between:
    """What lies between an index and a model.

    Attributes:
        faults: verdict of the passport for queries and for documents; empty: the index has no passport.
        fitted, held_out: number of texts that the map was fitted on, and of documents that it was measured on.
        as_it_is: share of the ten nearest documents that the model's vectors find without a map; None: not measured,
            or other dimensions.
        mapped: the same with the map; None: not measured.
    """

    faults: dict[str, str]
    fitted: int = 0
    held_out: int = 0
    as_it_is: float | None = None
    mapped: float | None = None

    @property
    def verdict(self) -> str:
        """What to do."""
        if self.mapped is None:
            return f"a linear map is not measured on fewer than {FEWEST} documents with different texts"
        shares = {"as they are": self.as_it_is, "through a linear map": self.mapped}
        figures = ", ".join(f"{share:.0%} {how}" for how, share in shares.items() if share is not None)
        start = f"of the {NEAREST} nearest documents, the model's vectors keep {figures}"
        if (self.as_it_is or 0.0) >= ENOUGH:
            return f"{start}: nearly the vectors of the index; open it with the model and dtype that made it"
        if self.mapped >= ENOUGH:
            return f"{start}: a linear map would do; embrew into-space trains queries with one"
        return f"{start}: do not mix; build the index again, or train queries for it with embrew into-space"


def between(folder: str | Place, encoder: TextEncoder, corpus: str | Place | None = None) -> Between:
    """Say what lies between an index and a model; it encodes up to 500 documents.

    Args:
        folder: an index, or vectors, as of `open_index`.
        encoder: the model.
        corpus: of vectors, the corpus, for texts.

    Raises:
        FileNotFoundError, ValueError: as `open_index`; or the documents have no texts.
    """
    index = open_index(folder, encoder, corpus, any_encoder=True)
    files = index.passport
    checks = {} if files is None else checks_of(files, encoder)
    faults = {side: result.verdict for side, result in checks.items()}
    numbers, texts = _sample(index)
    if len(numbers) < FEWEST:
        return Between(faults=faults)
    side = "query" if space_of(encoder) else "document"  # of an encoder of queries, which encodes no documents
    is_same = bool(checks) and all(result.equal for result in checks.values())
    options = index.query_options if is_same else {}  # layers and dimensions of the index's own model
    measured = _unit(embed_side(encoder, side, texts, **options), texts)
    stored = np.concatenate([index.vectors(number, number + 1) for number in numbers])
    fitted = round(len(numbers) * (1 - HELD_OUT))
    pairs = [(measured[:fitted], stored[:fitted]), *_passport_pairs(index, encoder, options)]
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    ridge = RidgeCV(alphas=ALPHAS).fit(x.astype(np.float64), y.astype(np.float64))
    queried, held_out = numbers[fitted:], measured[fitted:]
    exact = _nearest(index, stored[fitted:], queried)
    same_size = held_out.shape[1] == index.dimensions
    return Between(
        faults=faults,
        fitted=len(x),
        held_out=len(queried),
        as_it_is=_recall(exact, _nearest(index, held_out, queried)) if same_size else None,
        mapped=_recall(exact, _nearest(index, _unit(ridge.predict(held_out), texts[fitted:]), queried)),
    )


def _sample(index: SearchIndex) -> tuple[list[int], list[str]]:
    """Return numbers and texts of some documents, in random order, of which no two have the same text."""
    order = np.random.default_rng(0).permutation(len(index.documents))[: 2 * SAMPLE].tolist()
    by_text = {index.documents[number].content: number for number in order}
    chosen = [(number, text) for text, number in by_text.items() if text.strip()][:SAMPLE]
    if not chosen:
        raise ValueError("these documents have no texts, so that another model cannot encode them; give their corpus")
    return [number for number, _ in chosen], [text for _, text in chosen]


def _passport_pairs(
    index: SearchIndex, encoder: TextEncoder, options: Mapping[str, Any]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the model's vectors of the passport's texts and those of the passport, for queries and documents."""
    if index.passport is None or "num_layers" in index.query_options:
        return  # it has the vectors of all layers
    passport = Passport.parse(index.passport.__getitem__, FILE)
    for side in SIDES:
        right = passport.right(side)
        texts = [passport.about["texts"][i] for i in right]
        expected = np.stack([*right.values()])[:, : index.dimensions]
        if expected.shape[1] == index.dimensions:
            yield _unit(embed_side(encoder, side, texts, **options), texts), _unit(expected, texts)


def _unit(vectors: np.ndarray, texts: list[str]) -> np.ndarray:
    return unit_vectors(vectors, what="texts", texts=texts)


def _nearest(index: SearchIndex, queries: np.ndarray, queried: list[int]) -> list[set[int]]:
    """Return the nearest documents of each vector, without the one that it is of."""
    _, numbers = index.nearest(queries.astype(np.float32), NEAREST + 1)
    return [
        {*[number for number in row if number != itself][:NEAREST]}
        for row, itself in zip(numbers.tolist(), queried, strict=True)
    ]


def _recall(exact: list[set[int]], others: list[set[int]]) -> float:
    return float(np.mean([len(a & b) / len(a) for a, b in zip(exact, others, strict=True)]))
