"""Train each method for 20 steps in bf16 on a GPU: tokens per second, and peak memory beside what `plan` says.

The model is a folder or Hub id of a language model whose layers are named as Llama's. The methods are stages of shipped
recipes, on texts that are drawn here. Contrastive learning alone is also trained by Sentence-Transformers, with the
same LoRA, loss and rows. Planned memory is without what CUDA itself takes. Without a GPU, `nano --device cpu --steps 2
--batch 4` tries the script; the memory is then that of the process. A CPU that emulates bf16 trains in float32.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import Trainer

from embrew.planning import plan_recipe
from embrew.recipe import Recipe
from embrew.recipe.stage import DataConfig
from embrew.storage.base_model import ASSETS, supports_natively
from embrew.text.tokens import Tokens
from embrew.training.stages import train

CONTRAST, PEER = "contrastive", "Sentence-Transformers"
METHODS = {
    "LLM2Comp": ("llm2comp/qwen3-0.6b", "compress"),
    "ESE": ("ese/qwen1.5-0.5b", "espresso"),
    "AutoRegEmbed": ("autoregembed/qwen3-0.6b", "align"),
    "LBR": ("lbr/paper-qwen2-1.5b", "learn"),
    "EPIC": ("epic/qwen3-0.6b", "supervised"),
    CONTRAST: ("baselines/contrastive-mean-nano", "supervised"),
}
WORDS = ("heron", "waits", "shallow", "water", "light", "wind", "over", "reeds", "small", "fish", "below", "its")
GB = 2**30


def write_rows(path: Path, count: int) -> None:
    """Write rows with texts of 16 to 200 words, of whose columns a stage takes its own."""
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(count):
            columns = ("text", "query", "positive", "negative")
            row = {column: " ".join(draw.choices(WORDS, k=draw.randint(16, 200))) for column in columns}
            file.write(json.dumps(row) + "\n")


def dtype_of(device: str) -> torch.dtype:
    """Return bfloat16, or float32 where the device emulates bfloat16."""
    return torch.bfloat16 if supports_natively(torch.bfloat16, torch.device(device)) else torch.float32


def recipe_of(method: str, rows: Path, given: argparse.Namespace) -> Recipe:
    """Return one stage of a shipped recipe, on another model, on these rows and for these steps."""
    name, chosen = METHODS[method]
    dtype = dtype_of(given.device)
    base = {"model": given.model, "revision": None, "dtype": str(dtype).removeprefix("torch.")}
    whole = Recipe.load(name, [(f"encoder.{key}", value) for key, value in base.items()])
    stage = next(stage for stage in whole.stages if stage.name == chosen)
    training = {key: value for key, value in stage.training.items() if key not in ("num_train_epochs", "warmup_steps")}
    training |= {"max_steps": given.steps, "logging_steps": given.steps, "save_strategy": "no", "disable_tqdm": True}
    training |= {"gradient_accumulation_steps": 1, "bf16": dtype == torch.bfloat16, "use_cpu": given.device == "cpu"}
    changes: dict[str, Any] = {"data": DataConfig(path=str(rows)), "mix": None, "training": training}
    if stage.batch is None:
        training["per_device_train_batch_size"] = given.batch
    else:
        changes["batch"] = stage.batch.model_copy(update={"size": given.batch})
    return whole.model_copy(update={"stages": [stage.model_copy(update=changes)], "evaluation": None})


def train_by_peer(recipe: Recipe, rows: Path, folder: Path, device: str) -> None:
    """Train what the contrastive recipe trains by Sentence-Transformers."""
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    (stage,), encoder = recipe.stages, recipe.encoder
    place, limit = str(ASSETS.get(encoder.model, encoder.model)), encoder.max_length.document
    body = Transformer(place, max_seq_length=limit, model_kwargs={"dtype": dtype_of(device)})
    body.tokenizer.pad_token = body.tokenizer.pad_token or body.tokenizer.eos_token
    pooling = Pooling(body.get_embedding_dimension(), pooling_mode="mean")
    model = SentenceTransformer(modules=[body, pooling], device=device, trust_remote_code=False)
    model.add_adapter(LoraConfig(**encoder.lora, task_type="FEATURE_EXTRACTION"))
    training = {**stage.training, "per_device_train_batch_size": stage.batch.size, "report_to": "none"}
    columns = Dataset.from_json(str(rows)).select_columns(["query", "positive", "negative"])
    loss = MultipleNegativesRankingLoss(model, scale=1 / stage.objective["temperature"])
    SentenceTransformerTrainer(model, args=Arguments(str(folder), **training), train_dataset=columns, loss=loss).train()


def measured(run: Callable[[], Any], device: str) -> tuple[float, float]:
    """Return tokens per second of a training, without its first fifth and last step, and its peak memory in GB."""
    steps: list[tuple[float, int]] = []
    training_step = Trainer.training_step

    def watched(self: Trainer, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats() if not steps else None
        ours = sum(sum(part.lengths) for part in inputs.values() if isinstance(part, Tokens))
        theirs = sum(int(part.sum()) for name, part in inputs.items() if name.endswith("attention_mask"))
        steps.append((time.perf_counter(), ours + theirs))
        return training_step(self, model, inputs, *args, **kwargs)

    with mock.patch.object(Trainer, "training_step", watched):
        run()
    timed = steps[len(steps) // 5 :]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident
    return sum(tokens for _, tokens in timed[:-1]) / (timed[-1][0] - timed[0][0]), peak / GB


def drill(given: argparse.Namespace) -> None:
    """Measure all methods and print a line for each."""
    print(f"{'':24}{'tokens/s':>10}{'peak GB':>10}{'plan GB':>10}")
    with tempfile.TemporaryDirectory(prefix="gpu-drill-") as scratch:
        rows = Path(scratch) / "rows.jsonl"
        write_rows(rows, given.steps * given.batch)
        for method in (*METHODS, PEER):
            recipe, folder = recipe_of(CONTRAST if method == PEER else method, rows, given), Path(scratch) / method
            if method == PEER:
                run, planned = partial(train_by_peer, recipe, rows, folder, given.device), ""
            else:
                sizes = plan_recipe(recipe, gpu="h100" if given.device == "cuda" else "cpu").stages[0].bytes
                planned = f"{(sizes['peak'] - sizes['process']) / GB:.2f}"
                run = partial(train, recipe, folder, verify="off")
            speed, peak = measured(run, given.device)
            print(f"{method:24}{speed:>10.0f}{peak:>10.2f}{planned:>10}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train each method for some steps in bf16: tokens/s and peak memory.")
    parser.add_argument("model", nargs="?", default="Qwen/Qwen3-0.6B-Base", help="folder or Hub id")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="rows per step")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; to try the script: nano --device cpu --steps 2 --batch 4")
    drill(arguments)
