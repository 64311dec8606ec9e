"""What a folder holds, from its JSON files alone: nothing is written, no model is opened, torch is not imported."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from embrew.files import checksums, formats
from embrew.files.checksums import unsealed
from embrew.files.formats import (
    ADAPTED,
    CONTEXT,
    ENCODER,
    EXPORT,
    GAP,
    INDEX,
    REPORT,
    RESULT,
    RUN,
    STAGE,
    SWEEP,
    VECTORS,
)
from embrew.files.names import LOCAL_PREFIX
from embrew.files.reading import content_of, read_json
from embrew.files.writing import is_held

State = Literal["finished", "stopped", "running", "damaged", "unreadable", "empty", "unknown"]
CHECKPOINT, SEAL = "trainer_state.json", "manifest.json"
WORK = ".work"  # suffix of the folder of a stage in progress
KEPT = ".step-"  # suffix, before its number, of the folder of a step that a stage keeps
FILL_IN = "replace words in capitals, and give the options of the first command: they are not stored"


@dataclass(frozen=True)
class Stage:
    """A stage of a training run.

    Attributes:
        name: name of the stage.
        state: `finished`, `in progress` or `not begun`.
        step: number of optimiser steps of the newest complete checkpoint; None where the stage has none.
        steps: number of optimiser steps of the whole stage, where it is known.
        scores: scores after the stage, by data set.
    """

    name: str
    state: Literal["finished", "in progress", "not begun"]
    step: int | None = None
    steps: int | None = None
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def progress(self) -> str:
        """The number of steps, as text."""
        if self.state == "not begun":
            return ""
        if self.step is None:
            return "" if self.state == "finished" else "no checkpoint yet, starts at step 0"
        return f"step {self.step:,}" + (f" of {self.steps:,}" if self.steps else "")


@dataclass(frozen=True)
class Contents:
    """What one folder holds.

    Attributes:
        path: the folder.
        state: `running` while another process holds the folder; `unreadable` of another format number, or without
            the permission to read it.
        summary: one line: the amount, or the step at which it stopped.
        facts: further lines.
        problems: missing and unreadable files, one line each.
        stages: stages of a training run.
        commands: commands by purpose: `resume`, `open`, `in Python`. Words in capitals were not stored and must be
            filled in.
        subfolders: contents of the folders directly below it.
        kind: a name of `KINDS`, or `folder` for a folder of none of them.
    """

    path: Path
    state: State
    summary: str = ""
    facts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    commands: dict[str, str] = field(default_factory=dict)
    subfolders: tuple[Contents, ...] = ()
    kind: str = "folder"


def command(*words: object) -> str:
    """Return an `embrew` command as one line of shell."""
    return shlex.join(["embrew", *map(str, words)])


def percentages(scores: dict[str, float]) -> str:
    """Return scores times 100 as one line."""
    return ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items())


def gap_closed(entry: dict[str, Any]) -> str:
    """Return the share of the gap closed of a compression stage, of its entry in `run.json`, in words."""
    start, last = entry["curve"][0], entry.get("end", entry["curve"][-1])
    shares = f"{last['share']:.2f} after step {last['step']:,}, {start['share']:.2f} before"
    return f"share of the gap closed {shares} (another text's memory {last['other']:.2f})".replace("-", "−")


# ---- the kinds of folders ----------------------------------------------------------------------------------


def training_run(folder: Path) -> Contents:
    """Inspect a folder with `run.json`."""
    values = read_json(folder / RUN.file, keys=("stages",), kind=RUN)
    stages, problems = list[Stage](), list[str]()
    for name in values["stages"]:
        scores = values.get("scores", {}).get(name, {})
        if (folder / name / ENCODER.file).is_file():
            steps = read_json(folder / name / ENCODER.file, kind=ENCODER).get("steps")
            trained = values.get("samples", {}).get(name, {}).get("steps", steps)
            stages.append(Stage(name, "finished", trained, None, scores))
        elif (folder / f"{name}{WORK}").is_dir():
            stage, incomplete = _in_progress(folder / f"{name}{WORK}")
            stages.append(stage)
            problems += incomplete
        else:
            stages.append(Stage(name, "not begun"))
            if (folder / name).exists():
                problems.append(f"{folder / name} has no {ENCODER.file}: it is damaged, and the stage is trained again")
    facts = [] if "base" not in values.get("scores", {}) else [f"untrained: {percentages(values['scores']['base'])}"]
    facts += [f"{name}: {gap_closed(entry)}" for name, entry in values.get(GAP, {}).items() if entry.get("curve")]
    for name in values["stages"]:
        step_folders = [path.parent.name for path in folder.glob(f"{name}{KEPT}*/{ENCODER.file}")]
        if step_folders:
            facts.append(f"{name}: kept {', '.join(sorted(step_folders, key=lambda name: (len(name), name)))}")
    finished = [stage for stage in stages if stage.state == "finished"]
    current = next((stage for stage in stages if stage.state != "finished"), None)
    commands = {"open": command("evaluate", folder / finished[-1].name, "--data", "DIR")} if finished else {}
    state: State = "finished"
    summary = percentages(finished[-1].scores) if finished else ""
    if current is not None:
        state = "stopped"
        summary = f"{'in' if current.state == 'in progress' else 'before'} stage {current.name}"
        summary += f", {current.progress}" if current.progress else ""
        commands["resume"] = _resume(folder, values)
    return Contents(folder, state, summary, tuple(facts), tuple(problems), tuple(stages), commands)


def stage_in_progress(folder: Path) -> Contents:
    """Inspect `NAME.work`, which holds the checkpoints of a stage in progress."""
    read_json(folder / STAGE.file, kind=STAGE)
    stage, problems = _in_progress(folder)
    run = folder.parent
    values = read_json(run / RUN.file, kind=RUN) if (run / RUN.file).is_file() else {}
    resume = {"resume": _resume(run, values)}
    return Contents(folder, "stopped", stage.progress, problems=tuple(problems), stages=(stage,), commands=resume)


def _resume(folder: Path, values: dict[str, Any]) -> str:
    """Return the command that resumes a run; RECIPE replaces a recipe that `run.json` does not name."""
    words = [word.replace(LOCAL_PREFIX, "") for word in values.get("command", ["train", "RECIPE"])]
    return command(*words, "--output", folder, "--resume")


def _in_progress(work: Path) -> tuple[Stage, list[str]]:
    """Return the step of the newest complete checkpoint of a stage, and what newer ones lack."""
    problems, name = list[str](), work.name.removesuffix(WORK)
    numbers = [int(path.name.rpartition("-")[2]) for path in work.glob("checkpoint-*") if path.name[11:].isdigit()]
    for number in sorted(numbers, reverse=True):
        path, skipped = work / f"checkpoint-{number}", "an earlier checkpoint is resumed"
        try:
            missing = [f"{line}; {skipped}" for line in _missing(path, read_json(path / SEAL))]
        except (OSError, ValueError):
            missing = [f"{path} is not complete; {skipped}"]
        if not missing:
            state = read_json(path / CHECKPOINT, keys=("max_steps",))
            return Stage(name, "in progress", number, state["max_steps"]), problems
        problems += missing
    return Stage(name, "in progress"), problems


def sweep(folder: Path) -> Contents:
    """Inspect a folder with `sweep.json`."""
    values = read_json(folder / SWEEP.file, keys=("rows", "sweep"), kind=SWEEP)
    rows = {row["name"]: {task: mean(seeds) for task, seeds in row["scores"].items()} for row in values["rows"]}
    facts = [f"{name}: {percentages(scores)}" for name, scores in rows.items()]
    runs = [*folder.glob(f"*/{RUN.file}"), *folder.glob(f"*/seed-*/{RUN.file}")]
    begun = {file.relative_to(folder).parts[0] for file in runs}
    others = sorted(begun - {*rows})
    facts += [f"{name}: in progress" for name in others]
    resume = command("train", "RECIPE", "--sweep", values["sweep"], "--output", folder, "--resume")
    summary, commands = f"{len(rows)} rows of {values['sweep']} finished", {"open": f"cat {folder / 'sweep.md'}"}
    state: State = "stopped" if others else "finished"
    return Contents(folder, state, summary, tuple(facts), commands={**commands, "resume": resume})


def encoder(folder: Path) -> Contents:
    """Inspect a folder that `save_pretrained` wrote."""
    values = read_json(folder / ENCODER.file, keys=("base", "template", "attention", "pooling"), kind=ENCODER)
    weights = "full weights" if values.get("full_weights") else _count(values.get("adapters", 0), "adapter")
    pooling = f"{values['pooling']['mode']} over {values['pooling'].get('over', 'all')}"
    facts = [f"template {values['template']!r}, {values['attention']} attention, {pooling} pooling"]
    contexts = sorted(path.parent.name for path in folder.glob(f"contexts/*/{CONTEXT.file}"))
    if contexts:
        facts.append(f"contexts: {', '.join(contexts)}")
    summary = f"{values['base']['name']}, {weights}, {values.get('steps', 0):,} steps of training"
    commands = {
        "open": command("evaluate", folder, "--data", "DIR"),
        "in Python": f"Encoder.from_pretrained({str(folder)!r})",
    }
    return _with_checksums(folder, summary, facts, commands)


def context(folder: Path) -> Contents:
    """Inspect a context of an encoder."""
    values = read_json(folder / CONTEXT.file, keys=("instruction", "demonstrations"), kind=CONTEXT)
    summary = _count(len(values["demonstrations"]), "demonstration")
    return Contents(folder, "finished", summary, (f"instruction {values['instruction']!r}",))


def export(folder: Path) -> Contents:
    """Inspect a Sentence-Transformers folder that `embrew export` wrote."""
    values = read_json(folder / EXPORT.file, keys=("encoder",), kind=EXPORT)["encoder"]
    summary = f"{values['base']['name']}, {values['dimensions']} dimensions"
    return _with_checksums(folder, summary, [], {"in Python": f"SentenceTransformer({str(folder)!r})"})


def vectors(folder: Path) -> Contents:
    """Inspect a folder that `embrew encode` wrote."""
    manifest = folder / "__embrew__" / VECTORS.file
    values = read_json(manifest, keys=("rows", "made_of", "complete", "shards"), kind=VECTORS)
    source = values["made_of"]
    files = ", ".join(each["file"] for each in source["input"])
    summary = f"{values['rows']:,} vectors of {values['dimensions']} dimensions, {source['precision']}"
    problems = tuple(_missing(folder, [each["file"] for each in values["shards"]]))
    facts = (f"of {files}, by {source['model'].get('base', {}).get('name', 'a model')}", FILL_IN)
    state: State = "damaged" if problems else "finished" if values["complete"] else "stopped"
    commands = {"open": command("search", "MODEL", "--index", folder)}
    if not values["complete"]:
        commands = {"resume": command("encode", "MODEL", "INPUT", folder)}
        summary += f" in {_count(len(values['shards']), 'finished shard')}"
    return Contents(folder, state, summary, facts, problems, commands=commands)


def index(folder: Path) -> Contents:
    """Inspect a search index."""
    values = read_json(folder / INDEX.file, keys=("documents", "dimensions", "files"), kind=INDEX)
    problems = tuple(_missing(folder, values["files"]))
    summary = f"{values['documents']:,} documents, {values['dimensions']} dimensions"
    commands = {"open": command("search", "MODEL", "--index", folder)}
    return Contents(folder, "damaged" if problems else "finished", summary, (FILL_IN,), problems, commands=commands)


def results(folder: Path) -> Contents:
    """Inspect a folder that `embrew evaluate --output` wrote."""
    facts, problems = [], []
    for sidecar in sorted(folder.glob("*.run.json")):
        path = sidecar.with_name(sidecar.name.replace(".run.json", ".json"))
        if not path.is_file():
            problems.append(f"{path} is missing: evaluation was stopped while it was written; it is evaluated again")
            continue
        run = read_json(sidecar, keys=("task", "split"), kind=RESULT)
        (entry,) = unsealed(read_json(path, keys=("scores",)), path, "results")["scores"][run["split"]]
        facts.append(f"{run['task']} {run['split']}: {percentages({run['kind']: entry['main_score']})}")
    commands = {"open": command("table", folder), "resume": command("evaluate", "MODEL", "--output", folder)}
    state: State = "stopped" if problems else "finished"
    return Contents(folder, state, _count(len(facts), "task"), tuple(facts), tuple(problems), commands=commands)


def report(folder: Path) -> Contents:
    """Inspect the folder in which `embrew compare` keeps results, beside its page."""
    values = read_json(folder / REPORT.file, keys=("page", "models", "command", "finished"), kind=REPORT)
    page = folder.parent / values["page"]
    problems = () if page.is_file() or not values["finished"] else (f"{page} is missing; the same command writes it",)
    commands = {"open": str(page)} if page.is_file() else {}
    if values["command"] and (problems or not values["finished"]):
        commands["resume"] = values["command"]
    state: State = "finished" if values["finished"] else "stopped"
    summary = f"{_count(len(values['models']), 'model')} in {page.name}"
    return Contents(folder, state, summary, (f"models: {', '.join(values['models'])}",), problems, commands=commands)


def adaptation(folder: Path) -> Contents:
    """Inspect a folder that `embrew adapt` wrote; its prepared data are in `data`."""
    source = read_json(folder / "data" / ADAPTED.file, keys=("made_of", "counts"))["made_of"]
    ADAPTED.check(source, folder / "data" / ADAPTED.file)
    runs = {file.parent.name: training_run(file.parent) for file in sorted((folder / "model").glob(f"*/{RUN.file}"))}
    stages = tuple(replace(stage, name=f"{name}/{stage.name}") for name, run in runs.items() for stage in run.stages)
    problems = tuple(problem for run in runs.values() for problem in run.problems)
    if (folder / "adapted.json").is_file():
        values = read_json(folder / "adapted.json", keys=("advice", "encoder"), sealed=True)
        name = values["encoder"]
        commands = {"open": command("evaluate", folder / name, "--data", "DIR")} if name else {}
        return Contents(folder, "finished", values["advice"][0], (), problems, stages, commands)
    planned = "training" if runs else "models planned" if (folder / "starts.json").is_file() else "data prepared"
    commands = {"resume": command("adapt", "MODEL", "--output", folder)}
    return Contents(folder, "stopped", planned, (FILL_IN,), problems, stages, commands)


def _with_checksums(folder: Path, summary: str, facts: list[str], commands: dict[str, str]) -> Contents:
    """A folder that is written at once: finished, or damaged where a file of `checksums.json` is missing."""
    listed = checksums.read_checksums(folder)
    facts = facts if listed is not None else [*facts, "no checksums"]
    problems = tuple(_missing(folder, listed or ()))
    state: State = "damaged" if problems else "finished"
    return Contents(folder, state, summary, tuple(facts), problems, commands=commands)


def checkpoint(folder: Path) -> Contents:
    """Inspect `checkpoint-N`."""
    state = read_json(folder / CHECKPOINT, keys=("global_step", "max_steps"))
    summary = f"step {state['global_step']:,} of {state['max_steps']:,}"
    facts = ("a part of a training run: inspect or resume the run's own folder",)
    return Contents(folder, "finished", summary, facts)


def _missing(folder: Path, names: Iterable[str]) -> list[str]:
    return [f"{folder / name} is missing" for name in names if not (folder / name).is_file()]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# ---- any folder --------------------------------------------------------------------------------------------


class FolderKind(NamedTuple):
    """A kind of folder.

    Attributes:
        name: name of the kind, for users.
        marker: pattern of the file that a folder of this kind has.
        inspect: function that inspects a folder of this kind.
    """

    name: str
    marker: str
    inspect: Callable[[Path], Contents]


KINDS = (
    FolderKind("sweep", SWEEP.file, sweep),
    FolderKind("adaptation", f"data/{ADAPTED.file}", adaptation),
    FolderKind("training run", RUN.file, training_run),
    FolderKind("encoder", ENCODER.file, encoder),
    FolderKind("stage in progress", STAGE.file, stage_in_progress),
    FolderKind("checkpoint", CHECKPOINT, checkpoint),
    FolderKind("export", EXPORT.file, export),
    FolderKind("vectors", f"__embrew__/{VECTORS.file}", vectors),
    FolderKind("index", INDEX.file, index),
    FolderKind("results", RESULT.file.replace("TASK.SPLIT", "*"), results),
    FolderKind("files of a report", REPORT.file, report),
    FolderKind("context", CONTEXT.file, context),
)
"""In the order in which they are tried: a folder is of the first kind whose marker it has."""


def inspect(folder: str | Path) -> Contents:
    """Return what a folder holds.

    Args:
        folder: any folder; where it holds nothing itself, the folders below it are inspected, down to two levels.

    Raises:
        FileNotFoundError: no such folder.
        NotADirectoryError: it is a file.
    """
    path = Path(folder)
    if not path.exists():
        raise FileNotFoundError(f"no folder {path}; give the folder of a run, a model, vectors, an index or results")
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is a file; give a folder")
    contents = _of_kind(path) or _containing(path, tuple(_below(path, levels=2)))
    if is_held(path):  # another process may still write what is missing
        contents = replace(contents, state="running", problems=(), commands={})
    return contents


def _below(folder: Path, *, levels: int) -> Iterator[Contents]:
    """Yield what the folders in a folder hold; one that only contains such folders is one of them."""
    for each in sorted(folder.iterdir()):
        if not each.is_dir() or each.name.startswith("."):
            continue
        try:
            contents = _of_kind(each)
            subfolders = tuple(_below(each, levels=levels - 1)) if contents is None and levels > 1 else ()
        except PermissionError as error:
            contents, subfolders = Contents(each, "unreadable", str(error.strerror)), ()
        if contents is not None:
            yield replace(contents, state="running", problems=(), commands={}) if is_held(each) else contents
        elif subfolders:
            yield replace(_containing(each, subfolders), kind="folders")


def _of_kind(folder: Path) -> Contents | None:
    """Return what a folder holds itself; None where no file tells that embrew wrote it."""
    for kind in KINDS:
        marker = next(iter(sorted(folder.glob(kind.marker))), None)
        if marker is None or not _is_of(kind, marker):
            continue
        try:
            with content_of(marker):
                contents = kind.inspect(folder)
        except formats.OtherFormat as error:
            contents = Contents(folder, "unreadable", "of another version", problems=(str(error),))
        except (OSError, ValueError) as error:
            contents = Contents(folder, "damaged", "cannot be read", problems=(str(error),))
        return replace(contents, kind=kind.name)
    return None


def _is_of(kind: FolderKind, marker: Path) -> bool:
    """Whether a marker is of this kind: indexes, data of an adaptation and of the demonstration share a file name."""
    if marker.name != INDEX.file or kind.name not in ("index", "adaptation"):
        return True
    try:
        keys = read_json(marker).keys()
    except (OSError, ValueError):
        return kind.name == "index"
    return "made_of" not in keys if kind.name == "index" else {"made_of", "counts"} <= keys


def _containing(folder: Path, subfolders: tuple[Contents, ...]) -> Contents:
    """Return what a folder holds that has no marker: others that embrew wrote, or nothing of embrew."""
    if subfolders:
        return Contents(
            folder, "finished", f"{_count(len(subfolders), 'folder')} that embrew wrote", subfolders=subfolders
        )
    names = [path.name for path in folder.iterdir()]
    if not names:
        return Contents(folder, "empty", "nothing in it")
    if all(name.startswith(".") for name in names):
        return Contents(folder, "empty", "temporary files only: a command was killed before anything was finished")
    return Contents(folder, "unknown", "nothing that embrew wrote")
