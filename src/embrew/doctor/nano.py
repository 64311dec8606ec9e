"""The self-test: open the shipped model, compare with reference vectors, train two steps, save and export."""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embrew import assembly
from embrew.assembly.stock import open_stock
from embrew.doctor.finding import Finding
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.recipe import Recipe
from embrew.storage.base_model import ASSETS, computes, pick_device, weights_sha256
from embrew.training.stages import train

REFERENCE = Path(__file__).parent / "reference.json"
DIMENSIONS = 32  # leading ones of the reference vectors that are kept
CLOSE = {"cpu": 1e-4}  # largest difference from the reference; on other devices 1e-3
REPAIR = "install embrew again: pip install --force-reinstall --no-deps embrew"
TEXTS = (
    "a flint and a steel make sparks",
    "The tinderbox was published by Andersen in 1835.",
    "how do I reset the counter?",
    "Press both buttons for three seconds; the counter starts from zero.",
    "Embeddings turn a text into a vector, so that close texts have close vectors.",
    "bread",
    "Water boils at 100 °C at sea level, and at a lower temperature in the mountains.",
    "def add(a: int, b: int) -> int:\n    return a + b",
    "The committee met on Tuesday. It approved the budget, with one vote against.",
    "Straße, naïve, 日本語",
    "a  b",
    "1234567890",
    "She sells sea shells by the sea shore, and he buys them in the morning " * 3,
    "Photosynthesis stores the energy of light in sugar.",
    "Plants make sugar with the help of light.",
    "The train to the coast leaves at nine.",
)


def encoder_settings() -> dict[str, Any]:
    """Settings of the encoder of the reference vectors."""
    return {"dtype": "float32", "pooling": "mean", "max_length": 128}


@cache
def opened() -> Encoder:
    """Return the shipped model as an encoder, in float32, on the device that embrew would choose."""
    return Encoder.from_pretrained("nano", **encoder_settings())


def open_nano() -> Finding:
    """Open the shipped model and compare its weights with their sha256."""
    known, found = json.loads(REFERENCE.read_text())["weights_sha256"], weights_sha256(ASSETS["nano"])
    if found != known:
        value = f"its weights have sha256 {found[:12]}…, shipped were {known[:12]}…"
        return Finding("self-test: open nano", "failed", value, REPAIR)
    encoder = opened()
    value = f"{sum(p.numel() for p in encoder.parameters()):,} weights on {encoder.device}"
    return Finding("self-test: open nano", "ok", value, details={"sha256": found})


def vectors() -> Finding:
    """Encode 16 texts and compare with the vectors in the package."""
    encoder = opened()
    known = np.array(json.loads(REFERENCE.read_text())["vectors"], dtype=np.float32)
    found = np.asarray(encoder.encode(list(TEXTS)))
    allowed = CLOSE.get(encoder.device.type, 1e-3)
    if not np.isfinite(found).all():
        advice = "torch computes wrongly here; install another build of it (pytorch.org)"
        return Finding("self-test: vectors", "failed", "NaN or infinity", advice)
    difference = float(np.abs(found[:, :DIMENSIONS] - known).max())
    value = f"{len(TEXTS)} texts, largest difference from the reference {difference:.1e}, allowed {allowed:.0e}"
    if difference > allowed:
        advice = "versions or hardware give other vectors than those embrew was tested with; report it"
        return Finding("self-test: vectors", "failed", value, advice, {"difference": difference})
    return Finding("self-test: vectors", "ok", value, details={"difference": difference})


def padding() -> Finding:
    """Test that other texts of the batch and padding do not change a vector."""
    encoder = opened()
    together = np.asarray(encoder.encode(list(TEXTS), batch_size=len(TEXTS)))
    alone = np.concatenate([np.asarray(encoder.encode([text])) for text in TEXTS[:6]])
    difference = float(np.abs(together[:6] - alone).max())
    value = f"largest difference of a text alone and in a batch {difference:.1e}"
    if difference > CLOSE.get(encoder.device.type, 1e-3):
        advice = "padding changes vectors here; try encoder.attn_implementation=eager, and report it"
        return Finding("self-test: padding", "failed", value, advice)
    return Finding("self-test: padding", "ok", value)


def attention() -> Finding:
    """Test that a change of the last token changes earlier states under bidirectional attention only."""
    modes = ("causal", "bidirectional")
    for mode in modes:
        Encoder.from_pretrained("nano", attention=mode, **encoder_settings())  # which measures it
    return Finding("self-test: attention", "ok", " and ".join(modes) + " as expected")


def half() -> Finding:
    """Compare bfloat16 with float32 where the device supports both."""
    if not computes(torch.bfloat16, pick_device(None)):
        return Finding("self-test: bfloat16", "ok", "not tested: this device emulates it")
    rounded = np.asarray(Encoder.from_pretrained("nano", **{**encoder_settings(), "dtype": "bfloat16"}).encode(TEXTS))
    cosine = float((rounded * np.asarray(opened().encode(list(TEXTS)))).sum(-1).min())
    value = f"smallest cosine of a text in bfloat16 and in float32 {cosine:.4f}"
    if cosine < 0.99:
        return Finding("self-test: bfloat16", "warning", value, "use float32 (--dtype float32)", {"cosine": cosine})
    return Finding("self-test: bfloat16", "ok", value, details={"cosine": cosine})


def training() -> Iterator[Finding]:
    """Train a LoRA for two steps, save it, open it again, and export it; all in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="embrew-doctor-") as scratch, quietly():
        rows = [{"query": text[:24], "positive": text[8:]} for text in TEXTS if len(text) > 24]
        data = Path(scratch) / "pairs.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        recipe = Recipe.from_values(RECIPE | {"stages": [{**STAGE, "data": {"path": str(data)}}]})
        before = np.asarray(assembly.encoder(recipe).encode(list(TEXTS)))
        live = train(recipe, Path(scratch) / "run")
        after = np.asarray(live.encode(list(TEXTS)))
        moved = float(np.abs(after - before).max())
        if not np.isfinite(after).all() or moved == 0:
            advice = "training has no effect here, or diverges; report it"
            yield Finding("self-test: training", "failed", f"vectors moved by {moved:.1e}", advice)
            return
        yield Finding("self-test: training", "ok", f"two steps, vectors moved by {moved:.1e}")
        again = np.asarray(Encoder.from_pretrained(Path(scratch) / "run").encode(list(TEXTS)))
        difference = float(np.abs(again - after).max())
        close = difference <= CLOSE.get(live.device.type, 1e-3)
        value = f"saved and opened again, largest difference {difference:.1e}"
        yield Finding("self-test: saving", "ok" if close else "failed", value, "" if close else "report it")
        export_encoder(live, Path(scratch) / "export", verify="off")
        stock = open_stock(str(Path(scratch) / "export")).encode(list(TEXTS))
        difference = float(np.abs(np.asarray(stock) - after).max())
        close = difference <= CLOSE.get(live.device.type, 1e-3)
        value = f"opened by Sentence-Transformers, largest difference {difference:.1e}"
        yield Finding("self-test: export", "ok" if close else "failed", value, "" if close else "report it")


def speed() -> Finding:
    """Measure encoding speed for about a second; comparable between machines, not between models."""
    encoder, texts = opened(), [f"{number} {text}" for number in range(8) for text in TEXTS]
    encoder.encode(texts[:16])
    began, count = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < 1.0 or not count:
        encoder.encode(texts)
        count += len(texts)
    rate = count / passed
    tokens = sum(len(ids) for ids in encoder.tokenizer(texts)["input_ids"]) / len(texts)
    details = {"texts_per_second": round(rate, 1), "tokens_per_text": round(tokens, 1), "device": encoder.device.type}
    value = f"{rate:,.0f} texts of {tokens:.0f} tokens per second with nano on {encoder.device.type}"
    return Finding("self-test: speed", "ok", value, details=details)


STAGE: dict[str, Any] = {
    "name": "supervised",
    "objective": {"type": "contrastive"},
    "batch": {"size": 4},
    "training": {"max_steps": 2, "learning_rate": 0.01, "disable_tqdm": True, "report_to": "none"},
}
RECIPE: dict[str, Any] = {
    "encoder": {
        "model": "nano",
        "dtype": "float32",
        "pooling": {"mode": "mean"},
        "max_length": {"query": 64, "document": 64},
        "lora": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    },
}


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress the log lines of training."""
    logger = logging.getLogger("embrew")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def write_reference() -> None:
    """Write `reference.json` anew; only where the shipped weights are others."""
    found = np.asarray(Encoder.from_pretrained("nano", device="cpu", **encoder_settings()).encode(list(TEXTS)))
    rows = [[round(float(x), 6) for x in row[:DIMENSIONS]] for row in found]
    values = {"weights_sha256": weights_sha256(ASSETS["nano"]), "vectors": rows}
    REFERENCE.write_text(json.dumps(values) + "\n")
