"""What a LoRA of rank 16 costs while encoding: kept apart, beside the same merged into the weights, as a ratio.

    python benchmarks/encoding.py NAME RECIPE [SETTING ...]

The encoder is that of a recipe, untrained, such as `baselines/mean encoder.model=smollm2-135m`; texts are sentences of
STS-B dev in $EMBREW_DATA. Sides take turns on one core, and what is compared are CPU seconds, so that other work on the
machine disturbs little. Results: `results/encoding-adapter-NAME.*`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

import harness
import numpy as np
import torch

from embrew.data.datasets import load
from embrew.encoder import Encoder
from embrew.recipe import Recipe, build

BATCH_TOKENS = 2048  # what `embrew encode` takes on a CPU
PAIRS, ROUNDS = 64, 7
EXACT = 1e-5  # largest distance of two sides that compute the same, by cosine


def adapter(encoder: Encoder, place: Path) -> dict[str, float]:
    """Time an adapter in the weights and apart."""
    folder = Path(os.environ["EMBREW_DATA"]) / "STSB"
    rows = list(load(folder, kind="scored", split="dev", max_rows=PAIRS, shuffle_seed=harness.SEED))
    texts = [row[side] for side in ("sentence1", "sentence2") for row in rows]
    torch.manual_seed(harness.SEED)
    encoder.backbone.add_lora({"r": 16})
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.02)
    encoder.save_pretrained(place / "saved", verify="off")
    merged, apart = (Encoder.from_pretrained(place / "saved", device="cpu", merge_adapter=one) for one in (True, False))
    one, other = (np.asarray(side.encode(texts), dtype=np.float64) for side in (merged, apart))
    cosines = (one * other).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(other, axis=-1)
    if not cosines.min() >= 1 - EXACT:
        raise SystemExit(f"merged and apart: the smallest cosine is {cosines.min():.6f}; nothing was measured")
    options = {"batch_tokens": BATCH_TOKENS, "show_progress_bar": False}
    sides = {"merged": partial(merged.encode, texts, **options), "apart": partial(apart.encode, texts, **options)}
    seconds = harness.interleaved(sides, ROUNDS)
    return harness.ratio(seconds["apart"], seconds["merged"])


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the model, in the result")
    parser.add_argument("recipe")
    parser.add_argument("settings", nargs="*")
    arguments = parser.parse_args()
    harness.one_core()
    busy = os.getloadavg()[0]
    recipe = Recipe.load(arguments.recipe, [*arguments.settings, "encoder.dtype=float32"])
    encoder = build.encoder(recipe, device="cpu").eval()
    with tempfile.TemporaryDirectory() as place:
        rows = {"apart ÷ merged": adapter(encoder, Path(place))}
    busy = max(busy, os.getloadavg()[0])
    around = harness.circumstances(f"python benchmarks/encoding.py {arguments.name} {arguments.recipe}")
    columns = list(next(iter(rows.values())))
    page = [
        f"# {arguments.name}, adapter: ratios of CPU seconds",
        "",
        *harness.table(["", *columns], [[name, *(f"{row[c]:.5g}" for c in columns)] for name, row in rows.items()]),
        "",
        f"Medians over {ROUNDS} rounds, in each of which all sides took turns; {2 * PAIRS} sentences of STS-B dev.",
        "",
        *harness.origin(around),
        f"- load of the machine: at most {busy:.1f}",
    ]
    harness.write(f"encoding-adapter-{arguments.name}", page, {"rows": rows, "load": busy, **around})


if __name__ == "__main__":
    main()
