"""Look inside the models of a plan: `python benchmarks/collapse.py benchmarks/plans/NAME.yaml`.

Takes every trained model that `evidence.py` left in `runs/evidence/NAME/`, stage by stage and seed by seed, and
measures on the plan's `texts` how many dimensions its vectors use and how alike its memory tokens are (Learning to
Compress, sections 4.1 and 4.2). Writes
`benchmarks/results/NAME-collapse.json`, and the pictures `NAME-spectra.svg` and `NAME-memory.png`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from evidence import BATCH_TOKENS
from harness import circumstances
from planned import expand, file_name, parser_of

from embrew import opening
from embrew.analysis.input_texts import read_texts, unnormalised, vectors_of
from embrew.analysis.memory import MemoryTokens, memory_similarity
from embrew.analysis.plots import plot_memory, plot_spectra
from embrew.analysis.spectrum import spectrum_of
from embrew.files.writing import write_json
from embrew.recipe import Recipe

TEXTS = 4000
MEMORY_TEXTS = 512


def main() -> None:
    """Measure and write."""
    parser = parser_of(__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"))
    arguments = parser.parse_args()
    plan = yaml.safe_load(arguments.plan.read_text())
    texts = read_texts(expand(plan["texts"]), max_texts=TEXTS).texts
    found: dict[str, list[dict[str, Any]]] = {}
    spectra: dict[str, Any] = {}
    matrices: dict[str, Any] = {}
    for row, seed, stage, folder in models(plan, arguments.work / arguments.plan.stem):
        encoder: Any = opening.open_model(str(folder), dtype=plan.get("dtype", "auto"))
        raw = unnormalised(encoder)
        spectrum = spectrum_of(vectors_of(raw, texts, batch_tokens=BATCH_TOKENS))
        tokens = MemoryTokens(memory_similarity(encoder, texts[:MEMORY_TEXTS], batch_tokens=BATCH_TOKENS))
        label = f"{row}: {stage}"
        found.setdefault(label, []).append({"seed": seed, "spectrum": spectrum.summary(), "memory": tokens.summary()})
        spectra.setdefault(label, spectrum)  # the first seed is drawn
        matrices.setdefault(label, tokens)
        print(label, seed, found[label][-1], flush=True)
    name = arguments.plan.stem
    plot_spectra(list(spectra.items()), arguments.output / f"{name}-spectra.svg")
    plot_memory(list(matrices.items()), arguments.output / f"{name}-memory.png")
    around = circumstances(f"python benchmarks/collapse.py benchmarks/plans/{arguments.plan.name}")
    record = {**around, "texts": TEXTS, "memory_texts": MEMORY_TEXTS, "models": found}
    write_json(arguments.output / f"{name}-collapse.json", record)


def models(plan: dict[str, Any], work: Path) -> list[tuple[str, int, str, Path]]:
    """Row, seed, stage and folder of all trained models with memory tokens that are there, stages innermost."""
    places = []
    for entry in plan["rows"]:
        recipe = Recipe.load(entry["recipe"]) if "recipe" in entry else None
        if recipe is None or not recipe.encoder.memory_tokens:
            continue
        for seed in entry.get("seeds", [42]):
            for stage in recipe.stages:
                folder = work / file_name(entry["row"]) / str(seed) / "model" / stage.name
                if (folder / "embrew.json").exists():
                    places.append((entry["row"], seed, stage.name, folder))
    return list(dict.fromkeys(places))  # several entries may be one row


if __name__ == "__main__":
    main()
