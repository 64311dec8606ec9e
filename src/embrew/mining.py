"""Mine hard negatives: texts that a model finds close to a query and that are not its answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embrew.data.fingerprints import normalised
from embrew.data.formats import Values
from embrew.progress import is_chosen, progress
from embrew.text_encoder import TextEncoder

if TYPE_CHECKING:
    from datasets import Dataset

SCORES = 16_384 * 20_000  # similarities of queries and texts that are in memory at once


class NoNegatives(ValueError):
    """No pair has a negative."""


@dataclass(frozen=True)
class Mined:
    """Pairs with their mined negatives.

    Attributes:
        rows: `query`, `positive`, `negatives`, `scores` (the positive's, then the negatives'), and `instruction` where
            the pair had one.
        pairs_without: number of pairs without a negative.
    """

    rows: list[Values]
    pairs_without: int


def mine(
    encoder: TextEncoder,
    pairs: Dataset,
    *,
    corpus: Sequence[str] | None = None,
    num_negatives: int = 5,
    relative_margin: float = 0.05,
) -> Mined:
    """Mine negatives for each query in a corpus, with Sentence-Transformers' miner.

    Most texts that a good model ranks first are correct answers that are not labelled. With `relative_margin` m, only
    texts with a similarity below (1 − m) times that of the query's positive are taken (*NV-Retriever*, arXiv
    2407.15831, has 0.05). A query's own text is not taken.

    Args:
        encoder: an `Encoder` or a `SentenceTransformer`; queries and documents get its prompts.
        pairs: rows with `query` and `positive`.
        corpus: texts to search; default: the positives.
        num_negatives: maximum number of negatives per pair.
        relative_margin: m as above.

    Raises:
        ValueError: no pairs.
        NoNegatives: no negative for any of them.
    """
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    if not len(pairs):
        raise ValueError("no pairs to find negatives for")
    columns: dict[str, list[str]] = {"anchor": list(pairs["query"]), "positive": list(pairs["positive"])}
    documents = columns["positive"] if corpus is None else [*corpus, *columns["positive"]]
    total = len(set(columns["anchor"])) + len(set(documents))
    texts = Counter(map(normalised, set(documents)))
    same_as_query = max(texts[normalised(query)] for query in columns["anchor"])  # documents with the text of one query
    with _own_bars(), progress(total, "encode", "text", show=is_chosen()) as bar, bar.shared():
        mined = mine_hard_negatives(
            Dataset.from_dict(columns),
            encoder,  # type: ignore[arg-type] # an `Encoder` has what is called
            corpus=list(corpus) if corpus is not None else None,
            relative_margin=relative_margin,
            num_negatives=num_negatives + same_as_query,
            output_format="labeled-list",
            output_scores=True,
            faiss_batch_size=min(16_384, max(1, SCORES // len(documents))),  # queries at once, also without faiss
            verbose=False,
        )
    of_pairs = pairs["instruction"] if "instruction" in pairs.column_names else [None] * len(pairs)
    instructions = dict(zip(zip(columns["anchor"], columns["positive"], strict=True), of_pairs, strict=True))
    rows = list(_rows(mined, instructions, num_negatives))
    if not rows:
        raise NoNegatives(
            f"no negative for any of {len(pairs)} pairs; give a smaller relative_margin than {relative_margin}, or a "
            "larger corpus"
        )
    return Mined(rows, len(pairs) - len(rows))


def _rows(mined: Dataset, instructions: Mapping[tuple[str, str], str | None], num_negatives: int) -> Iterator[Values]:
    """Yield the miner's rows, each with at most `num_negatives`, none of which is the query's own text."""
    for row in mined:
        query = normalised(row["anchor"])
        positive, *near = zip(row["positive"], row["scores"], strict=True)
        near = [pair for pair in near if normalised(pair[0]) != query][:num_negatives]
        if near:
            (text, *negatives), scores = map(list, zip(positive, *near, strict=True))
            mined_row = {"query": row["anchor"], "positive": text, "negatives": negatives, "scores": scores}
            instruction = instructions.get((row["anchor"], text))
            yield mined_row if instruction is None else {**mined_row, "instruction": instruction}


@contextmanager
def _own_bars() -> Iterator[None]:
    """Show the miner's search as this package shows progress; it has a tqdm bar of its own, and no option for it."""
    from sentence_transformers.util import hard_negatives

    def blocks(*bounds: int, desc: str) -> Iterator[int]:
        with progress(len(range(*bounds)), "search", "block", show=is_chosen()) as bar:
            for start in range(*bounds):
                yield start
                bar.update()

    before = hard_negatives.trange
    hard_negatives.trange = blocks
    try:
        yield
    finally:
        hard_negatives.trange = before
