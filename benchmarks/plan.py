"""`embrew plan` against the truth: `python benchmarks/plan.py WORK [memory] [smollm2] [recipes]`; all by default.

- `memory` ($MINILM names the folder of all-MiniLM-L6-v2): the peak of resident memory
  that `embrew plan --gpu cpu` predicts, and that of `embrew train` of the same recipe in a process of its own, with its
  real batches and few steps.
- `smollm2`: likewise for the training of each method on SmolLM2-135M, one stage and two steps; each in a fork of one
  process that has imported the libraries, which takes most of the time of such a run.
- `recipes`: the plan of every shipped recipe of a paper on one GPU. Computed, not measured.

Stopped? The same command resumes. Results go to `results/plan-*`; WORK keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import circumstances, origin, table, write
from planned import expand, file_name

from embrew.planning import plan_recipe
from embrew.recipe import Recipe, list_recipes
from embrew.storage.base_model import supports_natively
from embrew.training.stages import train

PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
RECIPES = Path(__file__).parent / "recipes"
TRAINED = {  # recipe, overrides: what is trained, how, and on which model
    "baselines/nli-nano": ("a LoRA, contrastive", ["stages.0.training.max_steps=12"]),
    "autoregembed/nano": (
        "every weight, compression and alignment",
        ["stages.0.training.max_steps=8", "stages.1.training.max_steps=4", "stages.1.data.0.max_rows=300",
         "stages.1.data.1.max_rows=300"],
    ),
    "epic/nano": ("a LoRA, prompts of vectors", ["stages.0.training.max_steps=8"]),
    "ese/minilm": ("every weight, ESE, MiniLM", ["stages.0.training.max_steps=6", "encoder.model=$MINILM"]),
    "baselines/nli-nano, SmolLM2": (
        "a LoRA, contrastive, SmolLM2-135M",
        ["stages.0.training.max_steps=3", "stages.0.batch.size=16", "encoder.model=smollm2-135m"],
    ),
}  # fmt: skip
NLI = "{path: $EMBREW_DATA/nli_triplets, max_chars: 300, max_rows: 1200}"
EIGHT_ROWS = "training.per_device_train_batch_size=8"
ON_SMOLLM2 = {  # recipe, number of the stage, its overrides; batches that take less than 8 GB
    "contrast": ("baselines/contrastive-smollm2", 0, [f"data={NLI}", "batch.size=16"]),
    "contrast, every weight": (
        "baselines/contrastive-smollm2", 0, [f"data={NLI}", "batch.size=16", "training.learning_rate=1.0e-5"],
    ),
    "LLM2Comp: compression, KL": ("llm2comp/nano-wiki", 0, ["data.max_rows=600"]),
    "AutoRegEmbed: compression, NLL": ("autoregembed/nano", 0, ["data.max_rows=600", EIGHT_ROWS]),
    "AutoRegEmbed: alignment": (
        "autoregembed/nano", 1, ["data.0.max_rows=300", "data.1.max_rows=300", EIGHT_ROWS],
    ),
    "LBR: bottleneck": ("lbr/medical-nano", 0, ["data.max_rows=600", EIGHT_ROWS]),
    "EPIC": ("epic/nano", 0, ["batch.size=16", *(f"data.{i}.max_rows=300" for i in range(5))]),
    "ESE": ("ese/nano", 0, ["batch.size=16", *(f"data.{i}.max_rows=300" for i in range(2))]),
    "bge-en-icl": ("baselines/bge-en-icl-nano", 0, ["batch.size=8", *(f"data.{i}.max_rows=300" for i in range(5))]),
    "Llama2Vec": ("baselines/llama2vec-nano", 0, ["data.max_rows=600"]),
    "LLM2Vec: MNTP": ("baselines/llm2vec-nano", 0, ["data.max_rows=600"]),
}  # fmt: skip
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


def memory(work: Path, found: dict[str, Any], save: Callable[[], None]) -> list[str]:
    """Measure and predict trainings; return the page."""
    for name, (_, settings) in TRAINED.items():
        trained = dict.fromkeys(one.split(".training")[0] for one in settings if ".training" in one)
        warm = [f"{stage}.training.warmup_steps=1" for stage in trained]
        asked = [f"{RECIPES}/{name.partition(',')[0]}.yaml", *map(expand, settings), *warm]
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


def smollm2(work: Path, found: dict[str, Any], save: Callable[[], None]) -> list[str]:
    """Measure and predict the training of each method on SmolLM2; return the page."""
    for name in ON_SMOLLM2:
        of = found.setdefault(name, {})
        if "measured" not in of:
            of["measured"] = _forked(lambda name=name: _peak_of(name, work / file_name(name)))
            save()
        of |= _forked(lambda name=name: _planned(name))
        of["difference"] = of["predicted"] / of["measured"] - 1
        save()
    rows = [
        [
            name,
            f"{of['tokens']:,}",
            *(f"{of[key] / 1e6:,.0f}" for key in ("predicted", "measured")),
            f"{of['difference']:+.1%}",
        ]
        for name, of in found.items()
    ]
    header = ["stage", "tokens of a step", "predicted", "measured", "difference"]
    return [
        f"# Predicted and measured peak of resident memory on SmolLM2-135M, MB, products in {_arithmetic()}",
        "",
        *table(header, rows),
    ]


def _stage_alone(name: str) -> Recipe:
    """Return the recipe of a row of `ON_SMOLLM2` with one stage, and two steps of that."""
    recipe, number, settings = ON_SMOLLM2[name]
    path = RECIPES / f"{recipe}.yaml"
    given = [*settings, "training.max_steps=2", "training.warmup_steps=1"]
    every = ["encoder.lora=null"] if "every weight" in name else []
    overrides = ["encoder.model=smollm2-135m", *every, *(f"stages.{number}.{one}" for one in given)]
    loaded = Recipe.load(path if path.is_file() else recipe, overrides)
    return loaded.model_copy(update={"stages": [loaded.stages[number]]})


def _peak_of(name: str, folder: Path) -> int:
    """Train and return the largest resident memory of this process."""
    shutil.rmtree(folder, ignore_errors=True)
    train(_stage_alone(name), folder, verify="off")
    return int(PEAK.findall(Path("/proc/self/status").read_text())[-1]) * 1024


def _planned(name: str) -> dict[str, Any]:
    (stage,) = plan_recipe(_stage_alone(name), gpu="cpu").stages
    return {"bytes": stage.bytes, "predicted": stage.bytes["peak"], "tokens": stage.tokens}


def _arithmetic() -> str:
    return "bfloat16" if supports_natively(torch.bfloat16, torch.device("cpu")) else "float32"


def _forked(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a fork of this process, as JSON."""
    read, written = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(written, json.dumps(function()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(written)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a training failed; the same command resumes with it")
    return json.loads(content)


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


PARTS = {"memory": memory, "smollm2": smollm2, "recipes": recipes}


def main() -> None:
    """Measure what is not measured yet, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    for part in asked.parts:
        state = asked.work / f"{part}.json"
        found: dict[str, Any] = json.loads(state.read_text()) if state.is_file() else {}

        def save(state: Path = state, found: dict[str, Any] = found) -> None:
            state.write_text(json.dumps(found, indent=2))

        lines = PARTS[part](asked.work, found, save)
        around = circumstances(f"python benchmarks/plan.py WORK {part}")
        write(f"plan-{part}", [*lines, "", *origin(around)], {**around, "found": found})


if __name__ == "__main__":
    main()
