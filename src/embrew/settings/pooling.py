"""How token states become one vector: the modes of pooling, and what can be set. No torch.

A mode is one entry of `MODES` and its name in `PoolingMode`; everything else reads these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import ConfigDict, Field, StrictInt

PoolingMode = Literal["cls", "last", "mean", "weighted_mean", "concat"]
Over = Literal["all", "text", "echo", "memory"]
Count = Annotated[int, Field(gt=0, strict=True)]


class Mode(NamedTuple):
    """A way to pool.

    Attributes:
        weights: from `chosen`, the positions that are pooled, and `rank`, their number counted from 1, both
            `(batch, tokens)`: the weight of each position, before weights are divided by their sum.
        stock: the mode's name in Sentence-Transformers; None: there is none.
        over: the one segment that it goes with; None: any.
    """

    weights: Callable[[Any, Any], Any]
    stock: str | None = None
    over: Over | None = None


MODES: dict[str, Mode] = {
    "cls": Mode(lambda chosen, rank: chosen & (rank == 1), stock="cls", over="all"),
    "last": Mode(lambda chosen, rank: chosen & (rank == rank[:, -1:]), stock="lasttoken"),
    "mean": Mode(lambda chosen, rank: chosen, stock="mean"),
    "weighted_mean": Mode(lambda chosen, rank: chosen * rank, stock="weightedmean"),
    "concat": Mode(lambda chosen, rank: chosen, over="memory"),
}


@dataclass(frozen=True)
class Pooling:
    """`cls` (the first) | `last` | `mean` | `weighted_mean` (SGPT) of the states of one segment, or of all of them.

    `concat` concatenates the states of k memory tokens, in their order: k times the dimensions of a state. Cosines of
    such vectors are means of the cosines of single tokens, weighted by the lengths of their states.

    A text without any position to pool (an empty text pooled over `text`) gives the zero vector, which has cosine 0
    with everything, as stock Sentence-Transformers gives it.

    Attributes:
        mode: how states are combined; see `MODES`.
        over: the segment whose states are pooled.
        slots: with `over="memory"`, which of the memory tokens are pooled, counted from 0; None: all of them.
        latents: states pass through a `LatentAttention` with that many latents first (NV-Embed); None: they do not.
        heads: its attention heads; 8 by default.
        head_width: width of a head; None: that of a state.
    """

    mode: PoolingMode
    over: Over = "all"
    slots: tuple[StrictInt, ...] | None = None
    latents: Count | None = None
    heads: Count | None = None
    head_width: Count | None = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"pooling.mode={self.mode!r}; choose from {', '.join(MODES)}")
        if self.over not in get_args(Over):
            raise ValueError(f"pooling.over={self.over!r}; choose from {', '.join(get_args(Over))}")
        if self.latents is None and (self.heads or self.head_width):
            raise ValueError("pooling.heads and head_width belong to latents; give latents too, or leave them out")
        only = MODES[self.mode].over
        if only is not None and self.over != only:
            raise ValueError(
                f"pooling.mode={self.mode} over {self.over!r}; it pools over {only!r} only: set over: {only}"
            )
        if self.slots is not None:
            object.__setattr__(self, "slots", tuple(self.slots))  # JSON has lists only
            if self.over != "memory":
                raise ValueError(f"pooling.slots={self.slots} over {self.over!r}; slots choose among memory tokens")

    def check_slots(self, memory_tokens: int) -> None:
        """Raise where an encoder with that many memory tokens lacks one of the slots."""
        if self.slots is not None and not (self.slots and set(self.slots) <= set(range(memory_tokens))):
            raise ValueError(f"pooling.slots={self.slots}; choose one or more from 0 to {memory_tokens - 1}")

    def dimensions(self, width: int, memory_tokens: int) -> int:
        """Return the dimensions of what is pooled from states of a width."""
        if self.mode != "concat":
            return width
        return width * (memory_tokens if self.slots is None else len(set(self.slots)))

    def as_dict(self) -> dict[str, Any]:
        """Return the settings that are set, for JSON."""
        values = {**asdict(self), "slots": None if self.slots is None else list(self.slots)}
        return {key: value for key, value in values.items() if value is not None}
