"""Demonstrations all off, all on, and as many as a dev split chooses: `python benchmarks/chosen.py PLAN.yaml`.

For every task of a suite the number of demonstrations is chosen on dev rows, and the three are judged on the task's own
split: a figure for which demonstrations are switched off wherever they do not help there chooses on what it reports.
Where a data folder has no dev split, its training rows give one, without those that are shown as demonstrations.

Keys of a plan:
    title: of the page.
    suite: its tasks and their instructions.
    model: a folder, Hub id or recipe (`$NAME` is replaced from the environment).
    prompt: the form an instruction is given in; `{instruction}` is filled in.
    counts: numbers of demonstrations to try, such as 0..8.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import harness
from harness import circumstances, origin, table
from planned import expand, parser_of, read_plan
from shots import candidates, rows_of

from embrew import opening
from embrew.analysis.demonstrations import TRIAL_CONTEXT, CountChoice, choose_demonstrations
from embrew.cli.arguments import read_numbers
from embrew.data.beir import read_beir
from embrew.data.reading import splits
from embrew.evaluation import evaluate, read_suite
from embrew.files.writing import write_json
from embrew.model.contexts import Context
from embrew.settings.encoder import Demonstration

KEYS = ("title", "suite", "model", "prompt", "counts")
BATCH_TOKENS = 2048
QUERIES, DISTRACTORS, LABELLED = 500, 2000, 1000  # of a dev split that is made of training rows
STEP = 100  # squad's training questions stand paragraph by paragraph


def main() -> None:
    """Run a plan; write the table and the figures."""
    arguments = parser_of(__doc__).parse_args()
    plan = read_plan(arguments.plan, KEYS, ())
    harness.one_core()
    encoder: Any = opening.open_model(expand(plan["model"]))
    found = {}
    for task in read_suite(plan["suite"]).tasks:
        found[task.name] = choice = chosen(encoder, task, plan)
        print(f"{task.name}: {choice.chosen} of {choice.dev}, {choice.test}", flush=True)
    write(arguments.plan, plan, found, arguments.output)


def chosen(encoder: Any, task: Any, plan: dict[str, Any]) -> CountChoice:
    """What dev rows choose for a task, judged on its own split; without dev rows, none and all."""
    source, counts = Path(task.path), read_numbers(plan["counts"])
    shown = candidates(source.name)[: max(counts)]
    counts = [count for count in counts if count <= len(shown)]
    settings = dict(task.settings)
    context = Context(plan["prompt"].replace("{instruction}", str(settings.pop("instruction"))), shown)
    bare = replace(task, settings=settings)
    with TemporaryDirectory() as folder:
        dev = dev_of(source, shown, Path(folder) / source.name)
        if dev is not None:
            return choose_demonstrations(encoder, context, counts, [dev], tests=[bare], batch_tokens=BATCH_TOKENS)
    scores = {}
    for count in (0, max(counts)):
        encoder.add_context(TRIAL_CONTEXT, Context(context.instruction, shown[:count]))
        (result,) = evaluate(encoder, [bare], context=TRIAL_CONTEXT, batch_tokens=BATCH_TOKENS)
        scores[count] = result.main_score
    return CountChoice({}, scores, 0)


def dev_of(source: Path, shown: Sequence[Demonstration], made: Path) -> Path | None:
    """A data folder with a dev split for a task: its own, or one of its training rows without those that are shown."""
    if "dev" in splits(source) and not (source / "corpus.jsonl.gz").exists():
        return source
    made.mkdir()
    queries = {pair.query for pair in shown}
    match source.name:
        case "banking77":
            test = {row["text"] for row in rows_of("banking77/test")} | queries  # a few texts are in both splits
            rows = [row for row in rows_of("banking77/train") if row["text"] not in test]
            every = len(rows) // LABELLED
            put(made / "dev.jsonl", rows[::every])
            put(made / "train.jsonl", (row for number, row in enumerate(rows) if number % every))
        case "squad_retrieval":
            data = read_beir(
                Path(os.environ["EMBREW_DATA"]) / source.name, "train"
            )  # a sample may have no training rows
            asked = [query for query in data.qrels if data.queries[query] not in queries][::STEP][:QUERIES]
            judged = {document for query in asked for document in data.qrels[query]}
            others = {document for grades in data.qrels.values() for document in grades} - judged
            kept = judged | set(sorted(others)[:DISTRACTORS])
            put(made / "corpus.jsonl", ({"_id": one.id, "text": one.text} for one in data.corpus if one.id in kept))
            put(made / "queries.jsonl", ({"_id": query, "text": data.queries[query]} for query in asked))
            judge(made, ((query, document) for query in asked for document in data.qrels[query]))
        case "medquad_retrieval":
            test = {row["text"] for row in rows_of("medquad_retrieval/queries")} | queries
            pairs = [row for row in rows_of("medquad_pairs/train") if row["query"] not in test]
            put_to = pairs[:: len(pairs) // QUERIES][:QUERIES]
            answers = {row["positive"]: None for row in put_to}
            answers |= {row["positive"]: None for row in pairs[1 :: len(pairs) // DISTRACTORS]}
            names = {answer: f"d{number}" for number, answer in enumerate(answers)}
            put(made / "corpus.jsonl", ({"_id": name, "text": answer} for answer, name in names.items()))
            put(made / "queries.jsonl", ({"_id": f"q{n}", "text": row["query"]} for n, row in enumerate(put_to)))
            judge(made, ((f"q{n}", names[row["positive"]]) for n, row in enumerate(put_to)))
        case _:
            return None
    return made


def put(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def judge(folder: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Which document answers which query of the dev split."""
    lines = "".join(f"{query}\t{document}\t1\n" for query, document in pairs)
    (folder / "qrels.dev.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines, encoding="utf-8")


def write(plan_file: Path, plan: dict[str, Any], found: dict[str, CountChoice], folder: Path) -> None:
    """One Markdown and one JSON file."""
    around = circumstances(f"python benchmarks/chosen.py benchmarks/plans/{plan_file.name}")
    rows: list[list[str]] = []
    means: dict[str, list[float]] = {"off": [], "on": [], "chosen": []}
    for task, choice in found.items():
        three = {"off": choice.test[0], "on": choice.test[max(choice.test)], "chosen": choice.test[choice.chosen]}
        for name, score in three.items():
            means[name].append(score)
        dev = ", ".join(f"{100 * score:.1f}" for score in choice.dev.values()) or "none: without demonstrations"
        rows.append([task, *(f"{100 * score:.1f}" for score in three.values()), str(choice.chosen), dev])
    rows.append(["mean", *(f"{100 * statistics.fmean(scores):.1f}" for scores in means.values()), "", ""])
    header = ["task", "all off", "all on", "chosen on dev", "chosen", f"dev, {plan['counts']}"]
    said = "Scores times 100. The number of demonstrations is chosen by the dev column alone, the smallest of equals."
    page = [f"# {plan['title']}", "", said, "", *table(header, rows), "", *origin(around)]
    (folder / f"{plan_file.stem}.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    choices = {task: vars(choice) for task, choice in found.items()}
    record = {"plan": plan, "suite": plan["suite"], **around, "tasks": choices, "rows": rows_of_choices(found)}
    write_json(folder / f"{plan_file.stem}.json", record)


def rows_of_choices(found: Mapping[str, CountChoice]) -> dict[str, dict[str, list[float]]]:
    """Scores on the tasks' own splits by row and task, one value each, in the form of the other result files."""
    rows = {
        "all off": {task: [choice.test[0]] for task, choice in found.items()},
        "all on": {task: [choice.test[max(choice.test)]] for task, choice in found.items()},
        "chosen on dev": {task: [choice.test[choice.chosen]] for task, choice in found.items()},
    }
    for scores in rows.values():
        scores["mean over tasks"] = [statistics.fmean(value for (value,) in scores.values())]
    return rows


if __name__ == "__main__":
    main()
