"""Results: JSON files in mteb's format, a sidecar that describes model, data and settings, paths, and table rows."""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, cast

from embrew.evaluation.find import cells
from embrew.evaluation.kinds import KINDS
from embrew.evaluation.task import MtebTask, NamedScores, Task
from embrew.files.checksums import SHA256, content_sha256, sealed, unsealed
from embrew.files.formats import PATHS, RESULT, OtherFormat
from embrew.files.names import check_file_name
from embrew.files.reading import BrokenFile, content_of, read_json
from embrew.files.writing import write_json

logger = logging.getLogger(__name__)
AGAIN = "remove it, and the same embrew evaluate makes it again"
_SIZES = ("pairs", "queries", "documents", "texts", "classes", "summaries")

REPAIR = "remove it; results do not need it"


def size_of(counts: Mapping[str, int]) -> str:
    """Return the size of a task, such as `10 queries + 200 documents`; `size unknown` without counts."""
    units = sorted((name for name in counts if "_" not in name), key=lambda name: (*_SIZES, name).index(name))
    return " + ".join(f"{counts[name]} {name}" for name in units) or "size unknown"


class Sidecar(TypedDict, total=False):
    """What a score depends on, and the counts of what was evaluated: the content of a result's sidecar.

    Results of BM25, and some that were made by hand, have a part of the keys.
    """

    task: str
    split: str
    kind: str
    dataset_revision: str
    data: dict[str, str]
    settings: dict[str, Any]
    model: dict[str, Any]
    model_hash: str
    tokenizer_sha256: str | None
    prompts: dict[str, str]
    resolved_prompts: dict[str, str]
    template: str | None
    dtype: str | None
    truncate_dim: int | None
    versions: dict[str, str | None]
    counts: dict[str, int]


@dataclass(frozen=True)
class Result:
    """The scores (0 to 1) of one encoder on one split of one task.

    Attributes:
        examples: What the main score is computed from, one entry per example: `score` (its mean), or `predicted` and
            `gold` (a correlation, or average precision). Empty if a score has no such parts.
        run: The sidecar, which describes how it was computed; empty if it was not read from files.
    """

    task: str
    split: str
    kind: str
    main_score: float
    scores: NamedScores
    seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, list[Any]] = field(default_factory=dict)
    run: Sidecar = field(default_factory=Sidecar, compare=False)

    @classmethod
    def of_scores(cls, task: Task, scores: NamedScores, seconds: float) -> Result:
        """Return the result of a task from the scores of its kind."""
        rest = {name: score for name, score in scores.items() if name not in ("main_score", "counts", "examples")}
        about = task.name, task.split_label, task.kind
        return cls(*about, scores["main_score"], rest, seconds, scores["counts"], scores.get("examples", {}))


def write_result(result: Result, folder: Path, run: Sidecar) -> Path:
    """Write `TASK.SPLIT.json` (mteb's format) into `folder`, after `.run.json` (the sidecar) and `.examples.json`.

    The sidecar and the result hold the sha256 of the rest of themselves; the result also that of the examples, and of
    what the sidecar says of model, data and settings, so that no result is read with the sidecar of another.
    """
    entry = {**result.scores, "main_score": result.main_score, "hf_subset": "default", "languages": ["eng-Latn"]}
    path = result_file(folder, result.task, result.split)
    path.unlink(missing_ok=True)  # so that an interruption leaves no old result with a new sidecar
    write_json(_sidecar_file(path), sealed({"format": RESULT.number, **run, "counts": dict(result.counts)}))
    parts = {"run": content_sha256(_identity(run))}
    if result.examples:
        write_json(path.with_suffix(".examples.json"), result.examples)
        parts["examples"] = content_sha256(dict(result.examples))
    values = {
        "dataset_revision": run["dataset_revision"],
        "task_name": result.task,
        "mteb_version": None,
        "scores": {result.split: [entry]},
        "evaluation_time": result.seconds,
        "kg_co2_emissions": None,
        "parts": parts,
    }
    write_json(path, sealed(values))
    return path


def read_result(path: Path) -> Result:
    """Read a result and its sidecar.

    Raises:
        BrokenFile: a file has changed since it was written, or is missing.
        ValueError: `write_result` did not write them, or with another format number.
    """
    try:
        values = read_json(path, repair=AGAIN)
        with content_of(path, repair=AGAIN):
            if "parts" in values and SHA256 not in values:
                raise ValueError(f"it has parts and no {SHA256}; to edit it on purpose, remove both keys")
            values = unsealed(values, path, "results")
        parts = values.get("parts")  # of one made by hand: None
        run = cast("Sidecar", _part(path, "run", parts))
        split = run["split"]
        (entry,) = values["scores"][split]
        scores = {key: value for key, value in entry.items() if key not in ("main_score", "hf_subset", "languages")}
        has_examples = path.with_suffix(".examples.json").is_file() if parts is None else "examples" in parts
        examples = _part(path, "examples", parts) if has_examples else {}
        main, seconds = float(entry["main_score"]), float(values["evaluation_time"])
        return Result(values["task_name"], split, run["kind"], main, scores, seconds, run["counts"], examples, run)
    except (BrokenFile, OtherFormat):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} or its .run.json is not a result of embrew ({error!r}); remove both") from error


def _identity(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a sidecar says of the model, the data and the settings."""
    keys = ("task", "split", "kind", "model", "model_hash", "dataset_revision", "resolved_prompts", "settings")
    return {key: run.get(key) for key in keys}


def _part(path: Path, name: str, parts: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the sidecar or the examples of a result, which are compared with the sha256 in it."""
    file = path.with_suffix(f".{name}.json")
    if not file.is_file():
        raise BrokenFile(f"{file} is missing; remove {path}, and the same embrew evaluate makes both again")
    content = read_json(file, kind=RESULT if name == "run" else None)
    if name == "run":
        with content_of(file, repair=AGAIN):
            if parts is not None and SHA256 not in content:
                raise ValueError(f"it has no {SHA256}, and {path.name} says that it was written with one")
            content = unsealed(content, file, "results")
        content.pop("format", None)
    part = _identity(content) if name == "run" else content
    if parts is not None and parts.get(name) != content_sha256(part):
        raise BrokenFile(
            f"{file} has changed since it was written, or belongs to another result than {path.name}; remove "
            f"{path.name}, and the same embrew evaluate makes both again"
        )
    return content


def finished(folder: Path, run: Sidecar) -> Result | None:
    """Return the result of exactly this run if it is already there, else None.

    Raises:
        FileExistsError: the task's file holds a result of another model, other data or other settings.
    """
    path = result_file(folder, run["task"], run["split"])
    if not (path.is_file() and _sidecar_file(path).is_file()):
        return None
    result, plain = read_result(path), json.loads(json.dumps(run))
    different = sorted(key for key in {*plain, *result.run} - {"counts"} if plain.get(key) != result.run.get(key))
    if different:
        raise FileExistsError(
            f"{path} was evaluated with other {', '.join(different)}; choose another output folder, or overwrite"
        )
    return result


def check_one_model(folder: Path, runs: Sequence[Sidecar]) -> None:
    """Raise FileExistsError if a folder holds results of another model that these runs do not replace."""
    hashes = {run["model_hash"] for run in runs}
    replaced = {result_file(folder, run["task"], run["split"]) for run in runs}
    for file in result_files(folder):
        if file in replaced or not _sidecar_file(file).is_file():
            continue
        with suppress(BrokenFile):  # which is said where it is read
            if read_json(_sidecar_file(file)).get("model_hash") not in hashes:
                raise FileExistsError(f"{file} is a result of another model; choose another output folder")


def result_files(folder: Path) -> list[Path]:
    """Return the results of a folder, sorted; one that lost its sidecar too, so that reading it says so.

    One that is itself missing, beside its sidecar, is logged.
    """
    files = []
    for file in sorted(folder.glob("*.json")):
        if file.name.endswith(".run.json"):
            if not (result := file.with_name(f"{file.name.removesuffix('.run.json')}.json")).is_file():
                logger.warning("%s is missing, and left out; the same embrew evaluate makes it again", result)
        elif _sidecar_file(file).is_file() or _lists_parts(file):
            files.append(file)
    return files


def _lists_parts(file: Path) -> bool:
    try:
        return {"task_name", "parts"} <= read_json(file).keys()
    except BrokenFile:
        return False


def result_file(folder: Path, task: str, split: str) -> Path:
    """Return the path of a result."""
    return folder / f"{check_file_name(task, what='the task')}.{check_file_name(split, what='the split')}.json"


def _sidecar_file(path: Path) -> Path:
    return path.with_suffix(".run.json")


def label_of(result: Result) -> str:
    """Return a task with its split and size, as in table headers."""
    return f"{result.task} {result.split}, {size_of(result.counts)}"


def metric_of(result: Result) -> str:
    """Return the name of the main score: exact match where a generator answered, else that of the kind."""
    return "exact match" if "exact_match" in result.scores else KINDS[result.kind].metric


def mean_score(results: Sequence[Result]) -> float:
    """Return the mean of main scores."""
    return statistics.fmean(result.main_score for result in results)


def averages(results: Sequence[Result], named: Mapping[str, Sequence[str]] | None = None) -> dict[str, float]:
    """Return means of main scores: per kind, over the kinds' means, over all tasks (where several), and `named` ones.

    Args:
        named: Task names by the name of their average; averages that lack a task are left out.
    """
    by_kind: dict[str, list[float]] = {}
    for result in results:
        by_kind.setdefault(result.kind, []).append(result.main_score)
    means = {kind: statistics.fmean(scores) for kind, scores in by_kind.items() if len(scores) > 1}
    if len(by_kind) > 1:
        means["mean over kinds"] = statistics.fmean(statistics.fmean(scores) for scores in by_kind.values())
    if len(results) > 1:
        means["mean over tasks"] = mean_score(results)
    scores = {result.task: result.main_score for result in results}
    complete = {name: tasks for name, tasks in (named or {}).items() if scores.keys() >= set(tasks)}
    return means | {name: statistics.fmean(scores[task] for task in tasks) for name, tasks in complete.items()}


def table(
    results: Sequence[Result], named: Mapping[str, Sequence[str]] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Return header and rows with scores times 100; averages are the last rows if there are several tasks."""
    header = ["task", "split", "metric", "score", "size", "seconds"]
    rows = []
    for result in results:
        size = size_of(result.counts)
        score = f"{100 * result.main_score:.2f}"
        rows.append([result.task, result.split, metric_of(result), score, size, f"{result.seconds:.1f}"])
    seconds = f"{sum(result.seconds for result in results):.1f}"
    means = averages(results, named)
    for name, mean in means.items():
        rows.append([name, "", "", f"{100 * mean:.2f}", "", seconds if name == "mean over tasks" else ""])
    return header, rows


def grid_table(results: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Return header and one row per cell of a grid: layers, dimensions, scores times 100, counts and seconds."""
    cells = [result for result in results if KINDS[result.kind].grid]
    columns = {"answer_recall_at_1": "answer recall@1", "exact_match": "exact match"}
    if not any("exact_match" in result.scores for result in cells):
        del columns["exact_match"]
    header = ["task", "split", "layers", "dims", *columns.values(), "queries", "docs", "encode s", "search s"]
    rows = []
    for result in cells:
        scores = [result.scores.get(name) for name in columns]
        size = [str(result.scores["layers"] or "all"), str(result.scores["dimensions"])]
        counts = [str(result.counts[name]) for name in ("queries", "documents")]
        seconds = [f"{result.scores['encode_seconds']:.1f}", f"{result.scores['search_seconds']:.4f}"]
        percent = ["" if score is None else f"{100 * score:.2f}" for score in scores]
        rows.append([result.task, result.split, *size, *percent, *counts, *seconds])
    return header, rows


class Paths(NamedTuple):
    """Absolute paths; whether they still lead to what was evaluated is for the reader to verify.

    Attributes:
        model: Folder of the model; None if it was opened by a name.
        data: Folder or file of each task, by `TASK.SPLIT`, the name of its result.
        pooling: What a language model without embedding settings was read with; None: it has its own.
    """

    model: Path | None = None
    data: Mapping[str, Path] = {}
    pooling: str | None = None


def write_paths(folder: Path, model: str, tasks: Iterable[Task | MtebTask], *, pooling: str | None = None) -> None:
    """Write `paths.json` into a folder of results; what it says of other tasks is kept, a damaged one replaced."""
    data: dict[str, Path] = {}
    with suppress(BrokenFile):
        data |= read_paths(folder).data
    for cell in (cell for task in tasks if isinstance(task, Task) for cell in cells(task)):
        data[f"{cell.name}.{cell.split_label}"] = cell.path.absolute()
    opened = str(Path(model).absolute()) if Path(model).is_dir() else None
    paths = {name: str(path) for name, path in data.items()}
    write_json(folder / PATHS.file, {"format": PATHS.number, "model": opened, "pooling": pooling, "data": paths})


def read_paths(folder: Path) -> Paths:
    """Return what `paths.json` says in a folder of results; nothing if it is not there."""
    file = folder / PATHS.file
    if not file.is_file():
        return Paths()
    values = read_json(file, keys=("model", "data", "pooling"), repair=REPAIR, kind=PATHS)
    with content_of(file, repair=REPAIR):
        data = {name: _absolute(path) for name, path in values["data"].items()}
        return Paths(None if values["model"] is None else _absolute(values["model"]), data, values["pooling"])


def _absolute(path: str) -> Path:
    """Return a path, never a name of the Hub or one below the working directory."""
    if not Path(path).is_absolute():
        raise ValueError(f"{path!r} is not an absolute path")
    return Path(path)
