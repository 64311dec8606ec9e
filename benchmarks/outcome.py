"""What a benchmark finds: ratios against their bars, and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from work import Work

SPREAD = 1.6  # largest ÷ smallest paired ratio above which a round of pairs proves nothing
Verdict = Literal["pass", "miss", "inconclusive"]
Unit = Literal["s", "ms", "us"]
FACTORS: dict[str, float] = {"s": 1.0, "ms": 1e3, "us": 1e6}


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The ratio that must be reached, the one aimed at, and the one hoped for."""

    gate: float
    target: float
    stretch: float | None = None

    def reached(self, ratio: float) -> str:
        """The highest of the three that a ratio reaches, in words."""
        if self.stretch is not None and ratio >= self.stretch:
            return "stretch goal reached"
        if ratio >= self.target:
            return "target reached"
        return "gate reached, target missed" if ratio >= self.gate else "gate missed"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One ratio against its bar.

    Attributes:
        what: the quantity.
        unit: of `ours` and `peer`.
        ours, peer: median, or peak.
        ratio: peer ÷ ours; for timings the median of the paired ratios.
        bar: gate, target, stretch.
        low, high: smallest and largest paired ratio.
        cpu_ratio: the same median over CPU seconds.
        pairs: the paired ratios, in order.
        steady: whether the pairs agree well enough for a verdict.
        work: what a call of ours and of the peer computes, where it was counted.
    """

    what: str
    unit: str
    ours: float
    peer: float
    ratio: float
    bar: Bar
    low: float | None = None
    high: float | None = None
    cpu_ratio: float | None = None
    pairs: tuple[float, ...] = ()
    steady: bool = True
    work: tuple[Work, Work] | None = None

    @classmethod
    def of(cls, what: str, unit: str, ours: float, peer: float, bar: Bar) -> Measure:
        """Two amounts, whose ratio is peer ÷ ours."""
        return cls(what=what, unit=unit, ours=ours, peer=peer, ratio=peer / ours, bar=bar)

    @property
    def verdict(self) -> Verdict:
        """Pass or miss of the gate; neither where the pairs disagree."""
        if not self.steady:
            return "inconclusive"
        return "pass" if self.ratio >= self.bar.gate else "miss"

    def made_of(self, ceilings: Mapping[str, float]) -> dict[str, dict[str, Any]]:
        """Return what either side computed in its time, by name, where anything was counted."""
        if self.work is None or self.unit not in FACTORS:
            return {}
        times = (self.ours / FACTORS[self.unit], self.peer / FACTORS[self.unit])
        sides = zip(("ours", "peer"), self.work, times, strict=True)
        return {name: found for name, side, seconds in sides if (found := side.at(seconds, ceilings))}

    @property
    def words(self) -> str:
        """Ratio and verdict in one line."""
        span = "" if self.low is None else f" ({self.low:.2f} to {self.high:.2f})"
        stretch = "" if self.bar.stretch is None else f", stretch {self.bar.stretch:g}"
        said = self.bar.reached(self.ratio) if self.steady else f"pairs spread by more than {SPREAD}"
        bars = f"gate {self.bar.gate:g}, target {self.bar.target:g}{stretch}"
        return f"{self.what}: {self.ratio:.2f}{span}; {bars}: {self.verdict}, {said}"


@dataclass(kw_only=True)
class Outcome:
    """What a benchmark found: how equal both sides are, the ratios, and whatever else explains them."""

    equality: dict[str, float]
    measures: list[Measure]
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """The worst of its measures."""
        worst: tuple[Verdict, ...] = ("miss", "inconclusive", "pass")
        return min((measure.verdict for measure in self.measures), key=worst.index)
