"""Evaluate encoders on tasks of MTEB with mteb itself: its data, protocol and scores.

Data can be stored in a folder, for machines without a network.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from embrew.evaluation.kinds import KINDS
from embrew.evaluation.results import Result
from embrew.evaluation.task import MtebTask, instructed, without_instruction
from embrew.files.checksums import check_files, is_intact, write_checksums
from embrew.files.names import check_file_name
from embrew.files.reading import BrokenFile, read_json
from embrew.files.writing import atomic_folder
from embrew.text_encoder import EncodeOptions, TextEncoder, vectors_hash

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

AGAIN = "remove its folder, and fetch the data again (embrew data fetch)"
ABOUT = "mteb-task.json"  # describes the stored task; written last, so it marks a complete folder


class MtebEncoder:
    """Adapter to mteb's encoder protocol: queries, documents and other texts are encoded by their own methods."""

    def __init__(self, encoder: TextEncoder, *, name: str, options: EncodeOptions) -> None:
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        self.encoder = encoder
        self.options = options
        about = {"name": f"embrew/{name}", "revision": vectors_hash(without_instruction(encoder))}
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


def load_task(task: MtebTask) -> AbsTask:
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
    mteb_kind(theirs)
    return theirs


def mteb_kind(task: AbsTask) -> str:
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
    encoder: TextEncoder, task: MtebTask, *, cache: Path | None, options: EncodeOptions, overwrite: bool = False
) -> Result:
    """Evaluate one task; results of the same model and data in `cache` are reused."""
    import mteb

    theirs = load_task(task)
    if task.data is not None:
        load_stored(theirs, task.data)
    with_prefix = instructed(encoder, {"instruction": task.instruction or None})
    model = MtebEncoder(with_prefix, name=_model_name(encoder, task), options=options)
    start = time.perf_counter()
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
        mteb_kind(theirs),
        float(result.get_score()),
        {"subsets": scores, "metric": theirs.metadata.main_score, "mteb_version": result.mteb_version},
        seconds,
    )


def fetched_folder(folder: Path, task: MtebTask) -> Path:
    """Return the path of a task's stored data below a suite's folder."""
    return folder / "mteb" / (task.mteb if task.subset is None else f"{task.mteb}-{task.subset}")


def store_task(task: AbsTask, folder: Path) -> bool:
    """Load the data of mteb's task and store it in `folder`; return False if that revision is already there."""
    if _revision(folder) == str(task.metadata.revision) and is_intact(folder):
        return False
    with atomic_folder(folder, marker=ABOUT, overwrite=True) as new:  # of another revision, or damaged
        parts = {}
        for part in _parts(task):
            part.load_data()
            parts[part.metadata.name] = _save(part.dataset, new / part.metadata.name)
        about = {"task": task.metadata.name, "revision": str(task.metadata.revision), "parts": parts}
        (new / ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        write_checksums(new)
    return True


def load_stored(task: AbsTask, folder: Path) -> None:
    """Load the data that is stored in `folder` into mteb's task.

    Raises:
        Damaged: a file has changed since it was written, or is missing.
        ValueError: the folder holds another revision than this version of mteb asks for.
    """
    name, wanted, stored = task.metadata.name, str(task.metadata.revision), _revision(folder)
    if stored != wanted:
        raise ValueError(
            f"{folder} holds revision {stored} of {name}, but this mteb evaluates {wanted}; fetch it again"
        )
    check_files(folder, repair=f"R{AGAIN[1:]}")
    about = read_json(folder / ABOUT, keys=("parts",), repair=AGAIN)
    for part in _parts(task):
        part.dataset = _load(about["parts"][part.metadata.name], folder / part.metadata.name)
        part.data_loaded = True


def _parts(task: AbsTask) -> list[AbsTask]:
    """Return the task itself, or the tasks of an aggregate."""
    return list(getattr(task, "tasks", None) or [task])


def _revision(folder: Path) -> str | None:
    try:
        return str(read_json(folder / ABOUT)["revision"])
    except (OSError, BrokenFile, KeyError):
        return None


def _save(value: Any, path: Path) -> Any:
    """Store nested mappings and data sets; return a JSON description of their structure for `_load`."""
    from datasets import Dataset

    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, Dataset):
        value.to_parquet(path.with_name(path.name + ".parquet"))
        return "dataset"
    if isinstance(value, Mapping) and _is_plain(value):
        path.with_name(path.name + ".json").write_text(json.dumps(value), encoding="utf-8")
        return "json"
    if isinstance(value, Mapping):
        kinds = {key: _save(item, path / check_file_name(key, what="the part")) for key, item in value.items()}
        return {"kind": "splits" if all(kind == "dataset" for kind in kinds.values()) else "mapping", "parts": kinds}
    if value is None:
        return "none"
    raise TypeError(f"{path.name}: mteb has a {type(value).__name__} here, which cannot be stored")


def _load(kind: Any, path: Path) -> Any:
    from datasets import Dataset, DatasetDict

    if kind == "none":
        return None
    if kind == "dataset":
        return Dataset.from_parquet(str(path.with_name(path.name + ".parquet")), keep_in_memory=True)
    if kind == "json":
        return read_json(path.with_name(path.name + ".json"), repair=AGAIN)
    parts = {key: _load(item, path / check_file_name(key, what="the part")) for key, item in kind["parts"].items()}
    return DatasetDict(parts) if kind["kind"] == "splits" else parts


def _is_plain(value: Any) -> bool:
    """Return whether JSON can represent it, as relevance judgements and rankings by id."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except TypeError:
        return False


def _model_name(encoder: TextEncoder, task: MtebTask) -> str:
    """Return the model's name in mteb's cache, with a hash of the instruction, so that each has separate results."""
    describe = getattr(encoder, "describe", None)
    name = str(describe()["base"]["name"]) if callable(describe) else type(encoder).__name__
    name = Path(name).name
    if task.instruction is None:
        return name
    return f"{name}-{hashlib.sha256(json.dumps(task.instruction).encode()).hexdigest()[:8]}"
