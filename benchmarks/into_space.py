"""Queries in the space of an index that stays: `python benchmarks/into_space.py WORK [STUDENT ...] [--seeds 1 2 3]`.

Two indexes of all-mpnet-base-v2 ($MPNET): answers of MedQuAD and the abstracts of Cranfield ($REAL/space of
`real_data.py`). One student for both learns the teacher's vectors of 27,000 short texts, none of them a test query:
MedQuAD's questions, 2,000 of SQuAD's, sentences of Wikipedia, and titles and sentences of Cranfield's documents, which
has no training queries. Students: the first three layers of all-MiniLM-L6-v2 ($MINILM) and all six, every weight
trained, the teacher's own first four to six of twelve, and SmolLM2-135M at 4 and 8 layers, and at 15 and 30.

Stopped? The same command resumes. Results go to `results/into-space.md` and `.json`, which keep the seeds of other
machines; WORK keeps what was made. The times of a query are medians in one process, in which the teacher's stands
beside the student's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

from harness import RESULTS, circumstances, origin, table, write
from planned import cell

from embrew import Encoder, opening
from embrew.adapting import train_into_space
from embrew.adapting.space import measure_student, read_judged
from embrew.corpus.vectors import open_index
from embrew.data.documents import sentence_spans
from embrew.files.writing import write_jsonl
from embrew.search import SearchIndex

COMMAND = "python benchmarks/into_space.py WORK"
INDEXES = ("medquad", "cranfield")
STEPS = 600
SETTINGS = [f"stages.distill.training.max_steps={STEPS}", "stages.distill.batch.size=64"]
RATE = "stages.distill.training.learning_rate=2e-3"
STUDENTS: dict[str, Any] = {
    "smollm2": {"model": "smollm2-135m", "layers": [4, 8], "overrides": [*SETTINGS, RATE]},
    "smollm2-deep": {"model": "smollm2-135m", "layers": [15, 30], "overrides": [*SETTINGS, RATE]},
    "minilm": {
        "model": "$MINILM",
        "layers": [3, 6],
        "overrides": [
            *SETTINGS,
            "stages.distill.training.learning_rate=5e-4",
            "stages.distill.training.warmup_steps=248",  # as its first seed had
        ],
    },
    "mpnet": {
        "model": "$MPNET",
        "layers": [4, 5, 6],
        "overrides": [
            *SETTINGS,
            "stages.distill.training.learning_rate=3e-4",
            "stages.distill.training.bf16=true",
        ],
    },
}
SHARES = {"medquad_pairs": 20000, "squad_instruct": 2000, "wiki_paragraphs": 2600}  # at most


def main() -> None:
    """Train what is not there, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("students", nargs="*", default=list(STUDENTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked = parser.parse_args()
    work = asked.work
    queries(work / "queries.jsonl")
    teacher: Any = opening.open_model(os.environ["MPNET"])
    for name in INDEXES:
        if not (work / name).exists():
            SearchIndex.build(teacher, Path(os.environ["REAL"]) / "space" / name).save(work / name)
    found: dict[str, Any] = json.loads((RESULTS / "into-space.json").read_text())["found"]
    for student in asked.students:
        for seed in asked.seeds:
            made = found.setdefault(student, {})
            if str(seed) not in made:
                made[str(seed)] = trained(student, seed, work, teacher)
                page(found)


def queries(path: Path) -> None:
    """Write the queries to train on, the same each time; `train_into_space` removes those of the first index's test."""
    if path.is_file():
        return
    data, drawn = Path(os.environ["EMBREW_DATA"]), random.Random(0)
    documents = rows_of(data / "cranfield" / "corpus.jsonl.gz")
    texts = [row["title"] for row in documents]
    parts = [part for row in documents for part in row["text"].split(" . ")]  # its text is tokenised
    texts += [part for part in parts if 40 <= len(part) <= 300]
    for name, count in SHARES.items():
        rows = rows_of(min((data / name).glob("train*.jsonl.gz")))
        if name == "wiki_paragraphs":
            texts += [one for row in drawn.sample(rows, count) for one in sentences(row["text"])[:1]]
        else:
            key = "query" if name == "medquad_pairs" else "instruction"
            unique = sorted({row[key] for row in rows})
            texts += drawn.sample(unique, min(count, len(unique)))
    drawn.shuffle(texts)
    write_jsonl(path, ({"text": text} for text in texts if text.strip()))


def sentences(text: str) -> list[str]:
    """The sentences of a text that are neither very short nor very long."""
    return [text[start:end] for start, end in sentence_spans(text) if 40 <= end - start <= 300]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def trained(student: str, seed: int, work: Path, teacher: Any) -> dict[str, Any]:
    """Train a student; return its rows by index."""
    settings, spaces = STUDENTS[student], Path(os.environ["REAL"]) / "space"
    out = work / f"{student}-{seed}"
    report = train_into_space(
        os.path.expandvars(settings["model"]),
        teacher=os.environ["MPNET"],
        queries=work / "queries.jsonl",
        index=work / INDEXES[0],
        judged=spaces / INDEXES[0],
        output=out,
        layers=settings["layers"],
        minutes=1000,
        seed=seed,
        overrides=[*settings["overrides"], ("stages.distill.objective.vectors", str((work / "teacher").resolve()))],
    )
    encoder = Encoder.from_pretrained(out / report["encoder"], dtype="as_trained")
    rows = {INDEXES[0]: report["rows"]}
    for name in INDEXES[1:]:
        judged, index = read_judged(spaces / name), open_index(str(work / name), encoder)
        rows[name] = measure_student(encoder, teacher, index, judged.queries, judged, settings["layers"])
    made = circumstances(COMMAND)
    return {"made": made, "rows": rows, "seconds": report["seconds"], "queries": report["queries"]["train"]}


def page(found: dict[str, Any]) -> None:
    """Write the table: means over seeds, with the standard deviation."""
    lines = [
        "# Queries in the space of an index that stays",
        "",
        f"Teacher: all-mpnet-base-v2. Students learn {STEPS} steps of 64 queries. nDCG@10 × 100; the share of the "
        "teacher's; the share of the teacher's ten best documents that are found; the time of a query as a share of "
        "the teacher's. Means over seeds, ± the standard deviation where there are several.",
        "",
    ]
    shares = ["of the teacher's", "of its ten best", "time"]
    header = ["index", "student", "layers", "dimensions", "seeds", "nDCG@10", *shares]
    cells: list[list[str]] = []
    kept: dict[str, Any] = {}
    for name in INDEXES:
        for student, seeds in found.items():
            each = [one["rows"][name] for one in seeds.values()]
            for number, row in enumerate(each[0]):
                same, teachers = [rows[number] for rows in each], [rows[0] for rows in each]
                pairs = list(zip(same, teachers, strict=True))
                values = {
                    "nDCG@10": [100 * one["ndcg_at_10"] for one in same],
                    "of the teacher's": [one["ndcg_at_10"] / top["ndcg_at_10"] for one, top in pairs],
                    "of its ten best": [one["recall_of_teacher_at_10"] for one in same],
                    "time": [one["seconds_per_query"] / top["seconds_per_query"] for one, top in pairs],
                }
                teaches = row["model"] == "teacher"
                label = "the teacher itself" if teaches else student
                kept[f"{name}, {label}, {row['layers'] or 'all'} layers, {row['dimensions']}"] = values
                shown = [cell(values["nDCG@10"]), *(cell(values[key], digits=2) for key in shares)]
                cells.append([name, label, str(row["layers"] or ""), str(row["dimensions"]), str(len(each)), *shown])
    runs = [(f"{student}, seed {seed}", one["made"]) for student, seeds in found.items() for seed, one in seeds.items()]
    made = [line for name, around in runs for line in (f"{name}:", "", *origin(around), "")]
    write("into-space", [*lines, *table(header, cells), "", *made[:-1]], {"rows": kept, "found": found})


if __name__ == "__main__":
    main()
