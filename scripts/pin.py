"""Pin what the package computes, so that a restructuring can show that it changed nothing.

    python scripts/pin.py write BEFORE           in a checkout of the commit before; BEFORE is a path without a suffix
    python scripts/pin.py write AFTER            in a checkout of the commit after
    python scripts/pin.py compare BEFORE AFTER

Both need the `dev` extra and, for evaluations, $EMBREW_DATA. `BEFORE.json` holds the sha256 of each value and
`BEFORE.safetensors` the values, from which `compare` prints the largest difference, relative to the largest value.
Keep both outside the repository. `--only cases,folders` restricts both commands to some of the sections:

    cases      losses, gradients and vectors of every objective and variant: plain, gradient cache, accumulation
    processes  weights after a step of two processes, each variant
    recipes    vectors after two steps of every stage of every shipped recipe, on tiny models
    folders    vectors and token ids of every kind of encoder folder
    tasks      scores of one task of each kind, by the shipped model
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import chdir
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

Pins = dict[str, np.ndarray]
FAMILIES = ("llama", "llama-tied", "qwen2", "qwen3", "mistral")


def flat(tensors: Iterable[Tensor]) -> np.ndarray:
    """Return the values of tensors, concatenated in their order, so that no name is part of a pin."""
    parts = [tensor.detach().float().reshape(-1) for tensor in tensors]
    return torch.cat(parts).numpy() if parts else np.zeros(0, np.float32)


def cases(folder: Path) -> Pins:
    """Run every objective and variant in one process: plain, with the gradient cache, and accumulated."""
    from tests import models
    from tests.distributed import matrix
    from tests.objectives import test_battery as battery

    make = models.make_encoder._get_wrapped_function()(models.tokenizer._get_wrapped_function()())
    pins: Pins = {}
    for (objective, settings), name in zip(battery.CASES, battery.IDS, strict=True):
        for chunks in (None, matrix.MiniBatchSize(rows=2)):
            if chunks is not None and objective not in matrix.EMBEDDING:
                continue
            torch.manual_seed(0)
            encoder, method, batch = battery.ready(make, objective, settings, dropout=True)
            torch.manual_seed(1)
            step = matrix.TrainStep(encoder, method, chunks)
            loss = step(**batch)["loss"]
            loss.backward()
            key = f"{name} {'plain' if chunks is None else 'cached'}"
            pins[f"{key} loss"] = flat([loss])
            pins[f"{key} gradients"] = flat(p.grad for p in step.trainable().values() if p.grad is not None)
            if chunks is None and method.rows_kind != "scored":
                encoder.eval()
                pins[f"{name} vectors"] = np.asarray(encoder.encode([row["text"] for row in TEXTS], prompt=""))
    pins |= trained(folder, accumulated=True)
    return pins


TEXTS = [{"text": text} for text in ("A short text.", "", "A longer text, <s> with a marker. " * 9, "Straße 日本語 🙂")]


def trained(folder: Path, *, accumulated: bool) -> Pins:
    """Train every variant for a step in as many processes as there are."""
    from tests.distributed import matrix
    from tests.objectives import cases

    def all_variants(objective: str) -> list[dict[str, Any]]:
        return [*cases.SETTINGS[objective], *matrix.MORE.get(objective, [])]

    pins: Pins = {}
    several = matrix.PartialState(cpu=True).num_processes > 1
    same: Callable[[str], list[dict[str, Any]]] = matrix.variants_of if several else all_variants
    matrix.variants_of = same
    for objective in matrix.OBJECTIVES:
        for i in range(len(same(objective))):
            rows = 8 if accumulated else matrix.ROWS
            case = matrix.Case(objective, True, accumulated=accumulated, rows=rows, variant=i)
            values = matrix.train(case, str(folder / "models"))
            pins[f"{case} loss"] = flat([values.pop("losses")])
            pins[f"{case} weights"] = flat(values.values())
    return pins


def processes(folder: Path) -> Pins:
    """Train every variant for a step in two processes."""
    out = folder / "processes.safetensors"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    subprocess.run([*launch, __file__, "worker", str(out), str(folder)], check=True, cwd=ROOT)
    return dict(load_file(out))


def worker(out: Path, folder: Path) -> None:
    """Be one of two processes."""
    from accelerate import PartialState

    torch.set_num_threads(1)
    process = PartialState(cpu=True)
    pins = trained(folder, accumulated=False)
    if process.is_main_process:
        save_file(pins, out)
    process.wait_for_everyone()
    process.destroy_process_group()


def recipes(folder: Path) -> Pins:
    """Train every shipped recipe for two steps a stage, on tiny models."""
    from tests import models
    from tests.recipes import test_recipes as shrunk

    from embrew.recipe import build
    from embrew.training.stages import train

    files = shrunk.files._get_wrapped_function()(folder)
    encoders = models.encoder_folder._get_wrapped_function()
    bert = encoders(Factory(folder), models.tokenizer._get_wrapped_function()())
    shrunk.ONE_STEP["max_steps"] = 2
    shrunk.SHIPPED_MODEL = 2
    pins: Pins = {}
    for name in shrunk.RECIPES:
        shipped = shrunk.SHIPPED_RECIPES[name]
        model = shipped.encoder.model
        nano = name in shrunk.QUICK
        stand_in = model if nano else shrunk.stand_in(model, lambda family: folder / "models" / family, bert)
        recipe = shrunk.shrunk(shipped, stand_in, files)
        for stage in recipe.stages:
            stage.training["max_steps"] = 2
        out = folder / "runs" / name
        without = build.encoder if recipe.encoder.variants is None else shrunk.with_variants
        encoder = train(recipe, out, verify="off") if recipe.stages else without(recipe)
        pins[name] = np.asarray(encoder.encode(shrunk.SENTENCES))
    return pins


class Factory:
    """Stands for pytest's `tmp_path_factory`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mktemp(self, name: str) -> Path:
        """Return a new folder."""
        place = self.folder / name
        place.mkdir()
        return place


def folders(folder: Path) -> Pins:
    """Write an encoder folder of every kind; return vectors and token ids."""
    from tests.folders import inputs, make

    from embrew.encoder import Encoder

    work = folder / "folders"
    work.mkdir()
    with chdir(work):
        torch.manual_seed(0)
        torch.set_num_threads(1)
        inputs.write_data()
        inputs.write_tiny()
        pins: Pins = {}
        for name, options in make.encoders().items():
            opened = Encoder.from_pretrained(name, dtype="float32", device="cpu")
            for call, given in {"query": {"prompt_name": "query"}, "document": {}, **options}.items():
                pins[f"{name}:{call}"] = np.asarray(opened.encode(inputs.TEXTS, **given), np.float32)
            how = {"instruction": opened.prompts["query"], "max_length": opened.max_length["query"]}
            rows = [row for template in opened.templates for row in template.rows(inputs.TEXTS, **how)]
            pins[f"{name} ids"] = np.array([token for row in rows for token in row.ids], np.float32)
    return pins


def numbers(value: Any) -> list[float]:
    """Return the numbers of a JSON value in the order of its keys, without times."""
    if isinstance(value, dict):
        return [one for key in sorted(value) if "second" not in key for one in numbers(value[key])]
    if isinstance(value, list):
        return [one for part in value for one in numbers(part)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


ANSWERED = {
    "corpus": [{"_id": f"d{i}", "title": "T", "text": f"Number {i} was born in London."} for i in range(5)],
    "queries": [{"_id": f"q{i}", "text": f"Where was number {i} born?", "answers": ["London"]} for i in range(5)],
}
SUMMARY = {
    "text": "a cat sleeps on a mat all day",
    "human_summaries": ["a cat sleeps", "the cat is tired"],
    "machine_summaries": ["a cat sleeps", "a cat barks", "fish swim"],
    "relevance": [3.0, 2.0, 1.0],
}
CLUSTERS = [
    {"text": f"{word} number {i} of {word}", "label": word} for word in ("cat", "lake", "tax") for i in range(20)
]
SHIPPED = ("BIOSSES", "cranfield", "tweeteval_emotion", "mrpc", "trecqa_reranking")


def tasks(folder: Path) -> Pins:
    """Score the shipped model on one task of each kind."""
    work = folder / "tasks"
    (work / "answers").mkdir(parents=True)
    for name, rows in ANSWERED.items():
        (work / "answers" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (work / "answers" / "qrels.dev.tsv").write_text("".join(f"q{i}\td{i}\t1\n" for i in range(5)))
    for name, rows in {"summaries": [SUMMARY], "clusters": CLUSTERS}.items():
        (work / name).mkdir()
        (work / name / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [os.environ["EMBREW_DATA"] + "/" + name for name in SHIPPED]
    suite = [{"data": str(path)} for path in [*data, work / "summaries", work / "clusters"]]
    suite += [{"data": str(work / "answers"), "kind": kind, "name": kind} for kind in ("rag", "generation")]
    (work / "suite.yaml").write_text(json.dumps({"tasks": suite}))
    command = [sys.executable, "-m", "embrew", "evaluate", "nano", "--pooling", "mean", "--suite"]
    subprocess.run([*command, "suite.yaml", "--output", "out"], check=True, cwd=work)
    pins: Pins = {}
    for path in sorted((work / "out").rglob("*.json")):
        scores = json.loads(path.read_text()).get("scores") if path.name != "paths.json" else None
        if isinstance(scores, dict):
            pins[path.name] = np.array(numbers(scores), np.float64)
    return pins


SECTIONS: dict[str, Callable[[Path], Pins]] = {
    "cases": cases,
    "processes": processes,
    "recipes": recipes,
    "folders": folders,
    "tasks": tasks,
}


def write(out: Path, only: list[str]) -> None:
    """Compute the pins of some sections and write both files."""
    from tests import models

    torch.set_num_threads(1)
    pins: Pins = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        tokenizer = models.tokenizer._get_wrapped_function()()
        for family in FAMILIES:
            models.tiny_model(family).save_pretrained(folder / "models" / family)
            tokenizer.save_pretrained(folder / "models" / family)
        for name in only:
            torch.manual_seed(0)
            section = SECTIONS[name](folder)
            assert section, name
            pins |= {f"{name}: {key}": np.ascontiguousarray(value) for key, value in section.items()}
            sys.stderr.write(f"{name}: {len(section)} values\n")
    hashes = {key: hashlib.sha256(value.tobytes()).hexdigest() for key, value in sorted(pins.items())}
    out.with_suffix(".json").write_text(json.dumps(hashes, indent=0) + "\n")
    save_file(pins, out.with_suffix(".safetensors"))


def compare(before: Path, after: Path, only: list[str], tolerated: float) -> int:
    """Print what differs; return 1 if something differs by more than is tolerated, or is missing on one side."""
    old, new = (json.loads(path.with_suffix(".json").read_text()) for path in (before, after))
    values = [load_file(path.with_suffix(".safetensors")) for path in (before, after)]
    chosen = [key for key in sorted(old.keys() | new.keys()) if key.partition(":")[0] in only]
    equal, near, wrong = 0, [], []
    for key in chosen:
        if old.get(key) == new.get(key):
            equal += 1
            continue
        if key not in old or key not in new:
            wrong.append(f"{key}: only in {'AFTER' if key in new else 'BEFORE'}")
            continue
        one, other = (value[key].astype(np.float64) for value in values)
        if one.shape != other.shape:
            wrong.append(f"{key}: shape {one.shape} != {other.shape}")
            continue
        largest = float(np.abs(one - other).max() / max(np.abs(one).max(), 1e-30))
        (near if largest <= tolerated else wrong).append(f"{key}: {largest:.1e}")
    lines = [f"{equal} of {len(chosen)} equal to the bit; {len(near)} within {tolerated:g}; {len(wrong)} differ"]
    lines += [*(f"  near: {one}" for one in near), *(f"  DIFFERS: {one}" for one in wrong)]
    sys.stdout.write("\n".join(lines) + "\n")
    return bool(wrong)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("write", "compare", "worker"))
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--tolerated", type=float, default=1e-6, help="largest relative difference (default: 1e-6)")
    chosen = parser.parse_args()
    only = chosen.only.split(",")
    if unknown := set(only) - SECTIONS.keys():
        parser.error(f"--only {','.join(unknown)}; choose from {', '.join(SECTIONS)}")
    if chosen.command == "worker":
        worker(*chosen.paths)
    elif chosen.command == "write":
        write(chosen.paths[0], only)
    else:
        sys.exit(compare(*chosen.paths, only, chosen.tolerated))


if __name__ == "__main__":
    main()
