"""Judge an encoder on data folders: semantic textual similarity and retrieval, without network or mteb."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from embrew.data.beir import read_beir
from embrew.data.datasets import load
from embrew.evaluation.protocol import TextEncoder, encode_options
from embrew.evaluation.report import Result, describe_run, table, write_result
from embrew.evaluation.retrieval import evaluate_retrieval
from embrew.evaluation.sts import Protocol, evaluate_sts
from embrew.evaluation.tasks import find_task

__all__ = ["Result", "TextEncoder", "evaluate", "table"]

logger = logging.getLogger(__name__)


def evaluate(
    encoder: TextEncoder,
    data: Sequence[str | Path],
    *,
    output_dir: str | Path | None = None,
    split: str | None = None,
    kind: Literal["sts", "retrieval"] | None = None,
    sts_protocol: Protocol = "all",
    batch_tokens: int | None = None,
    show_progress_bar: bool = False,
) -> list[Result]:
    """Judge an `Encoder` or a `SentenceTransformer` on data folders, with the same code.

    Sentence pairs are encoded by `encode` (no prompt but a default one), queries by `encode_query`, documents by
    `encode_document`. All folders are looked at before the first text is encoded.

    Args:
        data: Folders; `$NAME` is replaced from the environment.
        output_dir: Where to write a JSON file a task, and one that says what was judged.
        split: Default: `test`, else `dev`.
        kind: Default: by the columns.
        batch_tokens: Tokens a batch, for encoders that know it.

    Examples:
        >>> [result.main_score for result in evaluate(encoder, ["$EMBREW_DATA/STSB"])]  # doctest: +SKIP
        [0.8203]
    """
    if isinstance(data, str | Path):
        raise TypeError(f"data={data!r}; give a list of folders")
    tasks = [find_task(path, split=split, kind=kind) for path in data]
    names = [(task.name, task.split) for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two data folders make the task {name[0]} ({name[1]}); rename one, or give it alone")
    options = encode_options(encoder, batch_tokens=batch_tokens, show_progress_bar=show_progress_bar)
    sidecar = describe_run(encoder, sts_protocol=sts_protocol, batch_tokens=batch_tokens) if output_dir else {}
    results = []
    for task in tasks:
        start = time.perf_counter()
        if task.kind == "sts":
            rows = load(list(task.files), kind="scored")
            columns = [list(rows[column]) for column in ("sentence1", "sentence2", "score", "subset")]
            left, right, gold, subsets = columns
            scores = evaluate_sts(encoder, left, right, gold, subsets=subsets, protocol=sts_protocol, **options)
            counts = {"pairs": len(gold)}
        else:
            scores, counts = evaluate_retrieval(encoder, read_beir(task.path, task.split), **options)
        main_score = scores.pop("main_score")
        seconds = round(time.perf_counter() - start, 3)
        result = Result(task.name, task.split, task.kind, main_score, scores, seconds, counts)
        logger.info("%s %s: %.4f in %.1f s", task.name, task.split, main_score, seconds)
        if output_dir:
            write_result(result, task, Path(output_dir), sidecar=sidecar)
        results.append(result)
    return results
