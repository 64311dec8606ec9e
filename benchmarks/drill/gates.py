"""The gates that only a GPU can settle, G1 to G7, from the figures of the drill's items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from drill.record import Result

Verdict = Literal["pass", "miss", "not run"]
Figures = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """A required figure.

    Attributes:
        name: of the gate.
        what: is measured.
        bound: that must be reached.
        items: whose figures are read.
        read: from the figures of these items to the measured one; None: it was not measured.
        most: whether the bound is an upper one.
        unit: of the figure: a ratio, or a share.
    """

    name: str
    what: str
    bound: float
    items: tuple[str, ...]
    read: Callable[..., float | None]
    most: bool = False
    unit: Literal["times", "share"] = "times"

    def words(self, value: float) -> str:
        """Return a figure as it is shown."""
        return f"{value:.2f}×" if self.unit == "times" else f"{100 * value:.1f} %"

    def row(self, items: Mapping[str, Result], *, pretended: bool) -> dict[str, Any]:
        """Return the gate with what was measured and the verdict."""
        missing = [name for name in self.items if items.get(name, {}).get("status") not in ("passed", "failed")]
        given = [items.get(name, {}).get("figures") or {} for name in self.items]
        value = None if missing else self.read(*given)
        verdict: Verdict = "not run"
        if value is not None and not pretended:
            verdict = "pass" if (value <= self.bound if self.most else value >= self.bound) else "miss"
        why = ""
        if missing:
            why = "; ".join(f"{name}: {_status(items.get(name))}" for name in missing)
        elif value is None:
            why = str(given[0].get("gate_reason", "its item gave no figure"))
        elif pretended:
            why = "pretended device"
        required = f"{'≤' if self.most else '≥'} {self.words(self.bound)}"
        return {
            "gate": self.name,
            "what": self.what,
            "required": required,
            "measured": value,
            "shown": "" if value is None else self.words(value),
            "verdict": verdict,
            "why": why,
        }


def _status(found: Result | None) -> str:
    if not found:
        return "not run"
    return f"{found['status']}" + (f" ({found['reason']})" if found.get("reason") else "")


def measure(name: str, begins: str) -> Callable[[Figures], float | None]:
    """Return a reader of a ratio among the measures of a benchmark, by the beginning of its words."""

    def read(figures: Figures) -> float | None:
        found = [one["ratio"] for one in figures.get("measures", []) if one["what"].startswith(begins)]
        return found[0] if found else None

    return read


def figure(name: str) -> Callable[[Figures], float | None]:
    """Return a reader of a named figure."""
    return lambda figures: figures.get(name)


def worst_idle(*several: Figures) -> float | None:
    """Return the largest idle share of some items."""
    shares = [figures["idle_share"] for figures in several if figures.get("idle_share") is not None]
    return max(shares) if len(shares) == len(several) else None


def share_of_step(loss: Figures, step: Figures) -> float | None:
    """Return the time of ESE's targets as a share of its training step."""
    if "target_ms" not in loss or "step_ms" not in step:
        return None
    return float(loss["target_ms"]) / float(step["step_ms"])


def gates(methods: Iterable[str]) -> tuple[Gate, ...]:
    """Return all gates; `methods`: items of trainings."""
    ctkd = "bench-ctkd-gpu-1.7b"
    return (
        Gate(name="G1", what="encode, 0.6B, 512-token texts, of the matmul ceiling", bound=0.5, unit="share",
             items=("encode-0.6b",), read=figure("share_512")),
        Gate(name="G1", what="encode, 7B, 512-token texts, of the matmul ceiling", bound=0.5, unit="share",
             items=("encode-7b",), read=figure("share_512")),
        Gate(name="G2", what="encode, 50-token texts, Sentence-Transformers float16 with flash-attention ÷ ours",
             bound=1.2, items=("encode-peer",), read=figure("ratio_50")),
        Gate(name="G2", what="encode, 512-token texts, Sentence-Transformers float16 with flash-attention ÷ ours",
             bound=1.0, items=("encode-peer",), read=figure("ratio_512")),
        Gate(name="G3", what="distillation step, 1.7B: peak memory, two copies ÷ ours", bound=2.5,
             items=(ctkd,), read=measure(ctkd, "peak memory")),
        Gate(name="G3", what="distillation step, 1.7B: time per token, two copies ÷ ours, best micro-batch of each",
             bound=1.2, items=(ctkd,), read=measure(ctkd, "step time")),
        Gate(name="G4", what="bottleneck step, 2,048 tokens: dense mask ÷ two causal calls", bound=1.5,
             items=("bottleneck-step",), read=figure("ratio")),
        Gate(name="G5", what="prompt of 256 tokens, texts of 32: prompt run for every text ÷ ours", bound=5.0,
             items=("prefix",), read=figure("ratio")),
        Gate(name="G6", what="ESE's targets of 28 layers: loop of svd_lowrank ÷ ours", bound=3.0,
             items=("espresso-targets",), read=figure("ratio")),
        Gate(name="G6", what="ESE's targets as a share of the training step", bound=0.03, most=True, unit="share",
             items=("espresso-targets", "train-ese"), read=share_of_step),
        Gate(name="G7", what="encode, 0.6B: time in which the GPU is idle", bound=0.1, most=True, unit="share",
             items=("encode-0.6b",), read=worst_idle),
        Gate(name="G7", what="training, the method with the largest: time in which the GPU is idle", bound=0.1,
             most=True, unit="share", items=tuple(methods), read=worst_idle),
    )  # fmt: skip
