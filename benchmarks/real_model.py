"""Training and encoding on a real model beside other code: `python benchmarks/real_model.py MODEL [ROW ...]`.

MODEL is a folder with a causal language model; the committed results are those of SmolLM2-135M. $EMBREW_DATA names the
data. Every row runs in its own process on one core and is kept as soon as it is done, so that a run may be stopped, or
some rows measured again. Both sides compute in bfloat16 where the processor has instructions for it, and in float32
elsewhere; lines of both kinds of processor are kept side by side. The exit status is 1 where sides that should compute
the same do not, or a process crashed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import harness

NAME, ROUNDS, UNEQUAL = "real-model", 5, 3
ROWS = {
    "contrast": ("real_training", "contrastive step, NLI lengths"),
    "contrast_mixed": ("real_training", "contrastive step, lognormal lengths"),
    "gradient_cache": ("real_training", "gradient caching"),
    "compression": ("real_methods", "compression step"),
    "ese": ("real_methods", "ESE step"),
    "epic": ("real_methods", "EPIC step"),
    "encode": ("real_encoding", "encode"),
    "openvino_bf16": ("real_encoding", "encode, OpenVINO bfloat16"),
    "openvino_int8": ("real_encoding", "encode, OpenVINO int8"),
    "layers": ("real_encoding", "encode, part of the layers"),
    "start": ("real_encoding", "start"),
}
"""Rows of the benchmark: the module that has a function of this name, and the name of a line without a result."""
FACTS = ("setting", "equality", "ours", "peer", "bytes", "scores")
FLAGS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx2")


def measure(row: str, model: Path, rounds: int, output: Path) -> int:
    """Measure one row in this process and write its lines."""
    harness.one_core()
    try:
        lines = getattr(importlib.import_module(ROWS[row][0]), row)(model, rounds)
    except harness.Unequal as error:
        output.write_text(json.dumps({ROWS[row][1]: failed(f"not equal: {error}")}))
        return UNEQUAL
    output.write_text(json.dumps(lines))
    return 0


def failed(state: str) -> dict[str, Any]:
    """Return a line without a result."""
    return {"shown": "–", "goal": "–", "against": "–", "rounds": 0, "state": state}


def measured(row: str, model: Path, rounds: int) -> tuple[dict[str, Any], bool]:
    """Measure one row in a process of its own; return its lines and whether it ended well."""
    with tempfile.TemporaryDirectory(prefix="embrew-real-") as folder:
        plain, output = without_chat(model, Path(folder) / model.name), Path(folder) / "lines.json"
        command = [sys.executable, __file__, str(plain), row, "--rounds", str(rounds), "--into", str(output)]
        done = subprocess.run(command, check=False)
        if output.exists():
            return json.loads(output.read_text()), done.returncode == 0
        return {ROWS[row][1]: failed(f"crashed ({done.returncode})")}, False


def without_chat(model: Path, copy: Path) -> Path:
    """Link the model's files, without the chat template that Sentence-Transformers would put texts into."""
    copy.mkdir()
    for file in model.iterdir():
        if file.name == "tokenizer_config.json":
            settings = {**json.loads(file.read_text()), "chat_template": None}
            (copy / file.name).write_text(json.dumps(settings))
        elif file.is_file() and not file.name.startswith("chat_template"):
            (copy / file.name).symlink_to(file.resolve())
    return copy


def processor_flags() -> list[str]:
    """Return which instructions for short types the processor has, where the system says so."""
    info = Path("/proc/cpuinfo")
    known = set(info.read_text().split()) if info.exists() else set()
    return [flag for flag in FLAGS if flag in known]


def page(record: dict[str, Any]) -> list[str]:
    """Return the result page: the table, then what the sides of each line are made of."""
    header = ["what", "arithmetic", "against", "measured (lowest to highest)", "rounds", "goal", ""]
    lines = record["lines"]
    rows = [
        [str(one[key]) for key in ("name", "arithmetic", "against", "shown", "rounds", "goal", "state")]
        for one in lines.values()
    ]
    details = []
    for one in lines.values():
        details += [
            f"- **{one['name']}, {one['arithmetic']}**",
            *(f"  - {key}: {said(one[key])}" for key in FACTS if key in one),
        ]
    return [
        f"# {record['model']} on one core",
        "",
        *harness.table(header, rows),
        "",
        "Ratios of CPU seconds, medians over rounds in which all sides took turns. Commit, date and processor flags of "
        "each line are in the JSON file; what stands below is of the last run.",
        "",
        *details,
        "",
        *sorted({f"- instructions for {one['arithmetic']}: {', '.join(one['flags'])}" for one in lines.values()}),
        *harness.origin(record),
    ]


def said(fact: Any) -> str:
    """Return a fact in words."""
    if isinstance(fact, dict):
        return ", ".join(f"{name} {said(part)}" for name, part in fact.items() if part != {})
    return f"{fact:.5g}" if isinstance(fact, float) else str(fact)


def keep(row: str, model: Path, lines: dict[str, Any], folder: Path) -> None:
    """Put a row's lines in place of its old ones in the result files."""
    path = folder / f"{NAME}.json"
    known = json.loads(path.read_text())["lines"] if path.exists() else {}
    around = harness.circumstances(f"python benchmarks/real_model.py {model.name}")
    around["versions"] |= {name: version(name) for name in ("sentence-transformers", "openvino")}
    origin = {"row": row, "commit": around["commit"], "date": around["date"], "load": round(os.getloadavg()[0], 1)}
    origin |= {"arithmetic": harness.ARITHMETIC, "flags": processor_flags()}
    merged = {key: one for key, one in known.items() if (one["row"], one["arithmetic"]) != (row, harness.ARITHMETIC)}
    merged |= {f"{name}, {harness.ARITHMETIC}": {"name": name, **one, **origin} for name, one in lines.items()}
    order = sorted(merged, key=lambda name: list(ROWS).index(merged[name]["row"]))
    record = {
        **around,
        "model": model.name,
        "lines": {name: merged[name] for name in order},
    }
    harness.write(NAME, page(record), record, folder)


def main() -> int:
    """Measure rows and write the result files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all by default")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=harness.RESULTS, help="folder of the result files")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # of the process of a row
    given = parser.parse_args()
    if unknown := sorted(set(given.rows) - set(ROWS)):
        parser.error(f"no rows {', '.join(unknown)}; choose from {', '.join(ROWS)}")
    if given.into:
        return measure(given.rows[0], given.model, given.rounds, given.into)
    print(f"processor: {', '.join(processor_flags())}", flush=True)
    well = True
    for row in given.rows or ROWS:
        lines, ended = measured(row, given.model.resolve(), given.rounds)
        well &= ended
        keep(row, given.model.resolve(), lines, given.output)
        for name, one in lines.items():
            print(f"{name}: {one['shown']} {one['goal']} {one['state']}", flush=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
