"""Settings of demonstrations: which of their parts a prompt holds, each as text or as a vector. No torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from pydantic import ConfigDict, Field, StrictBool

Format = Literal["pair", "instruction", "query", "passage", "one_instruction"]
Compress = Literal["pair", "all", "query", "passage", "none"]
Count = Annotated[int, Field(gt=0, strict=True)]
Part = Literal["instruction", "query", "passage"]
SHOWN: dict[str, tuple[Part, ...]] = {  # parts of a demonstration after the instruction, by format
    "pair": ("query", "passage"),
    "one_instruction": ("query", "passage"),
    "instruction": (),
    "query": ("query",),
    "passage": ("passage",),
}
VECTORS: dict[str, tuple[Part, ...]] = {
    "pair": ("query", "passage"),
    "all": ("instruction", "query", "passage"),
    "query": ("query",),
    "passage": ("passage",),
    "none": (),
}


class Demonstration(NamedTuple):
    """A query of a task, and a text that answers it."""

    query: str
    passage: str


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """How an encoder reads demonstrations: `[BOS] (I q₁ p₁) … (I q_k p_k) I X EOS`.

    EPIC ("Embedding-based In-Context Prompt Training for Enhancing LLMs as Text Encoders"), Eqs. 3–4 and Table 4; with
    `compress: none` the demonstrations are plain text, as in bge-en-icl ("Making Text Embedders Few-Shot Learners",
    arXiv 2409.15700).

    Attributes:
        format: parts of one demonstration in the prompt: `pair`: I q p; `query`: I q; `passage`: I p; `instruction`: I
            alone; `one_instruction`: q p, after a single I (Table 4a).
        compress: what of it is a vector, the rest being text: `pair`: query and passage; `all`: the instruction too;
            `query`; `passage`; `none` (Table 4b).
        every: one vector per that many tokens of a text (Table 3, sample-n); None: one per text.
        learnable: pairs of learned vectors that replace the demonstrations' own (Table 5).
        normalize: vectors have unit length before they are projected.
        between: words between a query and a passage given as text, unless the instruction has them.
        end: words after a passage given as text.
        text_tokens: limit in tokens of a query, and of a passage, given as text.
        budget: limit in tokens of all demonstrations of a prompt together; those beyond it are left out.
    """

    format: Format = "pair"
    compress: Compress = "pair"
    every: Count | None = None
    learnable: Count | None = None
    normalize: StrictBool = False
    between: str = "\n"
    end: str = "\n\n"
    text_tokens: Count = 256
    budget: Count | None = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        for name, allowed in (("format", get_args(Format)), ("compress", get_args(Compress))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"demonstrations.{name}={getattr(self, name)!r}; choose from {', '.join(allowed)}")
        for name in ("every", "learnable", "text_tokens", "budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"demonstrations.{name}={value}; give 1 or more")
        shown = SHOWN[self.format]
        if self.compress != "none" and shown and not set(shown) & set(VECTORS[self.compress]):
            raise ValueError(
                f"demonstrations.format={self.format} shows no {self.compress}, which compress={self.compress} makes a "
                "vector; choose compress: pair, or none for text"
            )
        if self.learnable and (len(shown) < 2 or self.compress != "pair"):
            raise ValueError(
                f"demonstrations.learnable={self.learnable} replaces q and p, so it goes with compress: pair "
                f"and format: pair or one_instruction, not compress: {self.compress} and format: {self.format}"
            )
        if self.every and not self.projects:
            raise ValueError(
                f"demonstrations.every={self.every} counts vectors made of demonstrations, and there are none"
            )

    def form(self, part: Part) -> Literal["text", "vector"] | None:
        """Return the form of a part of a demonstration in the prompt; None: the prompt does not hold it."""
        if part != "instruction" and part not in SHOWN[self.format]:
            return None
        return "vector" if part in VECTORS[self.compress] else "text"

    @property
    def vectors(self) -> tuple[Part, ...]:
        """The parts that are vectors, in the order `query`, `passage`, `instruction`."""
        order: tuple[Part, ...] = ("query", "passage", "instruction")
        return tuple(part for part in order if self.form(part) == "vector")

    @property
    def projects(self) -> bool:
        """Whether embeddings of demonstrations are projected into the prompt, so that there is a projection."""
        return bool(self.vectors) and self.learnable is None

    def slots(self, length: int) -> int:
        """Return the number of vectors that represent a text of that many tokens.

        >>> Demonstrations(every=16).slots(33)
        3
        """
        return 1 if self.every is None else max(1, ceil(length / self.every))

    def as_dict(self) -> dict[str, Any]:
        """Return the settings that are not at their defaults, for JSON."""
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}
