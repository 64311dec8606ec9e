"""How long an encoder takes to encode, as ratios: `python benchmarks/encoding.py WHAT NAME RECIPE [SETTING ...]`.

    adapter   a LoRA of rank 16 kept apart, beside the same merged into the weights
    layers    all layers, beside half and a quarter of them
    openvino  exports for OpenVINO in float32, bfloat16 and int8, beside embrew in torch and Sentence-Transformers

The encoder is that of a recipe, untrained, such as `baselines/mean encoder.model=smollm2-135m`; texts are sentences of
STS-B dev in $EMBREW_DATA. Sides take turns on one core, and what is compared are CPU seconds, so that other work on the
machine disturbs little. Results: `results/encoding-WHAT-NAME.*`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from embrew import assembly
from embrew.data.datasets import load
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.export.parts import Int8
from embrew.recipe import Recipe
from embrew.runtimes.folder import open_openvino
from embrew.storage.base_model import computes

BATCH_TOKENS = 2048  # what `embrew encode` takes on a CPU
PAIRS, CALIBRATION, ROUNDS = 64, 64, 7
EXACT = 1e-5  # largest distance of two sides that compute the same, by cosine
Rows = dict[str, dict[str, float]]


def sentences() -> tuple[list[str], list[float], tuple[str, ...]]:
    """Return both sides of pairs of STS-B dev, their scores, and other sentences to calibrate with."""
    folder = Path(os.environ["EMBREW_DATA"]) / "STSB"
    rows = list(load(folder, kind="scored", split="dev", max_rows=PAIRS + CALIBRATION, shuffle_seed=harness.SEED))
    pairs, others = rows[:PAIRS], rows[PAIRS:]
    texts = [row[side] for side in ("sentence1", "sentence2") for row in pairs]
    return texts, [row["score"] for row in pairs], tuple(row["sentence1"] for row in others)


def side(encoder: Any, texts: list[str], **settings: Any) -> Callable[[], np.ndarray]:
    """Return what encodes the texts."""
    return partial(encoder.encode, texts, batch_tokens=BATCH_TOKENS, show_progress_bar=False, **settings)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the cosines of the rows of two matrices."""
    one, other = (np.asarray(vectors, dtype=np.float64) for vectors in (one, other))
    return (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)


def require_same(name: str, found: np.ndarray) -> None:
    """Raise SystemExit where sides that should compute the same do not."""
    if not found.min() >= 1 - EXACT:
        raise SystemExit(f"{name}: the smallest cosine is {found.min():.6f}; nothing was measured")


def adapter(encoder: Any, place: Path) -> Rows:
    """Time an adapter in the weights and apart."""
    texts, *_ = sentences()
    torch.manual_seed(harness.SEED)
    encoder.backbone.add_lora({"r": 16})
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
    encoder.save_pretrained(place / "saved", verify="off")
    merged, apart = (Encoder.from_pretrained(place / "saved", device="cpu", merge_adapter=one) for one in (True, False))
    require_same("merged and apart", cosines(merged.encode(texts), apart.encode(texts)))
    seconds = harness.interleaved({"merged": side(merged, texts), "apart": side(apart, texts)}, ROUNDS)
    return {"apart ÷ merged": harness.ratio(seconds["apart"], seconds["merged"])}


def layers(encoder: Any, place: Path) -> Rows:
    """Time fewer layers."""
    texts, *_ = sentences()
    depth = len(encoder.backbone.inner.layers)
    counts = [depth, depth // 2, depth // 4]
    seconds = harness.interleaved({str(n): side(encoder, texts, num_layers=n) for n in counts}, ROUNDS)
    return {f"{depth} layers ÷ {n}": harness.ratio(seconds[str(depth)], seconds[str(n)]) for n in counts[1:]}


def openvino(encoder: Any, place: Path) -> Rows:
    """Time every form of an export, with its vectors beside those in torch in float32."""
    texts, gold, calibration = sentences()
    forms = {"float32": ("fp32", None), "int8": ("int8", Int8()), "int8, calibrated": ("int8", Int8(texts=calibration))}
    sides = {"torch float32": side(encoder, texts)}
    for name, (weights, int8) in forms.items():
        export_encoder(encoder, place / name, runtimes=["openvino"], weights=weights, int8=int8, verify="off")
        sides[f"OpenVINO {name}"] = side(open_openvino(place / name), texts)
    if computes(torch.bfloat16, torch.device("cpu")):
        encoder.save_pretrained(place / "saved", verify="off")
        half = Encoder.from_pretrained(place / "saved", dtype="bfloat16", device="cpu")
        sides["torch bfloat16"] = side(half, texts)
        sides["OpenVINO bfloat16"] = side(open_openvino(place / "float32", dtype="bfloat16"), texts)
    export_encoder(encoder, place / "stock", runtimes=["sentence-transformers"], verify="off")
    stock = SentenceTransformer(
        str(place / "stock"), device="cpu", model_kwargs={"use_safetensors": True}, trust_remote_code=False
    )
    sides["Sentence-Transformers float32"] = partial(stock.encode, texts, batch_size=32, show_progress_bar=False)

    vectors = {name: np.asarray(call(), dtype=np.float32) for name, call in sides.items()}
    alike = {name: cosines(found, vectors["torch float32"]) for name, found in vectors.items()}
    for name in sides:
        if name.endswith("float32"):
            require_same(name, alike[name])
    seconds = harness.interleaved(sides, ROUNDS)
    rows = {}
    for name, found in vectors.items():
        similar = cosines(found[:PAIRS], found[PAIRS:])
        rows[name] = harness.ratio(seconds["Sentence-Transformers float32"], seconds[name])
        if "torch bfloat16" in seconds:
            rows[name]["× torch bfloat16"] = harness.ratio(seconds["torch bfloat16"], seconds[name])["ratio"]
        rows[name] |= {
            "mean cosine": float(alike[name].mean()),
            "smallest cosine": float(alike[name].min()),
            "Spearman": 100 * float(spearmanr(similar, gold).statistic),
        }
    return rows


COMPARISONS = {"adapter": adapter, "layers": layers, "openvino": openvino}


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=COMPARISONS)
    parser.add_argument("name", help="of the model, in the result")
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*")
    arguments = parser.parse_args()
    harness.one_core()
    busy = os.getloadavg()[0]
    recipe = Recipe.load(arguments.recipe, [*arguments.settings, "encoder.dtype=float32"])
    encoder = assembly.encoder(recipe, device="cpu").eval()
    with tempfile.TemporaryDirectory() as place:
        rows = COMPARISONS[arguments.what](encoder, Path(place))
    busy = max(busy, os.getloadavg()[0])
    around = harness.circumstances(
        f"python benchmarks/encoding.py {arguments.what} {arguments.name} {arguments.recipe}"
    )
    columns = list(next(iter(rows.values())))
    page = [
        f"# {arguments.name}, {arguments.what}: ratios of CPU seconds",
        "",
        *harness.table(["", *columns], [[name, *(f"{row[c]:.5g}" for c in columns)] for name, row in rows.items()]),
        "",
        f"Medians over {ROUNDS} rounds, in each of which all sides took turns; {2 * PAIRS} sentences of STS-B dev.",
        "",
        *harness.origin(around),
        f"- load of the machine: at most {busy:.1f}",
    ]
    harness.write(f"encoding-{arguments.what}-{arguments.name}", page, {"rows": rows, "load": busy, **around})


if __name__ == "__main__":
    main()
