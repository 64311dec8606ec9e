"""Training runs, their stages and checkpoints, and sweeps."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from embrew.files.formats import ENCODER, GAP, RUN, STAGE, SWEEP
from embrew.files.names import LOCAL_PREFIX
from embrew.files.reading import read_json
from embrew.inspection.found import Found, Stage, command

CHECKPOINT, SEAL = "trainer_state.json", "manifest.json"
WORK = ".work"  # suffix of the folder of a stage in progress


def training_run(folder: Path) -> Found:
    """Inspect a folder with `run.json`."""
    values = read_json(folder / RUN.file, keys=("stages",), kind=RUN)
    stages, problems = _stages(folder, values)
    facts = [] if "base" not in values.get("scores", {}) else [f"untrained: {in_words(values['scores']['base'])}"]
    facts += [f"{name}: {gap_closed(found)}" for name, found in values.get(GAP, {}).items() if found.get("curve")]
    finished = [stage for stage in stages if stage.state == "finished"]
    current = next((stage for stage in stages if stage.state != "finished"), None)
    commands = {"open": command("evaluate", folder / finished[-1].name, "--data", "DIR")} if finished else {}
    if current is None:
        return Found(folder, "finished", in_words(finished[-1].scores), tuple(facts), problems, stages, commands)
    summary = f"stopped {'in' if current.state == 'in progress' else 'before'} stage {current.name}"
    commands["resume"] = resume_command(folder, values)
    if current.progress:
        summary += f", {current.progress}"
    return Found(folder, "stopped", summary, tuple(facts), problems, stages, commands)


def resume_command(folder: Path, values: dict[str, Any]) -> str:
    """Return the command that resumes a run; RECIPE replaces a recipe that `run.json` does not name.

    Absolute paths are stored by name, and appear so.
    """
    words = [word.replace(LOCAL_PREFIX, "") for word in values.get("command", ["train", "RECIPE"])]
    return command(*words, "--output", folder, "--resume")


def stage_in_progress(folder: Path) -> Found:
    """Inspect `NAME.work`, which holds the checkpoints of a stage in progress."""
    read_json(folder / STAGE.file, kind=STAGE)
    stage, problems = _in_progress(folder)
    run = folder.parent
    values = read_json(run / RUN.file, kind=RUN) if (run / RUN.file).is_file() else {}
    resume = {"resume": resume_command(run, values)}
    return Found(folder, "stopped", stage.progress, problems=problems, stages=(stage,), commands=resume)


def checkpoint(folder: Path) -> Found:
    """Inspect `checkpoint-N`."""
    state = read_json(folder / CHECKPOINT, keys=("global_step", "max_steps"))
    problems = tuple(_missing(folder))
    summary = f"step {state['global_step']:,} of {state['max_steps']:,}"
    facts = ("a part of a training run: inspect or resume the run's own folder",)
    return Found(folder, "damaged" if problems else "finished", summary, facts, problems)


def sweep(folder: Path) -> Found:
    """Inspect a folder with `sweep.json`."""
    values = read_json(folder / SWEEP.file, keys=("rows", "sweep"), kind=SWEEP)
    done = {row["name"]: row["scores"] for row in values["rows"]}
    means = {name: {task: mean(seeds) for task, seeds in scores.items()} for name, scores in done.items()}
    facts = [f"{name}: {in_words(scores)}" for name, scores in means.items()]
    others = [each.name for each in sorted(folder.iterdir()) if (each / RUN.file).is_file() and each.name not in done]
    facts += [f"{name}: in progress" for name in others]
    resume = command("train", "RECIPE", "--sweep", values["sweep"], "--output", folder, "--resume")
    return Found(
        folder,
        "stopped" if others else "finished",
        f"{len(done)} rows of {values['sweep']} finished",
        tuple(facts),
        commands={"open": f"cat {folder / 'sweep.md'}", "resume": resume},
    )


def in_words(scores: dict[str, float]) -> str:
    """Return scores times 100 as one line."""
    return ", ".join(f"{name} {100 * score:.2f}" for name, score in scores.items())


def gap_closed(found: dict[str, Any]) -> str:
    """Return the share of the gap closed of a compression stage, of its entry in `run.json`, in words."""
    start, last = found["curve"][0], found.get("end", found["curve"][-1])
    shares = f"{last['share']:.2f} after step {last['step']:,}, {start['share']:.2f} before"
    return f"share of the gap closed {shares} (another text's memory {last['other']:.2f})".replace("-", "−")


def _stages(folder: Path, values: dict[str, Any]) -> tuple[tuple[Stage, ...], tuple[str, ...]]:
    """The stages of a run in their order, and what is wrong with them."""
    stages, problems = list[Stage](), list[str]()
    for name in values["stages"]:
        scores = values.get("scores", {}).get(name, {})
        if (folder / name / ENCODER.file).is_file():
            steps = read_json(folder / name / ENCODER.file, kind=ENCODER).get("steps")
            trained = values.get("samples", {}).get(name, {}).get("steps", steps)
            stages.append(Stage(name, "finished", trained, None, scores))
        elif (folder / f"{name}{WORK}").is_dir():
            stage, wrong = _in_progress(folder / f"{name}{WORK}")
            stages.append(stage)
            problems += wrong
        else:
            stages.append(Stage(name, "not begun"))
            if (folder / name).exists():
                problems.append(f"{folder / name} has no {ENCODER.file}: it is damaged, and the stage is trained again")
    return tuple(stages), tuple(problems)


def _in_progress(work: Path) -> tuple[Stage, tuple[str, ...]]:
    """A stage in progress: the step of its newest complete checkpoint, and the checkpoints that are not complete."""
    problems: list[str] = []
    numbers = [int(path.name.rpartition("-")[2]) for path in work.glob("checkpoint-*") if path.name[11:].isdigit()]
    for number in sorted(numbers, reverse=True):
        path = work / f"checkpoint-{number}"
        missing = _missing(path)
        if not missing:
            state = read_json(path / CHECKPOINT, keys=("max_steps",))
            return Stage(work.name.removesuffix(WORK), "in progress", number, state["max_steps"]), tuple(problems)
        problems += missing
    return Stage(work.name.removesuffix(WORK), "in progress"), tuple(problems)


def _missing(folder: Path) -> list[str]:
    """What a checkpoint lacks; empty where all files of its manifest are there."""
    skipped = "an earlier checkpoint is resumed"
    try:
        files = read_json(folder / SEAL)
    except (OSError, ValueError):
        return [f"{folder} is not complete; {skipped}"]
    return [f"{folder / name} is missing; {skipped}" for name in files if not (folder / name).is_file()]
