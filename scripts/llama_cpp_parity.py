"""Export encoders for llama.cpp in every type of weights, run them there, and write lowest and mean cosines.

    EMBREW_TOKENIZERS=... EMBREW_LLAMA_CPP=/path/to/python python scripts/llama_cpp_parity.py

It writes `benchmarks/results/llama-cpp-parity.json` and `.md`. Encoders: nano in every form that llama.cpp can
represent, and random models of two layers with real tokenizers; all have a LoRA adapter whose matrices are not zero.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.export.llama_cpp_encoders import FORMS, MODELS, encoder_of  # noqa: E402

from embrew.export.exporting import export_encoder  # noqa: E402
from embrew.runtimes.llama_cpp import TYPES  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "llama-cpp-parity"
COLUMNS = ("texts", "beyond_limit", "lowest_cosine", "mean_cosine")


def measure(model: str, form: str, folder: Path) -> list[dict[str, Any]]:
    """Return one row per type of weights."""
    encoder, rows = encoder_of(model, form, folder), []
    for weights in TYPES:
        export_encoder(encoder, folder / "out", runtimes=["llama.cpp"], weights=weights, overwrite=True)
        parity = json.loads((folder / "out" / "parity.json").read_text())
        found = parity["verified"]["llama.cpp"]
        rows.append({"model": model, "form": form, "weights": weights, "runtime": found["run"], **found})
    return rows


def table(result: dict[str, Any]) -> str:
    """Return the result in Markdown."""
    lines = [f"{result['date']}, commit {result['commit']}, {result['rows'][0]['runtime']}, {result['versions']}", ""]
    names = ("model", "form", "weights", *COLUMNS)
    lines += ["| " + " | ".join(names).replace("_", " ") + " |", "|" + " --- |" * len(names)]
    lines += ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in result["rows"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=f"from {', '.join(MODELS)}")
    chosen = parser.parse_args().models
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for model in chosen:
            forms = FORMS if model == "nano" else ["last", "mean, bidirectional"]
            for form in forms:
                rows += measure(model, form, Path(scratch))
    result = {
        "command": "python scripts/llama_cpp_parity.py " + " ".join(chosen),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "versions": {name: version(name) for name in ("gguf", "torch", "transformers", "tokenizers")},
        "rows": rows,
    }
    RESULT.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    RESULT.with_suffix(".md").write_text(table(result))


if __name__ == "__main__":
    main()
