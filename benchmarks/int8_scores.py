"""What int8 costs in scores: `python benchmarks/int8_scores.py CALIBRATION NAME=MODEL ...`, with EMBREW_DATA set.

Each encoder is exported for OpenVINO three times: in float32, with int8 weights alone, and with activations calibrated
on texts of CALIBRATION. `minilm` needs no folder: `minilm=`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
import report
import torch
from models import minilm

from embrew import evaluation, opening
from embrew.corpus.rows import sample_texts
from embrew.export.exporting import export_encoder
from embrew.export.parts import Int8

TASKS = ("STSB", "STS12", "BIOSSES", "cranfield")  # of the suite `evidence`: its smallest, and one retrieval set
ALLOWED = 0.005  # 0.5 points


def main() -> None:
    """Export, score, and write both files."""
    calibration, *models = sys.argv[1:]
    texts = sample_texts(calibration, 100)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, _, folder in (model.partition("=") for model in models):
        encoder: Any = minilm() if name == "minilm" else opening.open_model(folder)
        rows += scores(name, encoder, texts)
        write(rows, " ".join(["benchmarks/int8_scores.py", Path(calibration).name, *(m.split("=")[0] for m in models)]))


def scores(name: str, encoder: Any, texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return one row per form of an encoder: main scores by task, and the cosine measured on export."""
    rows = []
    forms = {"fp32": ("fp32", None), "int8 weights": ("int8", Int8()), "int8 calibrated": ("int8", Int8(texts=texts))}
    for form, (weights, int8) in forms.items():
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch) / "export"
            export_encoder(encoder, place, runtimes=["openvino"], weights=weights, int8=int8, verify="off")
            noted = json.loads((place / "parity.json").read_text()).get("int8", {})
            folders = [Path(os.environ["EMBREW_DATA"]) / task for task in TASKS]
            found = evaluation.evaluate(opening.open_model(str(place)), folders)
        mean = sum(result.main_score for result in found) / len(found)
        row = {"model": name, "form": form, "mean": mean, "mean_cosine": noted.get("mean_cosine", 1.0)}
        rows.append({**row, "scores": {f"{result.task} {result.split}": result.main_score for result in found}})
    return rows


def write(rows: list[dict[str, Any]], command: str) -> None:
    """Write `results/int8-scores.json` and `.md`."""
    around = report.circumstances(f"python {command}")
    (harness.RESULTS / "int8-scores.json").write_text(json.dumps({"rows": rows, **around}, indent=2) + "\n")
    tasks = list(rows[0]["scores"])
    lines = [
        "# int8-scores",
        "",
        "Main scores × 100 of encoders in OpenVINO, and what int8 loses on average. Allowed: 0.5 points.",
        "",
        f"| model | form | {' | '.join(tasks)} | mean | lost | mean cosine | |",
        f"|---|---|{'---:|' * (len(tasks) + 3)}---|",
    ]
    for row in rows:
        exact = next(other for other in rows if other["model"] == row["model"])
        lost = exact["mean"] - row["mean"]
        cells = " | ".join(f"{100 * row['scores'][task]:.2f}" for task in tasks)
        said = "" if row is exact else "hit" if lost <= ALLOWED else "miss"
        lines.append(
            f"| {row['model']} | {row['form']} | {cells} | {100 * row['mean']:.2f} | {100 * lost:.2f} | "
            f"{row['mean_cosine']:.4f} | {said} |"
        )
    lines += ["", f"- command: `{around['command']}`", f"- commit: {around['commit']}", f"- date: {around['date']}", ""]
    (harness.RESULTS / "int8-scores.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
