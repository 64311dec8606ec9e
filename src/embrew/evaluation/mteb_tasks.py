"""Evaluate encoders on tasks of MTEB with mteb itself: its data, protocol and scores."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.mteb_data import keep, use_kept
from embrew.evaluation.report import Result
from embrew.evaluation.task import inner, instructed
from embrew.text_encoder.hashes import vectors_hash
from embrew.text_encoder.interface import TextEncoder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MtebTask:
    """A task of MTEB by its name there.

    Attributes:
        name: Its name in tables.
        subset: One of the task's subsets, such as `en-en`; default: the English ones, or all if it is not multilingual.
        split: Default: the task's own.
        instruction: Prefix of texts and queries.
        data: Folder with its fetched data; default: mteb loads it.
    """

    name: str
    mteb: str
    subset: str | None = None
    split: str | None = None
    instruction: str | None = None
    data: Path | None = None


class MtebEncoder:
    """Adapter to mteb's encoder protocol: queries, documents and other texts are encoded by their own methods."""

    def __init__(self, encoder: TextEncoder, *, name: str, options: Mapping[str, Any]) -> None:
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        self.encoder = encoder
        self.options = options
        about = {"name": f"embrew/{name}", "revision": vectors_hash(inner(encoder))}
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={**about, "similarity_fn_name": ScoringFunction.COSINE}
        )

    def encode(self, inputs: Any, *, prompt_type: Any = None, **_: Any) -> np.ndarray:
        """Return float32 vectors `(texts, dimensions)` of mteb's batches."""
        texts = [text for batch in inputs for text in batch["text"]]
        kind = getattr(prompt_type, "value", prompt_type)
        methods = {"query": self.encoder.encode_query, "document": self.encoder.encode_document}
        encode = methods.get(kind or "", self.encoder.encode)
        return np.asarray(encode(texts, **self.options), dtype=np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosines of all combinations, `(left, right)`."""
        from sentence_transformers.util import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the cosine of each pair, `(pairs,)`."""
        from sentence_transformers.util import pairwise_cos_sim

        return pairwise_cos_sim(np.asarray(embeddings1), np.asarray(embeddings2))


def load_task(task: MtebTask) -> Any:
    """Return the task of mteb with its split and subset, without reading data.

    Raises:
        ImportError: mteb is not installed.
        ValueError: mteb has no such task, split or subset, or its type is not one of ours.
    """
    try:
        import mteb
    except ImportError as error:
        raise ImportError(f"{task.mteb} needs mteb, which is not installed; run pip install 'embrew[mteb]'") from error
    splits = [task.split] if task.split else None
    subsets = [task.subset] if task.subset else None
    try:
        theirs = mteb.get_task(task.mteb, eval_splits=splits, hf_subsets=subsets)
        if subsets is None and theirs.metadata.is_multilingual:
            theirs = mteb.get_task(task.mteb, eval_splits=splits, languages=["eng"], exclusive_language_filter=True)
    except (KeyError, ValueError) as error:
        raise ValueError(f"mteb: {str(error).strip(chr(34))}") from None
    if task.split is not None and task.split not in theirs.metadata.eval_splits:
        raise ValueError(f"{task.mteb}: split={task.split!r}; choose from {', '.join(theirs.metadata.eval_splits)}")
    kind_of(theirs)
    return theirs


def kind_of(task: Any) -> str:
    """Return the kind of a task of mteb.

    Raises:
        ValueError: no kind has its type.
    """
    types = {name: kind.name for kind in KINDS.values() for name in kind.mteb_types}
    about = task.metadata
    if about.type not in types:
        raise ValueError(f"{about.name} has the type {about.type}; supported are {', '.join(types)}")
    return types[about.type]


def evaluate_mteb(
    encoder: TextEncoder, task: MtebTask, *, cache: Path | None, options: Mapping[str, Any], overwrite: bool = False
) -> Result:
    """Evaluate one task; results of the same model and data in `cache` are reused."""
    import mteb

    theirs = load_task(task)
    if task.data is not None:
        use_kept(theirs, task.data)
    with_prefix = instructed(encoder, {"instruction": task.instruction or None})
    model = MtebEncoder(with_prefix, name=_model_name(encoder, task), options=options)
    start = time.perf_counter()
    with _quiet():
        results = mteb.evaluate(
            cast(Any, model),
            [theirs],
            cache=mteb.ResultCache(cache_path=cache) if cache else None,
            overwrite_strategy="always" if overwrite else "only-missing",
            show_progress_bar=False,
        )
    (result,) = results.task_results
    seconds = round(time.perf_counter() - start, 3)
    scores = {
        split: {entry["hf_subset"]: entry["main_score"] for entry in entries}
        for split, entries in result.scores.items()
    }
    return Result(
        task.name,
        "+".join(scores),
        kind_of(theirs),
        float(result.get_score()),
        {"subsets": scores, "metric": theirs.metadata.main_score, "mteb_version": result.mteb_version},
        seconds,
    )


def fetch(tasks: Sequence[MtebTask], folder: Path) -> Iterator[tuple[MtebTask, bool]]:
    """Store each task's data below `folder`; yield the task, and True if it was fetched now or False if before."""
    for task in tasks:
        yield task, keep(load_task(task), fetched_folder(folder, task))


def fetched_folder(folder: Path, task: MtebTask) -> Path:
    """Return the path of a task's stored data below a suite's folder."""
    return folder / "mteb" / (task.mteb if task.subset is None else f"{task.mteb}-{task.subset}")


def _model_name(encoder: TextEncoder, task: MtebTask) -> str:
    """Return the model's name in mteb's cache, with a hash of the instruction, so that each has separate results."""
    describe = getattr(encoder, "describe", None)
    name = str(describe()["base"]["name"]) if callable(describe) else type(encoder).__name__
    name = Path(name).name
    if task.instruction is None:
        return name
    return f"{name}-{hashlib.sha256(json.dumps(task.instruction).encode()).hexdigest()[:8]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch off mteb's own progress bars."""
    before = os.environ.get("TQDM_DISABLE")
    os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = before
