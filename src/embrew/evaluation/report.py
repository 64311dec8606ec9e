"""Results: JSON files in mteb's shape, a sidecar that says what was judged and how, and rows for a table."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from embrew.evaluation.protocol import TextEncoder, model_hash, resolved_prompts
from embrew.evaluation.tasks import Task
from embrew.writing import write_json


@dataclass(frozen=True)
class Result:
    """The scores (0 to 1) of one encoder on one split of one task."""

    task: str
    split: str
    kind: str
    main_score: float
    scores: dict[str, Any]
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)


def write_result(result: Result, task: Task, folder: Path, *, sidecar: Mapping[str, Any]) -> Path:
    """Write `TASK.SPLIT.json` (mteb's shape) and `TASK.SPLIT.run.json` (the sidecar) into `folder`."""
    revision = content_hash(task.files)
    entry = {**result.scores, "main_score": result.main_score, "hf_subset": "default", "languages": ["eng-Latn"]}
    path = folder / f"{result.task}.{result.split}.json"
    run = {**sidecar, "task": result.task, "split": result.split, "kind": result.kind, "counts": dict(result.counts)}
    run |= {"data": {file.name: content_hash([file]) for file in task.files}, "dataset_revision": revision}
    write_json(path.with_suffix(".run.json"), run)
    write_json(
        path,
        {
            "dataset_revision": revision,
            "task_name": result.task,
            "mteb_version": None,
            "scores": {result.split: [entry]},
            "evaluation_time": result.seconds,
            "kg_co2_emissions": None,
        },
    )
    return path


def describe_run(encoder: TextEncoder, **settings: Any) -> dict[str, Any]:
    """What decides a score besides the data: model, hash, prompts, template, dtype, lengths, versions, settings."""
    describe = getattr(encoder, "describe", None)
    model = describe() if callable(describe) else _describe_sentence_transformer(encoder)
    prompts = model.get("prompts") or dict(encoder.prompts or {})
    return {
        "model": model,
        "model_hash": model_hash(encoder),
        "prompts": prompts,
        "resolved_prompts": resolved_prompts(encoder),
        "template": model.get("template"),
        "dtype": model.get("dtype"),
        "truncate_dim": getattr(encoder, "truncate_dim", None),
        "settings": settings,
        "versions": versions(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries a vector depends on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("embrew", "torch", "transformers", "sentence-transformers"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def content_hash(files: Sequence[Path]) -> str:
    """SHA-256 over the names and bytes of files."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0")
        with open(file, "rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Header and rows, scores times 100; the last row is the mean of the main scores where there are several."""
    header = ["task", "split", "metric", "score", "size", "seconds"]
    metric = {"sts": "Spearman", "retrieval": "nDCG@10"}
    rows = []
    for result in results:
        size = " + ".join(
            f"{result.counts[name]} {name}" for name in ("pairs", "queries", "documents") if name in result.counts
        )
        score = f"{100 * result.main_score:.2f}"
        rows.append([result.task, result.split, metric[result.kind], score, size, f"{result.seconds:.1f}"])
    if len(results) > 1:
        mean = sum(result.main_score for result in results) / len(results)
        rows.append(["mean", "", "", f"{100 * mean:.2f}", "", f"{sum(result.seconds for result in results):.1f}"])
    return header, rows


def _describe_sentence_transformer(encoder: Any) -> dict[str, Any]:
    name = getattr(getattr(encoder, "model_card_data", None), "base_model", None)
    if name is None and hasattr(encoder, "__getitem__"):
        config = getattr(getattr(encoder[0], "auto_model", None), "config", None)
        name = getattr(config, "_name_or_path", None)
    parameter = next(encoder.parameters(), None) if hasattr(encoder, "parameters") else None
    return {
        "type": type(encoder).__name__,
        "name": Path(name).name if name and Path(name).is_absolute() else name,  # no path of one machine
        "modules": [type(module).__name__ for module in encoder] if hasattr(encoder, "__iter__") else [],
        "prompts": dict(encoder.prompts or {}),
        "default_prompt_name": getattr(encoder, "default_prompt_name", None),
        "max_length": getattr(encoder, "max_seq_length", None),
        "truncate_dim": getattr(encoder, "truncate_dim", None),
        "dtype": None if parameter is None else str(parameter.dtype).removeprefix("torch."),
    }
