"""What int8 costs in scores: `python benchmarks/int8_scores.py CALIBRATION 'NAME=MODEL [SETTING ...]' ...`.

Each encoder is exported for OpenVINO three times: in float32, with int8 weights alone, and with activations calibrated
on texts of CALIBRATION. A model is a folder, or a recipe with settings. Tasks are in $EMBREW_DATA.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness import circumstances, origin, table, write

from embrew import evaluation, opening
from embrew.corpus.rows import sample_texts
from embrew.export.exporting import export_encoder
from embrew.runtimes.portable import Int8

TASKS = ("STSB", "STS12", "BIOSSES", "cranfield")  # of the suite `evidence`: its smallest, and one retrieval set


def main() -> None:
    """Export, score, and write both files."""
    calibration, *models = sys.argv[1:]
    texts = sample_texts(calibration, 100)
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name, _, words in (model.partition("=") for model in models):
        model, *settings = words.split()
        rows += scores(name, opening.open_model(model, settings), texts)
        write_rows(rows, f"{Path(calibration).name} {' '.join(one.partition('=')[0] for one in models)}")


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


def write_rows(rows: list[dict[str, Any]], arguments: str) -> None:
    """Write `results/int8-scores.json` and `.md`."""
    around = circumstances(f"python benchmarks/int8_scores.py {arguments}")
    tasks = list(rows[0]["scores"])
    cells = []
    for row in rows:
        exact = next(other for other in rows if other["model"] == row["model"])
        figures = [*row["scores"].values(), row["mean"], exact["mean"] - row["mean"]]
        shown = [*(f"{100 * figure:.2f}" for figure in figures), f"{row['mean_cosine']:.4f}"]
        cells.append([row["model"], row["form"], *shown])
    page = [
        "# int8-scores",
        "",
        "Main scores × 100 of encoders in OpenVINO, and what int8 loses on average.",
        "",
        *table(["model", "form", *tasks, "mean", "lost", "mean cosine"], cells),
        "",
        *origin(around),
    ]
    write("int8-scores", page, {"rows": rows, **around})


if __name__ == "__main__":
    main()
