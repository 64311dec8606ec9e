"""Opening an encoder with full weights: its files compared with their sha256, and not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import harness
import numpy as np
from harness import Bar, Benchmark, Outcome
from models import save_llama

from embrew import checksums
from embrew.modeling.encoder import Encoder

TEXTS = ["A heron waits in the shallow water.", "Interest rates rose by a quarter of a point on Tuesday."]


@cache
def folders() -> tuple[Path, Path]:
    """An encoder with 0.9 GB of weights, and the same files without checksums (hard links)."""
    place = Path(tempfile.mkdtemp(prefix="embrew-bench-"))
    save_llama(place / "lm", width=1024, inner=2816, layers=14, heads=16)
    encoder = Encoder.from_pretrained(place / "lm", device="cpu", dtype="float32", pooling="mean")
    encoder.backbone.train_all()
    encoder.save_pretrained(place / "with", verify="off")
    shutil.rmtree(place / "lm")
    shutil.copytree(place / "with", place / "without", copy_function=os.link)
    (place / "without" / checksums.NAME).unlink()
    return place / "with", place / "without"


def opened(folder: Path, *, known: bool, cold: bool) -> Callable[[], Encoder]:
    """Open a folder; as a process does first, or again, and with its files in memory or not."""

    def run() -> Encoder:
        if not known:
            checksums._known.clear()
        for path in folder.rglob("*.safetensors") if cold else ():
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)
        encoder = Encoder.from_pretrained(folder, device="cpu")
        sum(float(parameter.detach().sum()) for parameter in encoder.parameters())  # pages of the file are read
        return encoder

    return run


def opening(benchmark: Benchmark) -> Outcome:
    """Three cases, each against the folder without checksums."""
    ours, peer = folders()
    size = sum(path.stat().st_size for path in ours.rglob("*.safetensors"))
    one, other = (np.asarray(opened(folder, known=False, cold=False)().encode(TEXTS)) for folder in (ours, peer))
    gap = float(np.abs(one - other).max())
    if gap > 0:
        raise harness.Unequal(f"vectors differ by {gap:.1e}")
    cases = (
        ("first of a process, files in memory", False, False, Bar(gate=0.5, target=0.6)),
        ("first of a process, files dropped from memory", False, True, Bar(gate=0.5, target=0.6)),
        ("second of a process", True, False, Bar(gate=0.95, target=0.98)),
    )
    measures = [
        harness.time_pairs(
            f"{name}, {size / 1e9:.2f} GB",
            opened(ours, known=known, cold=cold),
            opened(peer, known=known, cold=cold),
            bar,
            unit="s",
            rounds=7,
        )
        for name, known, cold, bar in cases
    ]
    return Outcome(equality={"components (2 unit vectors)": gap}, measures=measures)


BENCHMARKS = [
    Benchmark(
        name="opening",
        title="Opening an encoder with full weights and reading them once, files compared with their sha256, against the "
        "same folder without checksums: 14-layer Llama of width 1024, float32, one core.",
        run=opening,
    )
]
