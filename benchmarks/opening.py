"""Opening an encoder with full weights: its files compared with their sha256, and not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import harness
import numpy as np
from harness import Bar, Benchmark, Outcome
from models import save_llama

from embrew.encoder import Encoder
from embrew.files import checksums

TEXTS = ["A heron waits in the shallow water.", "Interest rates rose by a quarter of a point on Tuesday."]


@cache
def folders() -> tuple[Path, Path]:
    """An encoder with 0.8 GB of weights, and the same files without checksums (hard links)."""
    place = Path(tempfile.mkdtemp(prefix="embrew-bench-"))
    save_llama(place / "lm", width=1024, inner=2816, layers=14, heads=16)
    encoder = Encoder.from_pretrained(place / "lm", device="cpu", dtype="float32", pooling="mean")
    encoder.backbone.train_all()
    encoder.save_pretrained(place / "with", verify="off")
    shutil.rmtree(place / "lm")
    shutil.copytree(place / "with", place / "without", copy_function=os.link)
    (place / "without" / checksums.NAME).unlink()
    return place / "with", place / "without"


def opened(folder: Path, *, known: bool) -> Callable[[], Encoder]:
    """Open a folder as a process does first, or again; its files are in memory."""

    def run() -> Encoder:
        if not known:
            checksums._known.clear()
        encoder = Encoder.from_pretrained(folder, device="cpu")
        sum(float(parameter.detach().sum()) for parameter in encoder.parameters())  # or most of the file is not read
        return encoder

    return run


def process(folder: Path) -> Callable[[], None]:
    """A process that opens a folder and embeds a text."""
    return lambda: subprocess.run([sys.executable, __file__, str(folder)], check=True, capture_output=True) and None


def opening(benchmark: Benchmark) -> Outcome:
    """Three times, each against the folder without checksums."""
    ours, peer = folders()
    size = sum(path.stat().st_size for path in ours.rglob("*.safetensors"))
    one, other = (np.asarray(opened(folder, known=False)().encode(TEXTS)) for folder in (ours, peer))
    gap = float(np.abs(one - other).max())
    if gap > 0:
        raise harness.Unequal(f"vectors differ by {gap:.1e}")
    cases = (
        ("a process, from its start to its first vector", process(ours), process(peer), Bar(gate=0.8, target=0.9)),
        (
            "the first opening of a process, alone",
            opened(ours, known=False),
            opened(peer, known=False),
            Bar(gate=0.1, target=0.2),
        ),
        ("the second opening", opened(ours, known=True), opened(peer, known=True), Bar(gate=0.9, target=0.95)),
    )
    measures = [
        harness.time_pairs(f"{name}, {size / 1e9:.2f} GB of weights", one, other, bar, unit="s", rounds=7)
        for name, one, other, bar in cases
    ]
    return Outcome(equality={"components (2 unit vectors)": gap}, measures=measures)


BENCHMARKS = [
    Benchmark(
        name="opening",
        title="Opening an encoder with full weights, files compared with their sha256, against the same folder without "
        "checksums: 14-layer Llama of width 1024, float32, one core, files in memory.",
        run=opening,
    )
]

if __name__ == "__main__":  # the process that is timed
    Encoder.from_pretrained(sys.argv[1], device="cpu").encode(TEXTS)
