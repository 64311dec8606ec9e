"""Tasks of MTEB, run by mteb itself: its data, its protocol, its scores."""

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

from embrew.evaluation.instructed import Instructed, inner
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.mteb_data import keep, use_kept
from embrew.evaluation.report import Result
from embrew.text_encoder.hashes import vectors_hash
from embrew.text_encoder.interface import TextEncoder

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MtebTask:
    """A task by MTEB's name.

    Attributes:
        name: What it is called in tables.
        subset: One of the task's subsets, such as `en-en`; default: the English ones, or all if it has no languages.
        split: Default: the task's own.
        instruction: Put before texts and queries.
        data: A folder that holds its data, fetched before; default: mteb loads it.
    """

    name: str
    mteb: str
    subset: str | None = None
    split: str | None = None
    instruction: str | None = None
    data: Path | None = None


class MtebEncoder:
    """An encoder under mteb's protocol: queries, documents and other texts go to the method made for them."""

    def __init__(self, encoder: TextEncoder, *, name: str, options: Mapping[str, Any]) -> None:
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        self.encoder = encoder
        self.options = options
        about = {"name": f"embrew/{name}", "revision": vectors_hash(inner(encoder))}
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={**about, "similarity_fn_name": ScoringFunction.COSINE}
        )

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Vectors `(texts, dimensions)` of mteb's batches, float32."""
        texts = [text for batch in inputs for text in batch["text"]]
        kind = getattr(prompt_type, "value", prompt_type)
        methods = {"query": self.encoder.encode_query, "document": self.encoder.encode_document}
        encode = methods.get(kind or "", self.encoder.encode)
        return np.asarray(encode(texts, **self.options), dtype=np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine of every pair."""
        from sentence_transformers.util import cos_sim

        return cos_sim(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosine of each pair."""
        from sentence_transformers.util import pairwise_cos_sim

        return pairwise_cos_sim(np.asarray(embeddings1), np.asarray(embeddings2))


def load_task(task: MtebTask) -> Any:
    """The task of mteb, with its split and subset; no data is read.

    Raises:
        ImportError: mteb is not installed.
        ValueError: mteb has no such task, split or subset; names the nearest.
    """
    try:
        import mteb
    except ImportError as error:
        raise ImportError(f"{task.mteb} needs mteb, which is not installed: pip install 'embrew[mteb]'") from error
    splits = [task.split] if task.split else None
    subsets = [task.subset] if task.subset else None
    try:
        found = mteb.get_task(task.mteb, eval_splits=splits, hf_subsets=subsets)
        if subsets is None and found.metadata.is_multilingual:
            found = mteb.get_task(task.mteb, eval_splits=splits, languages=["eng"], exclusive_language_filter=True)
    except (KeyError, ValueError) as error:
        raise ValueError(f"mteb: {str(error).strip(chr(34))}") from None
    if task.split is not None and task.split not in found.metadata.eval_splits:
        raise ValueError(f"{task.mteb}: split={task.split!r}; choose from {', '.join(found.metadata.eval_splits)}")
    kind_of(found)
    return found


def kind_of(task: Any) -> str:
    """Return the kind of a task of mteb.

    Raises:
        ValueError: its type is none of ours.
    """
    types = {name: kind.name for kind in KINDS.values() for name in kind.mteb_types}
    about = task.metadata
    if about.type not in types:
        raise ValueError(f"{about.name} is of the type {about.type}; evaluated are {', '.join(types)}")
    return types[about.type]


def evaluate_mteb(
    encoder: TextEncoder, task: MtebTask, *, cache: Path | None, options: Mapping[str, Any], overwrite: bool = False
) -> Result:
    """Run one task; with `cache`, what mteb finds there for the same model and data is not run again."""
    import mteb

    found = load_task(task)
    if task.data is not None:
        use_kept(found, task.data)
    instructed = Instructed(encoder, task.instruction) if task.instruction else encoder
    model = MtebEncoder(instructed, name=_model_name(encoder, task), options=options)
    start = time.perf_counter()
    with _quiet():
        results = mteb.evaluate(
            cast(Any, model),
            [found],
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
        kind_of(found),
        float(result.get_score()),
        {"subsets": scores, "metric": found.metadata.main_score, "mteb_version": result.mteb_version},
        seconds,
    )


def fetch(tasks: Sequence[MtebTask], folder: Path) -> Iterator[tuple[MtebTask, bool]]:
    """Keep each task's data below `folder`; yields the task and whether it was fetched now or before."""
    for task in tasks:
        yield task, keep(load_task(task), fetched_folder(folder, task))


def fetched_folder(folder: Path, task: MtebTask) -> Path:
    """Where a task's data is kept below a suite's folder."""
    return folder / "mteb" / (task.mteb if task.subset is None else f"{task.mteb}-{task.subset}")


def _model_name(encoder: TextEncoder, task: MtebTask) -> str:
    """The model's name in mteb's cache: another instruction is another model there."""
    describe = getattr(encoder, "describe", None)
    name = str(describe()["base"]["name"]) if callable(describe) else type(encoder).__name__
    name = Path(name).name
    if task.instruction is None:
        return name
    return f"{name}-{hashlib.sha256(json.dumps(task.instruction).encode()).hexdigest()[:8]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars of mteb's own."""
    before = os.environ.get("TQDM_DISABLE")
    os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = before
