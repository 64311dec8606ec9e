"""Defaults of `embrew adapt` for contrast: `python benchmarks/adapt_defaults.py WORK [MODEL ...]`.

Learning rates, and negatives mined with the start itself, of all-MiniLM-L6-v2 ($MINILM), all-mpnet-base-v2 ($MPNET) and
SmolLM2-135M, on three data sets of $EMBREW_DATA that no result on `adapt` is shown for, and that MiniLM was not trained
on. Each row is trained alone, without a search of the rate, for `STEPS`, or with mined negatives for as many as take
the same time; its best step on dev is scored on the test.

Stopped? The same command resumes. Results go to `results/adapt-defaults.md` and `.json`; WORK keeps what was made.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from harness import RESULTS, circumstances, origin, table, write

from embrew import adapt
from embrew.data.formats import read_file
from embrew.files.writing import write_jsonl

COMMAND = "python benchmarks/adapt_defaults.py WORK"
DATA = {  # file, columns of the query and of its answer
    "conclusions": ("pubmedqa_instruct/train.jsonl.gz", "instruction", "target"),
    "code": ("cosqa_pairs/train.jsonl.gz", "query", "positive"),
    "questions": ("medical_question_pairs/train.jsonl.gz", "anchor", "positive"),
}
MODELS = {"MiniLM": "$MINILM", "mpnet": "$MPNET", "SmolLM2": "smollm2-135m"}
RATES = {"MiniLM": (2e-5, 5e-5, 2e-4), "mpnet": (1e-5, 5e-5), "SmolLM2": (8e-4,)}
MOST = 1200  # pairs
STEPS = {0: 60, 1: 36, 3: 20}  # a query is a third of a document: 1.33 texts, 2.33 with a negative, 4.33 with three
SMALL = ["adapt.longest=96", "adapt.max_documents={dev: 200, test: 500}", "adapt.held_out.most_test=200"]


def main() -> None:
    """Train what is not there, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rates", type=float, nargs="+", help="other rates than those of the model")
    parser.add_argument("--mined", type=int, nargs="+", default=[0], help="numbers of negatives")
    asked = parser.parse_args()
    file = RESULTS / "adapt-defaults.json"
    found: dict[str, Any] = json.loads(file.read_text())["found"] if file.is_file() else {}
    for data in DATA:
        pairs = _written(asked.work, data)
        for model in asked.models:
            for rate in asked.rates or RATES[model]:
                for negatives in asked.mined:
                    key = f"{data}: {model}, {rate:g}, {negatives} mined"
                    if key not in found:
                        found[key] = _row(asked, data, model, pairs, rate, negatives)
                        page(found)


def _written(work: Path, data: str) -> Path:
    """Write the pairs of a data set without their negatives, and return the file."""
    file, query, positive = DATA[data]
    target = work / f"{data}.jsonl"
    rows = [record.values for record in read_file(Path(os.environ["EMBREW_DATA"]) / file)]
    work.mkdir(parents=True, exist_ok=True)
    write_jsonl(target, ({"query": row[query], "positive": row[positive]} for row in rows[:MOST]))
    return target


def _row(asked: Any, data: str, model: str, pairs: Path, rate: float, negatives: int) -> dict[str, Any]:
    """Train one setting; return its scores."""
    steps = STEPS[negatives] // (2 if model == "SmolLM2" else 1)
    fixed = [*SMALL, f"stages.contrast.training.learning_rate={rate:g}", f"stages.contrast.training.max_steps={steps}"]
    if negatives:
        fixed.append(f"adapt.negatives={{number: {negatives}, relative_margin: 0.05, share: 0.15}}")
    report = adapt(
        os.path.expandvars(MODELS[model]),
        output=asked.work / f"{data}-{model}-{rate:g}-{negatives}",
        pairs=pairs,
        minutes=10,
        export=False,
        overrides=fixed,
    )
    as_is, trained, *_ = report["models"]
    parts = ("dev_ndcg_at_10", "test_ndcg_at_10")
    return {
        "as_is": {part: as_is[part] for part in parts},
        **{part: trained[part] for part in parts},
        "steps": trained["steps"],
        "kept": trained["kept_step"],
        "made": circumstances(COMMAND),
    }


def page(found: dict[str, Any]) -> None:
    """Write the table: nDCG@10 on the test, and its change."""
    rows: dict[str, dict[str, Any]] = {}
    for key, one in found.items():
        data, _, setting = key.partition(": ")
        rows.setdefault(setting, {})[data] = one
    cells = []
    for setting, of in rows.items():
        change = [100 * (one["test_ndcg_at_10"] - one["as_is"]["test_ndcg_at_10"]) for one in of.values()]
        each = [_cell(of.get(data)) for data in DATA]
        cells.append([setting, *each, f"{statistics.mean(change):+.1f}" if len(of) == len(DATA) else "–"])
    lines = [
        "# Defaults of adapt",
        "",
        "nDCG@10 × 100 on the test as it is → trained (step kept of all). No step that dev prefers: the start stays.",
        "",
        *table(["model, rate, negatives", *DATA, "mean change"], cells),
        "",
        *origin(list(found.values())[-1]["made"]),
    ]
    write("adapt-defaults", lines, {"found": found})


def _cell(one: dict[str, Any] | None) -> str:
    if one is None:
        return "–"
    before, after = (100 * of["test_ndcg_at_10"] for of in (one["as_is"], one))
    return f"{before:.1f} → {after:.1f} ({one['kept']} of {one['steps']})"


if __name__ == "__main__":
    main()
