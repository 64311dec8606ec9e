"""Encoding with a real model beside Sentence-Transformers, and the time to start, for `real_model.py`.

Embeddings are means over all tokens. Vectors of all sides are compared before anything is timed.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from transformers import AutoTokenizer

from embrew import Encoder
from embrew.data.datasets import load
from embrew.opening import open_model

LIMIT = 256  # tokens of a text
MEDIAN, SIGMA = 60, 0.8  # tokens of texts of lognormal lengths
SHORT, MIXED, PAIRS = 128, 48, 200
ALIKE = 0.999  # smallest cosine of two sides' vectors of a text
DEFAULT, SIZES = 32, (8, 16, 32, 64, 128)  # rows per batch of Sentence-Transformers: its own, and to choose from
Line = dict[str, Any]


# ---- texts, models and what they run -------------------------------------------------------------------------------


def lognormal(model: Path, count: int) -> list[str]:
    """Return texts of joined Wikipedia sentences, of lognormal numbers of tokens up to `LIMIT`."""
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    folder = Path(os.environ["EMBREW_DATA"]) / "wiki_paragraphs"
    rows = load(folder, kind="text", sentences=True, min_chars=40, max_rows=20 * count)
    sentences, draw, texts = iter(rows["text"]), random.Random(harness.SEED), []
    for _ in range(count):
        wanted, text = min(LIMIT, max(3, round(MEDIAN * draw.lognormvariate(0, SIGMA)))), next(sentences)
        while len(ends := tokenizer(text, return_offsets_mapping=True)["offset_mapping"]) < wanted:
            text = f"{text} {next(sentences)}"
        texts.append(text[: ends[wanted - 1][1]])
    return texts


def scored(count: int) -> tuple[list[str], list[float]]:
    """Return first, then second sentences of pairs of STS-B dev, and the scores of the pairs."""
    folder = Path(os.environ["EMBREW_DATA"]) / "STSB"
    rows = list(load(folder, kind="scored", split="dev", max_rows=count, shuffle_seed=harness.SEED))
    return [row[side] for side in ("sentence1", "sentence2") for row in rows], [row["score"] for row in rows]


def stock(model: Path, dtype: torch.dtype) -> SentenceTransformer:
    """Return the model with mean pooling in Sentence-Transformers."""
    body = Transformer(str(model), max_seq_length=LIMIT, model_kwargs={"dtype": dtype})
    pooling = Pooling(body.get_embedding_dimension(), pooling_mode="mean")
    return SentenceTransformer(modules=[body, pooling], device="cpu", trust_remote_code=False)


def passes(module: nn.Module, run: Callable[[], Any]) -> dict[str, int]:
    """Return how many forward passes a call runs, and their positions, padding included."""
    shapes: list[int] = []

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        shapes.append(states.numel() // states.shape[-1])

    first = [module for name, module in module.named_modules() if name.endswith("layers.0")]
    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in first]
    run()
    for hook in hooks:
        hook.remove()
    return {"forward passes": len(shapes), "positions": sum(shapes)}


# ---- encoding ------------------------------------------------------------------------------------------------------


def side(encoder: Any, texts: Sequence[str], **options: Any) -> Callable[[], np.ndarray]:
    """Return what encodes the texts."""
    return partial(encoder.encode, texts, show_progress_bar=False, **options)


def fastest(model: SentenceTransformer, texts: Sequence[str]) -> tuple[int, dict[str, float]]:
    """Return with how many rows per batch the model is fastest, and the CPU seconds with each number."""
    taken = {size: harness.turns({"": side(model, texts, batch_size=size)}, 1)[""].cpu[0] for size in SIZES}
    return min(taken, key=taken.__getitem__), {f"{size} rows": seconds for size, seconds in taken.items()}


def cosines(ours: Callable[[], Any], peer: Callable[[], Any], least: float) -> dict[str, float]:
    """Return mean and smallest cosine of the vectors of two sides; raise where one is below `least`."""
    one, other = (torch.as_tensor(call()).double() for call in (ours, peer))
    found = nn.functional.cosine_similarity(one, other)
    if not found.min() >= least:
        raise harness.Unequal(f"the smallest cosine is {found.min():.5f}, below {least}")
    return {"mean cosine": float(found.mean()), "smallest cosine": float(found.min())}


def encode(model: Path, rounds: int) -> dict[str, Line]:
    """Compare encoding with Sentence-Transformers, both in the processor's arithmetic."""
    encoder = Encoder.from_pretrained(model, pooling="mean", dtype=harness.ARITHMETIC, device="cpu", max_length=LIMIT)
    peer, lines = stock(model, harness.DTYPE), {}
    for name, texts, goals in (
        (f"{SHORT} short sentences", scored(SHORT // 2)[0], (1.6, 1.4)),
        (f"{MIXED} texts of lognormal lengths", lognormal(model, MIXED), (2.2, 1.3)),
    ):
        best, sweep = fastest(peer, texts)
        sides = {"ours": side(encoder, texts)}
        sides |= {f"{size} rows": side(peer, texts, batch_size=size) for size in {DEFAULT, best}}
        equality = cosines(sides["ours"], sides[f"{DEFAULT} rows"], ALIKE)
        pairs = {size: (f"{size} rows", "ours") for size in (str(DEFAULT), str(best))}
        found = harness.compared(sides, pairs, rounds)
        own, real = passes(encoder, sides["ours"]), sum(map(len, encoder.tokenizer(texts)["input_ids"]))
        for size, what, least in ((DEFAULT, "its default", goals[0]), (best, "its fastest batch", goals[1])):
            lines[f"encode, {name}: {what}"] = harness.line(
                found[str(size)],
                least=least,
                against=f"Sentence-Transformers, {what}",
                setting="mean pooling",
                equality=equality,
                ours={"real tokens": real, **own},
                peer={"rows": size, **passes(peer, sides[f"{size} rows"]), "seconds by rows": sweep},
            )
    return lines


def exported(model: Path, rounds: int, weights: str, dtype: str, least: float, alike: float) -> dict[str, Line]:
    """Compare an export for OpenVINO with Sentence-Transformers in float32, its fastest batch."""
    (texts, gold), what = scored(PAIRS), f"OpenVINO {weights if weights == 'int8' else dtype}"
    command = [sys.executable, "-m", "embrew", "export", str(model)]
    options = ["--for", "openvino", "--weights", weights, "--pooling", "mean", "--verify", "off"]
    with tempfile.TemporaryDirectory(prefix="embrew-openvino-") as folder:
        subprocess.run([*command, f"{folder}/export", *options], check=True)
        encoder = open_model(f"{folder}/export", dtype=dtype, backend="openvino")
        peer, few = stock(model, torch.float32), [*texts[: SHORT // 2], *texts[PAIRS : PAIRS + SHORT // 2]]
        best, sweep = fastest(peer, few)
        sides = {"ours": side(encoder, few), "peer": side(peer, few, batch_size=best)}
        equality = cosines(sides["ours"], sides["peer"], alike)
        found = harness.compared(sides, {"encode": ("peer", "ours")}, rounds)["encode"]
        vectors = [torch.as_tensor(side(one, texts)()).double() for one in (encoder, peer)]
    facts: dict[str, Any] = {
        "against": "Sentence-Transformers in float32, its fastest batch",
        "setting": f"{SHORT} short sentences, mean pooling; weights {weights}, computed in {dtype}",
        "equality": equality,
        "peer": {"rows": best, **passes(peer, sides["peer"]), "seconds by rows": sweep},
    }
    lines = {f"encode, {what}": harness.line(found, least=least, **facts)}
    if weights == "int8":
        similar = [nn.functional.cosine_similarity(one[:PAIRS], one[PAIRS:]).numpy() for one in vectors]
        ours, theirs = (100 * float(spearmanr(one, gold).statistic) for one in similar)
        mean, loss = harness.alone(equality["mean cosine"]), harness.alone(theirs - ours)
        lines[f"encode, {what}: mean cosine to float32"] = harness.line(mean, least=0.995, form=".4f", **facts)
        lines[f"encode, {what}: points lost on STS-B dev"] = harness.line(
            loss, most=0.5, **facts, scores=[ours, theirs]
        )
    return lines


def openvino_bf16(model: Path, rounds: int) -> dict[str, Line]:
    """Compare an export that is computed in bfloat16, where the processor has instructions for it."""
    return {} if not harness.SHORT else exported(model, rounds, "fp32", "bfloat16", 2.5, ALIKE)


def openvino_int8(model: Path, rounds: int) -> dict[str, Line]:
    """Compare an export in int8, whose vectors are other ones."""
    return exported(model, rounds, "int8", "auto", 3.5, 0.9)


def layers(model: Path, rounds: int) -> dict[str, Line]:
    """Compare all layers with a half and a quarter of them."""
    encoder = Encoder.from_pretrained(model, pooling="mean", dtype=harness.ARITHMETIC, device="cpu", max_length=LIMIT)
    texts, depth = scored(SHORT // 2)[0], encoder.backbone.num_layers
    goals = {depth // 2: 1.95, round(depth / 4): 3.5}
    sides = {str(count): side(encoder, texts, num_layers=count) for count in (depth, *goals)}
    pairs = {str(count): (str(depth), str(count)) for count in goals}
    found = harness.compared(sides, pairs, rounds)
    setting = f"{SHORT} short sentences, mean pooling"
    return {
        f"encode, {count} of {depth} layers": harness.line(
            found[str(count)], least=least, against=f"all {depth} layers", setting=setting
        )
        for count, least in goals.items()
    }


# ---- start ---------------------------------------------------------------------------------------------------------


def start(model: Path, rounds: int) -> dict[str, Line]:
    """Measure CPU seconds of commands beyond those of importing torch, transformers and peft."""
    first = f"from embrew import Encoder; Encoder.from_pretrained({str(model)!r}, pooling='mean').encode('a text')"
    embrew = [sys.executable, "-m", "embrew"]
    commands: Mapping[str, tuple[list[str], float]] = {
        "embrew --help": ([*embrew, "--help"], 0.2),
        "embrew recipe check": ([*embrew, "recipe", "check", "llm2comp/nano"], 0.3),
        "first vector": ([sys.executable, "-c", first], 0.5),
    }
    imports = [sys.executable, "-c", "import torch, transformers, peft"]
    taken: dict[str, list[float]] = {name: [] for name in ("imports", *commands)}
    for _ in range(rounds + 1):  # the first fills the cache of files
        for name, seconds in taken.items():
            seconds.append(child_seconds(imports if name == "imports" else commands[name][0]))
    lines = {}
    for name, (_, most) in commands.items():
        more = [one - other for one, other in zip(taken[name], taken["imports"], strict=True)][1:]
        seconds = {"ours": taken[name][1:], "peer": taken["imports"][1:]}
        steady = all(max(some) <= harness.SPREAD * min(some) for some in seconds.values())
        found = {
            "ratio": float(np.median(more)),
            "low": min(more),
            "high": max(more),
            "conclusive": steady,
            "rounds": rounds,
        }
        lines[f"start, {name}: seconds more"] = harness.line(
            found, most=most, against="import torch, transformers, peft", setting="new process", seconds=seconds
        )
    return lines


def child_seconds(command: Sequence[str]) -> float:
    """Return the CPU seconds of a process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
