"""What single parts save: adapters merged to encode, wide targets of ESE."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import harness
import torch
from harness import SEED, Bar, Benchmark, Outcome
from models import save_llama

from embrew.encoder import Encoder
from embrew.losses import espresso

LORA = {"r": 16, "lora_dropout": 0.05}
BAR = Bar(gate=0.0, target=1.0)  # nothing is promised: what is found decides what the docs say
SHAPES = {"nano": None, "12x768": {"width": 768, "inner": 2048, "layers": 12, "heads": 12}}
TEXTS = [" ".join(["a heron waits in the shallow water"] * (1 + i % 4)) for i in range(32)]


def trained(place: Path, shape: dict[str, int] | None) -> Encoder:
    """An encoder with a LoRA on every linear layer that does something."""
    if shape is not None:
        save_llama(place / "model", **shape)
    encoder = Encoder.from_pretrained("nano" if shape is None else place / "model", device="cpu", pooling="mean")
    torch.manual_seed(SEED)
    encoder.backbone.add_lora(LORA)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
    return encoder


def merged(benchmark: Benchmark) -> Outcome:
    """An opened folder's `encode`, the adapter in the weights or apart."""
    equality, measures = {}, []
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="embrew-bench-") as scratch:
            place = Path(scratch)
            trained(place, shape).save_pretrained(place / "saved", verify="off")
            ours, apart = (
                Encoder.from_pretrained(place / "saved", device="cpu", merge_adapter=merge) for merge in ("auto", False)
            )
            texts = TEXTS * 4 if shape is None else TEXTS
            sides = [partial(encoder.encode, texts, batch_tokens=2048) for encoder in (ours, apart)]
            pair = [torch.from_numpy(side()) for side in sides]
            equality[f"vectors, {name}"] = harness.require_equal("vectors", [(pair[0], pair[1])], 1e-5)
            measures.append(harness.time_pairs(f"encode, {name}", *sides, BAR))
    return Outcome(equality=equality, measures=measures)


def wide(benchmark: Benchmark) -> Outcome:
    """ESE's dependency matrix of a flat spectrum: the bounded iteration, and the exact solver in float64."""
    notes, measures = {}, []
    for width, k in ((1024, 128), (2048, 128)):
        vectors = torch.randn(256, width, generator=torch.Generator().manual_seed(SEED))
        sides = [partial(solve, vectors, k) for solve in (espresso._filtered, espresso._exact)]
        measures.append(harness.time_pairs(f"target of {width} dimensions", *sides, BAR, rounds=3))
        columns, exact = (vectors.double() @ side().double() for side in sides)
        public = torch.svd_lowrank(espresso.dependency(vectors), q=k)
        lowrank = vectors.double() @ (public[0] * public[1]).double()
        for name, found in (("ours", columns), ("svd_lowrank", lowrank)):
            aligned = found * (found * exact).sum(0).sign()
            notes[f"relative error, {name}, {width}"] = float((aligned - exact).norm() / exact.norm())
    return Outcome(equality={}, measures=measures, notes=notes)


BENCHMARKS = (
    Benchmark(
        name="adapter-merged",
        title="Encoding with a LoRA (r 16) merged into the weights, against the same kept apart, float32",
        run=merged,
    ),
    Benchmark(
        name="espresso-wide",
        title="ESE's target of a wide layer with a flat spectrum (256 texts): bounded iteration, against float64 eigh",
        run=wide,
    ),
)
