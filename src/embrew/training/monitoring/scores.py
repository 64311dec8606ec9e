"""Scores of dev and guard sets: types, and the lines that are logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, runtime_checkable

from embrew.encoder import Encoder
from embrew.files.formats import GAP, GAP_OTHER, GUARD

Scores = dict[str, float]
Evaluate = Callable[[Encoder], Scores]


@runtime_checkable
class DevSets(Protocol):
    """An `Evaluate` with named sets; `embrew.evaluation.dev.dev_sets` returns one."""

    @property
    def metrics(self) -> list[str]:
        """Names of the scores that can choose the best step."""

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Kind, split, metric and, once known, size of each set, by the name of its score."""

    def __call__(self, encoder: Encoder) -> Scores:
        """Return the scores of an encoder."""

    def texts(self) -> Mapping[str, Iterable[str]]:
        """Return the texts of each set."""


def scores_line(scores: Mapping[str, float], base: Mapping[str, float]) -> str:
    """Return scores as a line: `dev 0.612 (base 0.588)  guard 0.701 (base 0.744)  got worse: STSB 0.744 → 0.701`.

    The line has the means of the dev and of the guard sets, alignment and uniformity if they were computed, the share
    of the gap closed of a compression stage, and each guard set whose score is below the base's.
    """
    said = []
    for name in ("dev", "guard", "alignment", "uniformity"):
        if name in scores:
            before = f" (base {base[name]:.3f})" if name in base else ""
            said.append(f"{name} {scores[name]:.3f}{before}")
    if GAP in scores:
        said.append(gap_words(scores[GAP], scores[GAP_OTHER]))
    worse = below_base(scores, base)
    if worse:
        drops = [f"{name.removeprefix(GUARD)} {base[name]:.3f} → {scores[name]:.3f}" for name in worse]
        said.append(f"got worse: {', '.join(drops)}")
    return "  ".join(said)


def gap_words(own: float, other: float) -> str:
    """Return the share of the gap closed in words.

    >>> gap_words(0.231, -0.05)
    "share of the gap closed 0.23 (another text's memory −0.05)"
    """
    return f"share of the gap closed {signed(own)} (another text's memory {signed(other)})"


def signed(share: float) -> str:
    """Return a share with two digits and a minus sign."""
    return f"{share:.2f}".replace("-", "−")


def without_gap(scores: Mapping[str, float]) -> Scores:
    """Return the scores of dev and guard sets."""
    return {name: value for name, value in scores.items() if name not in (GAP, GAP_OTHER)}


def set_lines(about: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a line per set: `dev set STSB: split dev, 1500 pairs, Spearman`."""
    lines = []
    for name, facts in about.items():
        what = f"guard set {name.removeprefix(GUARD)}" if name.startswith(GUARD) else f"dev set {name}"
        lines.append(f"{what}: split {facts['split']}, {facts.get('size', 'size unknown')}, {facts['metric']}")
    return lines


def below_base(scores: Mapping[str, float], base: Mapping[str, float]) -> list[str]:
    """Return the names, among `dev` and the guard sets, whose score is below the base's."""
    looked_at = [name for name in scores if name == "dev" or name.startswith(GUARD)]
    return [name for name in looked_at if name in base and scores[name] < base[name]]
