"""Encoders, contexts, exports, vectors, indexes, results and domain runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embrew.files import checksums
from embrew.files.formats import CONTEXT, DOMAIN, ENCODER, EXPORT, INDEX, REPORT, RESULT, RUN, VECTORS
from embrew.files.reading import read_json
from embrew.inspection.found import Found, State, command
from embrew.inspection.training import in_words, training_run

ENCODED = {  # settings of vectors that the command line takes, with their defaults
    "prompt_name": "document",
    "precision": "float32",
    "truncate_dim": None,
    "num_layers": None,
    "shard_rows": 32_768,
    "id_column": None,
    "text_column": None,
}
PREPARED = {"max_chars": 600, "max_documents": 2000, "seed": 42}
UNKNOWN = "replace words in capitals by the values of the first command, which are not stored"


def encoder(folder: Path) -> Found:
    """Inspect a folder that `save_pretrained` wrote."""
    values = read_json(folder / ENCODER.file, keys=("base", "template", "attention", "pooling"), kind=ENCODER)
    weights = (
        "full weights"
        if values.get("full_weights")
        else f"{values.get('adapters', 0)} adapter{'s' if values.get('adapters') != 1 else ''}"
    )
    facts = [f"template {values['template']!r}, {values['attention']} attention, {_pooling(values['pooling'])} pooling"]
    contexts = sorted(path.parent.name for path in folder.glob(f"contexts/*/{CONTEXT.file}"))
    if contexts:
        facts.append(f"contexts: {', '.join(contexts)}")
    return _complete(
        folder,
        f"{values['base']['name']}, {weights}, {values.get('steps', 0):,} steps of training",
        facts,
        {
            "open": command("evaluate", folder, "--data", "DIR"),
            "in Python": f"Encoder.from_pretrained({str(folder)!r})",
        },
    )


def context(folder: Path) -> Found:
    """Inspect a context of an encoder."""
    values = read_json(folder / CONTEXT.file, keys=("instruction", "demonstrations"), kind=CONTEXT)
    facts = (f"instruction {values['instruction']!r}",)
    return Found(folder, "finished", f"{len(values['demonstrations'])} demonstrations", facts)


def export(folder: Path) -> Found:
    """Inspect a Sentence-Transformers folder that `embrew export` wrote."""
    values = read_json(folder / EXPORT.file, keys=("encoder",), kind=EXPORT)["encoder"]
    summary = f"{values['base']['name']}, {values['dimensions']} dimensions"
    return _complete(folder, summary, [], {"in Python": f"SentenceTransformer({str(folder)!r})"})


def vectors(folder: Path) -> Found:
    """Inspect a folder that `embrew encode` wrote."""
    values = read_json(
        folder / "__embrew__" / VECTORS.file, keys=("rows", "made_of", "complete", "shards"), kind=VECTORS
    )
    made_of = values["made_of"]
    files = [each["file"] for each in made_of["input"]]
    summary = f"{values['rows']:,} vectors of {values['dimensions']} dimensions, {made_of['precision']}"
    shards = [folder / each["file"] for each in values["shards"]]
    problems = [f"{path} is missing" for path in shards if not path.is_file()]
    facts = [f"of {', '.join(files)}, by {made_of['model'].get('base', {}).get('name', 'a model')}"]
    state: State = "damaged" if problems else "finished" if values["complete"] else "stopped"
    if values["complete"]:
        use = {"open": command("search", "MODEL", "--index", folder)}
    else:
        source = files[0] if len(files) == 1 else "INPUT"
        settings = {key: made_of.get(key) for key, default in ENCODED.items() if made_of.get(key, default) != default}
        use = {"resume": command("encode", "MODEL", source, folder, *_options(settings))}
        summary += f" in {_count(len(shards), 'finished shard')}"
    return Found(folder, state, summary, (*facts, UNKNOWN), tuple(problems), commands=use)


def index(folder: Path) -> Found:
    """Inspect a search index."""
    values = read_json(folder / INDEX.file, keys=("documents", "dimensions", "files"), kind=INDEX)
    problems = tuple(f"{folder / name} is missing" for name in values["files"] if not (folder / name).is_file())
    summary = f"{values['documents']:,} documents, {values['dimensions']} dimensions"
    use = {"open": command("search", "MODEL", "--index", folder)}
    return Found(folder, "damaged" if problems else "finished", summary, (UNKNOWN,), problems, commands=use)


def results(folder: Path) -> Found:
    """Inspect a folder that `embrew evaluate --output` wrote."""
    facts, problems = [], []
    for sidecar in sorted(folder.glob("*.run.json")):
        path = sidecar.with_name(sidecar.name.replace(".run.json", ".json"))
        if not path.is_file():
            problems.append(f"{path} is missing: evaluation was stopped while it was written; it is evaluated again")
            continue
        run = read_json(sidecar, keys=("task", "split"), kind=RESULT)
        (entry,) = read_json(path, keys=("scores",))["scores"][run["split"]]
        facts.append(f"{run['task']} {run['split']}: {in_words({run['kind']: entry['main_score']})}")
    summary = _count(len(facts), "task")
    use = {"open": command("table", folder), "resume": command("evaluate", "MODEL", "--output", folder)}
    return Found(folder, "stopped" if problems else "finished", summary, tuple(facts), tuple(problems), commands=use)


def report(folder: Path) -> Found:
    """Inspect the folder in which `embrew compare` keeps results, beside its page."""
    values = read_json(folder / REPORT.file, keys=("page", "models", "command", "finished"), kind=REPORT)
    page = folder.parent / values["page"]
    facts = [f"models: {', '.join(values['models'])}"]
    problems = () if page.is_file() or not values["finished"] else (f"{page} is missing; the same command writes it",)
    state: State = "finished" if values["finished"] else "stopped"
    use = {"open": str(page)} if page.is_file() else {}
    again = {"resume": values["command"]} if values["command"] and (problems or state == "stopped") else {}
    summary = f"{_count(len(values['models']), 'model')} in {page.name}"
    return Found(folder, state, summary, tuple(facts), problems, commands={**use, **again})


def domain(folder: Path) -> Found:
    """Inspect a folder that `embrew domain` wrote; its prepared data are in `data`."""
    made_of = read_json(folder / "data" / DOMAIN.file, keys=("made_of", "counts"))["made_of"]
    DOMAIN.check(made_of, folder / "data" / DOMAIN.file)
    pairs = ["--pairs", made_of["pairs"]] if made_of["pairs"] else []
    columns = [word for ours, theirs in made_of["columns"].items() for word in ("--column", f"{ours}={theirs}")]
    settings = {key: made_of[key] for key, default in PREPARED.items() if made_of.get(key, default) != default}
    again = command("domain", made_of["documents"], *pairs, *columns, *_options(settings), "--output", folder)
    there = {"diagnosis": "diagnosis.json", "export": f"export/{EXPORT.file}", "report": "report.md"}
    done = ["prepared data", *(name for name, file in there.items() if (folder / file).is_file())]
    facts = [f"finished: {', '.join(done)}"]
    model = training_run(folder / "model") if (folder / "model" / RUN.file).is_file() else Found(folder, "empty")
    if (folder / there["report"]).is_file():
        use = {"open": f"cat {folder / there['report']}"}
        return Found(folder, "finished", model.summary, tuple(facts), stages=model.stages, commands=use)
    summary = f"training {model.summary}" if model.state == "stopped" else f"after {done[-1]}"
    facts.append("paths of documents and pairs, and the model, are not stored: give the first command's options")
    return Found(folder, "stopped", summary, tuple(facts), model.problems, model.stages, {"resume": again})


def prepared(folder: Path) -> Found:
    """Inspect the prepared data of a domain run."""
    values = read_json(folder / DOMAIN.file, keys=("made_of", "counts"))
    DOMAIN.check(values["made_of"], folder / DOMAIN.file)
    counts = values["counts"]
    return Found(folder, "finished", f"{counts['documents']} documents, {counts['pairs']} pairs")


def _complete(folder: Path, summary: str, facts: list[str], commands: dict[str, str]) -> Found:
    """A folder that is written at once: finished, or damaged where a file of `checksums.json` is missing."""
    listed = checksums.read_checksums(folder)
    if listed is None:
        facts = [*facts, "no checksums"]
    problems = tuple(f"{folder / name} is missing" for name in listed or () if not (folder / name).is_file())
    return Found(folder, "damaged" if problems else "finished", summary, tuple(facts), problems, commands=commands)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _pooling(values: dict[str, Any]) -> str:
    return f"{values['mode']} over {values.get('over', 'all')}"


def _options(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]
