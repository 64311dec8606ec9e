"""Write folders of every kind, and note what they give: vectors, token ids, hits, scores."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import torch

from tests.folders.expected import Expected
from tests.folders.inputs import COMPRESS, LORA, SENTENCES, SWEEP, TEXTS

STOPPED = """
import os, signal, sys
from embrew.training.trainer import StageTrainer
stage, step, whole, seen = sys.argv[1], int(sys.argv[2]), StageTrainer.training_step, []
def training_step(self, *args, **kwargs):
    if stage + ".work" in str(self.args.output_dir):
        seen.append(1)
        if len(seen) > step:
            os.kill(os.getpid(), signal.SIGKILL)
    return whole(self, *args, **kwargs)
StageTrainer.training_step = training_step
sys.argv = ["embrew", *sys.argv[3:]]
from embrew.cli import main
main()
"""
STOPPED_SHARDS = """
import os, signal, sys
from embrew.corpus import encoding
whole, seen, last = encoding.add, [], int(sys.argv[1])
def add(*args):
    whole(*args)
    seen.append(1)
    if len(seen) == last:
        os.kill(os.getpid(), signal.SIGKILL)
encoding.add = add
sys.argv = ["embrew", *sys.argv[2:]]
from embrew.cli import main
main()
"""


def embrew(*arguments: str, code: str = "", killed: bool = False) -> None:
    """Run the command line in a process of its own."""
    command = [sys.executable, *(["-c", code] if code else ["-m", "embrew"]), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != (-signal.SIGKILL if killed else 0):
        raise SystemExit(f"{' '.join(arguments)}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def stirred(encoder: Any) -> Any:
    """The encoder with values in LoRA's B matrices, which start at zero."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in encoder.backbone.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return encoder.eval()


def encoders(expected: Expected) -> None:
    """One folder per way in which an encoder can be stored."""
    from embrew.encoder import Encoder
    from embrew.model.contexts import Context
    from embrew.settings.encoder import Demonstration, Demonstrations, Pooling

    def opened(base: str = "tiny", **settings: Any) -> Encoder:
        return Encoder.from_pretrained(base, device="cpu", **{"max_length": 48, "pooling": "mean", **settings})

    prompts = {"query": "Find: ", "document": "Text: "}
    lora = opened(prompts=prompts, attention="bidirectional")
    lora.backbone.add_lora(LORA)
    stirred(lora).save_pretrained("encoders/lora")
    expected.encoder("encoders/lora", options={"four": {"truncate_dim": 4}, "first layer": {"num_layers": 1}})

    whole = opened(pooling="last", prompts=prompts, default_prompt_name="document", dtype="bfloat16")
    whole.backbone.train_all()
    with torch.no_grad():
        for parameter in whole.backbone.parameters():
            parameter.add_(0.01)
    whole.save_pretrained("encoders/full")  # the weights themselves; no base beside them
    expected.encoder("encoders/full")

    memory = opened(
        template="{soft_prompt}{instruction}{text}{memory}",
        memory_tokens=3,
        soft_prompt_tokens=2,
        memory_ratio=0.2,
        preparation="sentence",
        attention="memory_causal",
        pooling=Pooling("mean", "memory"),
        normalize=False,
    )
    memory.backbone.add_lora(LORA)
    stirred(memory).save_pretrained("encoders/memory")
    expected.encoder("encoders/memory")

    latent = opened(pooling=Pooling("mean", "text", latents=3, heads=2, head_width=4))
    latent.backbone.add_lora(LORA)
    stirred(latent).save_pretrained("encoders/latent")  # with head.safetensors
    expected.encoder("encoders/latent")

    pairs = [Demonstration("a fox", SENTENCES[0]), Demonstration("sea shells", SENTENCES[3])]
    reads = {"template": "{instruction}{text}{eos}", "pooling": "last", "demonstrations": Demonstrations()}
    vectors = opened(**reads, max_length=64)
    vectors.backbone.add_lora(LORA)
    stirred(vectors).add_context("foxes", Context("Retrieve animals: ", tuple(pairs)))
    vectors.save_pretrained("encoders/contexts")
    expected.encoder("encoders/contexts", options={"foxes": {"prompt_name": "foxes"}})

    reads["demonstrations"] = Demonstrations(format="query", compress="none")
    icl = opened("nano", **reads, max_length=96)
    icl.backbone.add_lora({**LORA, "r": 1, "target_modules": ["q_proj"]})
    stirred(icl).add_context("foxes", Context("Retrieve animals: ", tuple(pairs)))
    icl.save_pretrained("encoders/nano")  # on the shipped base, which is named and not stored
    expected.encoder("encoders/nano", options={"foxes": {"prompt_name": "foxes"}})

    several = opened(template=["{text} {echo}", "Again: {text} {echo}"], pooling=Pooling("mean", "echo"))
    several.backbone.add_lora({**LORA, "r": 1})
    stirred(several).save_pretrained("encoders/templates")
    expected.encoder("encoders/templates")


def run(expected: Expected) -> None:
    """A run killed in its second stage, after step 4 of 6, with the checkpoint of step 4; and what it becomes."""
    from embrew.config.yaml_files import dump_yaml

    Path("run.yaml").write_text(dump_yaml(COMPRESS))
    embrew("supervised", "5", "train", "run.yaml", "--output", "run", code=STOPPED, killed=True)
    shutil.rmtree("run/supervised.work/checkpoint-2")  # the older of two
    expected.encoder("run/compress")
    shutil.copytree("run", "finished")
    embrew("train", "run.yaml", "--output", "finished", "--resume")
    expected.encoder("finished/supervised")
    log = json.loads(Path("finished/run.json").read_text())
    expected.values["finished"] = {key: log[key] for key in ("scores", "kept", "curves", "samples", "final")}
    shutil.rmtree("finished")


def stock(expected: Expected) -> None:
    """An export: a stock Sentence-Transformers folder."""
    from sentence_transformers import SentenceTransformer

    embrew("export", "encoders/lora", "export")
    opened = SentenceTransformer("export", device="cpu")
    expected.arrays["export:query"] = opened.encode_query(TEXTS)
    expected.arrays["export:document"] = opened.encode_document(TEXTS)


def vectors(expected: Expected) -> None:
    """Folders of shards: complete ones, and ones that were stopped with a row left out."""
    from embrew.corpus import read_vectors

    made = {"float32": (), "int8": ("--precision", "int8"), "binary": ("--precision", "binary", "--truncate-dim", "8")}
    for name, how in made.items():
        given = ("encode", "encoders/lora", "data/corpus.jsonl", f"shards/{name}", "--shard-rows", "8", *how)
        embrew(*given)
        whole = read_vectors(f"shards/{name}")
        expected.arrays[f"shards/{name}"] = np.concatenate([part for _, part in whole])
        if name != "binary":
            embrew("1", *given[:3], f"shards/{name}-stopped", *given[4:], code=STOPPED_SHARDS, killed=True)


def index(expected: Expected) -> None:
    """A search index; keep the hits of three queries."""
    from embrew import opening
    from embrew.search import SearchIndex

    made = SearchIndex.build(opening.open_model("encoders/lora"), "data/corpus.jsonl")
    made.save("index")
    hits = made.search(SENTENCES[:3], top_k=4)
    expected.values["hits"] = [[[hit.document.id, hit.score] for hit in each] for each in hits]


def results(expected: Expected) -> None:
    """Results of an evaluation."""
    embrew("evaluate", "encoders/lora", "--data", "data/sts.jsonl", "--output", "results")
    expected.values["results"] = json.loads(Path("results/sts.test.json").read_text())["scores"]


def sweep(expected: Expected) -> None:
    """A finished sweep of two rows."""
    Path("sweep.yaml").write_text(SWEEP)
    embrew("train", "whole.yaml", "--sweep", "sweep.yaml", "--output", "sweep", "encoder.lora={r: 1, lora_alpha: 2}")
    for picture in Path("sweep").rglob("*.png"):
        picture.unlink()
    expected.values["sweep"] = [row["scores"] for row in json.loads(Path("sweep/sweep.json").read_text())["rows"]]
