"""Hard negatives of a start: training texts that it finds close to a query, without likely answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from embrew.adapting.defaults import Negatives
from embrew.adapting.prepare import Prepared, check_same
from embrew.data.formats import read_file
from embrew.encoder import Encoder
from embrew.files.checksums import file_sha256
from embrew.files.reading import BrokenFile, read_json
from embrew.files.sealed import sealed
from embrew.files.writing import write_json, write_jsonl
from embrew.mining import NoNegatives, mine

logger = logging.getLogger(__name__)
REPAIR = "remove the file; the same command mines again"


def mined_pairs(
    encoder: Encoder,
    data: Prepared,
    file: Path,
    chosen: Negatives,
    *,
    asked: Mapping[str, Any],
    milliseconds: float,
    minutes: float,
) -> float | None:
    """Write the training pairs with negatives that an encoder finds for them; return the seconds that this took.

    Pairs that have negatives keep those. What an earlier call has written is kept.

    Args:
        encoder: the start.
        data: pairs, and passages that are searched besides their answers.
        file: JSON Lines as `data.pairs`; beside it a JSON file with its sha256.
        chosen: how many negatives, and their margin.
        asked: what the file depends on.
        milliseconds: to encode a text; it says how long mining will take.
        minutes: of training.

    Returns:
        The seconds; None: it would take more than its share of the minutes, or there is no negative.
    """
    said = file.with_suffix(".json")
    if said.is_file():
        kept = read_json(said, keys=("asked", "file_sha256", "seconds"), repair=REPAIR, sealed=True)
        check_same(asked, kept["asked"], file.parent.parent)
        if not file.is_file() or file_sha256(file) != kept["file_sha256"]:
            raise BrokenFile(f"{file} is missing or has changed since it was written; remove {said}, to mine again")
        return float(kept["seconds"])
    began = time.perf_counter()
    rows = [dict(record.values) for record in read_file(data.pairs)]
    without = [row for row in rows if not row["negatives"]]
    passages = [record.values["text"] for record in read_file(data.passages)] if data.count("train_passages") else []
    corpus = list(dict.fromkeys([*(row["positive"] for row in rows), *passages]))
    characters = sum(map(len, corpus))
    texts = len(corpus) * (1 + sum(len(row["query"]) for row in without) / characters)
    if (expected := texts * milliseconds / 60_000) > chosen.share * minutes:
        logger.info("no negatives are mined: that would take %.1f of the %g minutes", expected, minutes)
        return None
    if not without or not (found := _found(encoder, without, corpus, chosen)):
        logger.info("no negatives were found")
        return None
    for row in without:
        row["negatives"] = found.get((row["query"], row["positive"]), [])
    file.parent.mkdir(exist_ok=True)
    write_jsonl(file, rows)
    seconds = time.perf_counter() - began
    write_json(said, sealed({"asked": dict(asked), "file_sha256": file_sha256(file), "seconds": seconds}))
    logger.info("%d of %d pairs have mined negatives, after %.0f s", len(found), len(rows), seconds)
    return seconds


def _found(
    encoder: Encoder, rows: Sequence[Mapping[str, Any]], corpus: Sequence[str], chosen: Negatives
) -> dict[tuple[str, str], list[str]]:
    """Return the negatives of pairs that have some."""
    pairs = Dataset.from_list([{"query": row["query"], "positive": row["positive"]} for row in rows])
    try:
        mined = mine(
            encoder,
            pairs,
            corpus=corpus,
            num_negatives=chosen.number,
            relative_margin=chosen.relative_margin,
        )
    except NoNegatives:
        return {}
    return {(row["query"], row["positive"]): row["negatives"] for row in mined.rows}
