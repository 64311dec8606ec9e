"""The cosine that every text has to reach, by the precision of the weights that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from embrew.files.formats import EXPORT
from embrew.files.reading import read_json
from embrew.parity.reference import Reference
from embrew.parity.runtimes.runtime import Runtime

MIN_COSINE = {"fp32": 0.9999, "fp16": 0.999, "bf16": 0.999}
"""By type of the weights, below the lowest in `benchmarks/results/llama-cpp-parity.md`: 0.9999986, 0.999995, 0.9991."""
MIN_COSINE_OF_OTHERS = 0.99  # of quantised weights: int8, q8_0 (lowest there: 0.9975)


@dataclass(frozen=True)
class Tolerance:
    """When the vector of a text counts as right.

    Attributes:
        min_cosine: cosine to the right vector that it has to reach.
        weights: type of the weights that was assumed; "": the user gave the cosine.
    """

    min_cosine: float
    weights: str


def tolerance(reference: Reference, runtime: Runtime, against: str) -> Tolerance:
    """Return the tolerance for a runtime: that of the least precise weights which it may run, or the encoder has.

    Args:
        reference: the encoder or export; says which weights its files have.
        runtime: says which of these files it may run.
        against: its file or folder; if that is part of an export, this one says which weights it has.
    """
    written = {**reference.weights, **_beside(against)}
    types = {written[name] for name in runtime.reads if name in written} | ({"bf16"} if reference.is_bf16 else set())
    weights = min(sorted(types), key=lambda kind: MIN_COSINE.get(kind, MIN_COSINE_OF_OTHERS), default="fp32")
    limit = MIN_COSINE.get(weights, MIN_COSINE_OF_OTHERS)
    if weights == "int8" and "openvino" in runtime.reads and reference.least_cosine is not None:
        limit = min(limit, reference.least_cosine)  # what its own export was verified with
    return Tolerance(limit, weights)


def _beside(against: str) -> dict[str, str]:
    """Return the types of weights by runtime of the export that a file or folder is part of."""
    path = Path(against)
    for folder in (path, path.parent, path.parent.parent) if path.exists() else ():
        if (folder / EXPORT.file).is_file():
            return dict(read_json(folder / EXPORT.file, kind=EXPORT).get("runtimes", {}))
    return {}
