"""Hard negatives of a start: training texts that it finds close to a query, without likely answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from embrew.adapting.defaults import Negatives
from embrew.adapting.preparation.leaks import read_prepared_rows
from embrew.adapting.preparation.prepare import Prepared, check_same_settings
from embrew.encoder import Encoder
from embrew.files.checksums import file_sha256, sealed
from embrew.files.reading import BrokenFile, read_json
from embrew.files.writing import write_json, write_jsonl
from embrew.mining import NoNegatives, mine

logger = logging.getLogger(__name__)
REPAIR = "remove the file; the same command mines again"


def mined_pairs(
    encoder: Encoder,
    data: Prepared,
    file: Path,
    defaults: Negatives,
    *,
    inputs: Mapping[str, Any],
    milliseconds: float,
    minutes: float,
) -> float | None:
    """Write the training pairs with negatives that an encoder finds for them; return the seconds that this took.

    Pairs that have negatives keep those. What an earlier call has written is kept.

    Args:
        encoder: the start.
        data: pairs, and passages that are searched besides their answers.
        file: JSON Lines as `data.pairs`; beside it a JSON file with its sha256.
        defaults: number of negatives, and their margin.
        inputs: model, data and options that the file depends on.
        milliseconds: time to encode a text, from which the time of mining is estimated.
        minutes: time of training.

    Returns:
        The seconds; None: it would take more than its share of the minutes, or there is no negative.
    """
    sidecar = file.with_suffix(".json")
    if sidecar.is_file():
        earlier = read_json(sidecar, keys=("inputs", "file_sha256", "seconds"), repair=REPAIR, sealed=True)
        check_same_settings(inputs, earlier["inputs"], file.parent.parent)
        if not file.is_file() or file_sha256(file) != earlier["file_sha256"]:
            raise BrokenFile(f"{file} is missing or has changed since it was written; remove {sidecar}, to mine again")
        return float(earlier["seconds"])
    began = time.perf_counter()
    rows = list(read_prepared_rows(data.pairs))
    without = [row for row in rows if not row["negatives"]]
    passages = [row["text"] for row in read_prepared_rows(data.passages)]
    corpus = list(dict.fromkeys([*(row["positive"] for row in rows), *passages]))
    characters = sum(map(len, corpus))
    texts = len(corpus) * (1 + sum(len(row["query"]) for row in without) / characters)
    if (expected := texts * milliseconds / 60_000) > defaults.share * minutes:
        logger.info("no negatives are mined: that would take %.1f of the %g minutes", expected, minutes)
        return None
    if not without or not (negatives := _mine(encoder, without, corpus, defaults)):
        logger.info("no negatives were found")
        return None
    for row in without:
        row["negatives"] = negatives.get((row["query"], row["positive"]), [])
    file.parent.mkdir(exist_ok=True)
    write_jsonl(file, rows)
    seconds = time.perf_counter() - began
    write_json(sidecar, sealed({"inputs": dict(inputs), "file_sha256": file_sha256(file), "seconds": seconds}))
    logger.info("%d of %d pairs have mined negatives, after %.0f s", len(negatives), len(rows), seconds)
    return seconds


def _mine(
    encoder: Encoder, rows: Sequence[Mapping[str, Any]], corpus: Sequence[str], defaults: Negatives
) -> dict[tuple[str, str], list[str]]:
    """Return the negatives of pairs that have some."""
    pairs = Dataset.from_list([{"query": row["query"], "positive": row["positive"]} for row in rows])
    try:
        mined = mine(
            encoder,
            pairs,
            corpus=corpus,
            num_negatives=defaults.number,
            relative_margin=defaults.relative_margin,
        )
    except NoNegatives:
        return {}
    return {(row["query"], row["positive"]): row["negatives"] for row in mined.rows}
