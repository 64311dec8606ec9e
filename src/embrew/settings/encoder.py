"""How an encoder reads texts and what it makes of them: checked settings, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import ceil
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import (
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    ValidationError,
    field_validator,
    model_validator,
)

from embrew.settings.validation import Config, explain
from embrew.text.pattern import Pattern, WordsAfter, check_learned, check_words_after, split_pattern
from embrew.text.texts import SIDES, Preparation, lengths_of

PoolingMode = Literal["cls", "last", "mean", "weighted_mean", "concat"]
Over = Literal["all", "text", "echo", "memory"]
Count = Annotated[int, Field(gt=0, strict=True)]


class Mode(NamedTuple):
    """A way to pool.

    Attributes:
        weights: function from `chosen`, the positions that are pooled, and `rank`, their number counted from 1, both
            `(batch, tokens)`, to the weight of each position, before weights are divided by their sum.
        stock: name of the mode in Sentence-Transformers; None: there is none.
        over: the only segment that it goes with; None: any.
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


Activation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]


@dataclass(frozen=True)
class Dense:
    """A layer on the pooled vector: `activation(W v + b)`, as Sentence-Transformers' module of this name.

    Attributes:
        dimensions: dimensions of its output.
        bias: whether there is a b.
        activation: activation function of each dimension.
    """

    dimensions: Count
    bias: StrictBool = True
    activation: Activation = "tanh"
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Pooling:
    """`cls` (the first) | `last` | `mean` | `weighted_mean` (SGPT) of the states of one segment, or of all of them.

    `concat` concatenates the states of k memory tokens, in their order: k times the dimensions of a state. Cosines of
    such vectors are means of the cosines of single tokens, weighted by the lengths of their states.

    A text without any position to pool (an empty text pooled over `text`) gives the zero vector, which has cosine 0
    with everything, as stock Sentence-Transformers gives it; with `center`, minus the mean of the others.

    Attributes:
        mode: way to combine states; see `MODES`.
        over: segment whose states are pooled.
        slots: with `over="memory"`, indices of the pooled memory tokens, from 0; None: all of them.
        latents: number of latents of a `LatentAttention` before pooling (NV-Embed); None: no such layer.
        heads: number of its attention heads; 8 by default.
        head_width: width of one of its heads; None: that of a state.
        projection: dimensions after a learned linear layer before pooling; None: no such layer.
        dense: layers after pooling, in order, those of a Sentence-Transformers model; None: there are none.
        center: subtract the mean of training texts' vectors, after all layers and before truncation (`Center`).
        components: with `center`, number of their first principal components that are subtracted too; None: none.
    """

    mode: PoolingMode
    over: Over = "all"
    slots: tuple[StrictInt, ...] | None = None
    latents: Count | None = None
    heads: Count | None = None
    head_width: Count | None = None
    projection: Count | None = None
    dense: tuple[Dense, ...] | None = None
    center: StrictBool | None = None
    components: Annotated[int, Field(ge=0, strict=True)] | None = None
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"pooling.mode={self.mode!r}; choose from {', '.join(MODES)}")
        if self.over not in get_args(Over):
            raise ValueError(f"pooling.over={self.over!r}; choose from {', '.join(get_args(Over))}")
        if self.latents is None and (self.heads or self.head_width):
            raise ValueError("pooling.heads and head_width belong to latents; give latents too, or leave them out")
        if sum(layer is not None for layer in (self.latents, self.projection, self.dense or None)) > 1:
            raise ValueError("pooling.latents, projection and dense are trained layers of their own; give one of them")
        if self.dense is not None:
            layers = (Dense(**layer) if isinstance(layer, Mapping) else layer for layer in self.dense)
            object.__setattr__(self, "dense", tuple(layers) or None)
        if self.dense and self.mode == "concat":
            raise ValueError("pooling.dense takes one vector of a state's width; leave out dense, or mode: concat")
        if self.components and not self.center:
            raise ValueError(f"pooling.components={self.components} are subtracted after a mean; set center: true too")
        for name in ("center", "components"):  # one form of settings that are equal
            object.__setattr__(self, name, getattr(self, name) or None)
        only = MODES[self.mode].over
        if only is not None and self.over != only:
            raise ValueError(
                f"pooling.mode={self.mode} over {self.over!r}; it pools over {only!r} only: set over: {only}"
            )
        if self.slots is not None:
            object.__setattr__(self, "slots", tuple(self.slots))  # JSON has lists only
            if self.over != "memory":
                raise ValueError(f"pooling.slots={self.slots} over {self.over!r}; slots choose among memory tokens")

    def dimensions(self, width: int, memory_tokens: int) -> int:
        """Return the dimensions of what is pooled from states of a width."""
        width = self.projection or width
        if self.mode == "concat":
            width *= memory_tokens if self.slots is None else len(set(self.slots))
        return self.dense[-1].dimensions if self.dense else width

    @property
    def uncentered(self) -> Pooling:
        """The same pooling without `center`."""
        return replace(self, center=None, components=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings that are set, for JSON."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {key: value for key, value in values.items() if value is not None}


Format = Literal["pair", "instruction", "query", "passage", "one_instruction"]
Compress = Literal["pair", "all", "query", "passage", "none"]
Part = Literal["instruction", "query", "passage"]
PARTS_AFTER_INSTRUCTION: dict[str, tuple[Part, ...]] = {  # parts of a demonstration after the instruction, by format
    "pair": ("query", "passage"),
    "one_instruction": ("query", "passage"),
    "instruction": (),
    "query": ("query",),
    "passage": ("passage",),
}
VECTOR_PARTS: dict[str, tuple[Part, ...]] = {
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
        compress: parts of it that are vectors, the rest being text: `pair`: query and passage; `all`: the instruction
            too; `query`; `passage`; `none` (Table 4b).
        every: number of tokens of a text per vector (Table 3, sample-n); None: one vector per text.
        learnable: number of pairs of learned vectors that replace the demonstrations' own (Table 5).
        normalize: whether vectors have unit length before they are projected.
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
        parts = PARTS_AFTER_INSTRUCTION[self.format]
        if self.compress != "none" and parts and not set(parts) & set(VECTOR_PARTS[self.compress]):
            raise ValueError(
                f"demonstrations.format={self.format} shows no {self.compress}, which compress={self.compress} makes a "
                "vector; choose compress: pair, or none for text"
            )
        if self.learnable and (len(parts) < 2 or self.compress != "pair"):
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
        if part != "instruction" and part not in PARTS_AFTER_INSTRUCTION[self.format]:
            return None
        return "vector" if part in VECTOR_PARTS[self.compress] else "text"

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


AttentionMode = Literal["causal", "bidirectional", "memory_causal"]
Length = Annotated[int, Field(gt=0)]
ALWAYS_WRITTEN = ("template", "words_after", "attention", "pooling", "prompts", "max_length", "normalize")
"""Settings that every folder's JSON holds; the others are written only where they are not at their default."""


class EncoderSettings(Config):
    """How an encoder reads texts, and what it makes of them.

    A new setting is one field here; recipes, `Encoder.from_pretrained`, `embrew.json`, verification, and the comparison
    of an encoder with a recipe have it then. The code that uses it reads `encoder.settings`.

    Attributes:
        template: pattern of a row (`text.pattern`); several: the embedding is the mean over them.
        preparation: change of a text before it is tokenised (`text.texts`).
        memory_ratio: number of tokens of a text per memory token; None: every text gets all memory tokens.
        words_after: tokenisation of words after the text; None: as the template requires.
        attention: attention pattern: `causal`, `bidirectional` or `memory_causal` (`model.attention`).
        pooling: way from token states to one vector.
        prompts: texts that fill `{instruction}`, by name; `query` and `document` are always there.
        default_prompt_name: name of the prompt that is used where none is named; None: none.
        max_length: limits in tokens, everything included, of queries and of documents.
        normalize: whether vectors have unit length.
        demonstrations: settings of demonstrations in a prompt; None: the encoder reads none.
        space: `model_hash` of the model whose documents queries are compared with; None: the encoder's own.
    """

    template: str | Annotated[list[str], Field(min_length=1)] = "{instruction}{text}"
    preparation: Preparation = "none"
    memory_ratio: Annotated[int | float, Field(gt=0)] | None = None
    words_after: WordsAfter | None = None
    attention: AttentionMode = "causal"
    pooling: Pooling = Pooling("last")
    prompts: dict[str, str] = dict.fromkeys(SIDES, "")
    default_prompt_name: str | None = None
    max_length: dict[str, Length] = dict.fromkeys(SIDES, 512)
    normalize: bool = True
    demonstrations: Demonstrations | None = None
    space: str | None = None

    @model_validator(mode="after")
    def _vectors_fit(self) -> Self:
        if self.demonstrations is not None and self.demonstrations.projects and self.pooling.projection is not None:
            raise ValueError("pooling.projection and demonstrations as vectors, which need a state's width; choose one")
        if self.demonstrations is not None and self.demonstrations.projects and self.pooling.center:
            raise ValueError("pooling.center and demonstrations as vectors, which were trained uncentred; choose one")
        if self.space is not None and self.pooling.center:
            raise ValueError("pooling.center: its queries are compared with another model's documents; centre that one")
        return self

    @classmethod
    def create(cls, **values: Any) -> Self:
        """Return checked settings from what Python callers give.

        That is a mapping or a mode's name for `pooling`, one number for `max_length`, a tuple for `template`.

        Raises:
            TypeError: a keyword that is no setting, or a length that is no whole number.
            ValueError: a value that is not allowed, or settings that do not go together.
        """
        unknown = [name for name in values if name not in cls.model_fields]
        if unknown:
            raise TypeError(f"{unknown[0]} is not a setting of an encoder; choose from {', '.join(cls.model_fields)}")
        if isinstance(values.get("pooling"), str):
            values["pooling"] = {"mode": values["pooling"]}
        if isinstance(template := values.get("template"), list | tuple):
            values["template"] = template[0] if len(template) == 1 else list(template)  # hashes have one as a string
        if "max_length" in values:
            values["max_length"] = lengths_of(values["max_length"])
        if isinstance(values.get("prompts", {}), Mapping | None):
            values["prompts"] = {**dict.fromkeys(SIDES, ""), **(values.get("prompts") or {})}
        try:
            settings = cls.model_validate(values)
            words_after = check_words_after(settings.words_after, settings.templates)
            return settings.model_copy(update={"words_after": words_after})
        except ValidationError as error:
            raise ValueError(explain(error, cls, values)) from None

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Self:
        """Return the settings in a folder's JSON; its other keys are left out."""
        return cls.create(**{name: saved[name] for name in cls.model_fields if name in saved})

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON; `from_dict` reads them back."""
        defaults = {name: field.default for name, field in EncoderSettings.model_fields.items()}
        values = {name: getattr(self, name) for name in ALWAYS_WRITTEN}
        values |= {name: value for name, value in self if name not in values and value != defaults[name]}
        return {name: plain(value) for name, value in values.items()}

    def replace(self, **changes: Any) -> Self:
        """Return checked settings with some of them changed."""
        return type(self).create(**{**dict(self), **changes})

    def differences(self, other: EncoderSettings) -> dict[str, tuple[Any, Any]]:
        """Return each setting in which `other` differs, with both values."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in EncoderSettings.model_fields}
        return {name: (plain(ours), plain(theirs)) for name, (ours, theirs) in pairs.items() if ours != theirs}

    @property
    def uncentered(self) -> Self:
        """The same settings without `pooling.center`."""
        return self.replace(pooling=self.pooling.uncentered) if self.pooling.center else self

    @property
    def templates(self) -> list[str]:
        """`template` as a list, whether one is given or several."""
        return [self.template] if isinstance(self.template, str) else self.template

    @property
    def template_options(self) -> dict[str, Any]:
        """Keyword arguments of `Template`."""
        return {name: getattr(self, name) for name in ("preparation", "memory_ratio", "words_after")}

    @property
    def patterns(self) -> list[Pattern]:
        """The templates in their parts."""
        return [split_pattern(template) for template in self.templates]

    def check_learned_tokens(self, memory_tokens: int, soft_prompt_tokens: int) -> None:
        """Raise unless these settings go with that many memory tokens, and tokens of a soft prompt."""
        for template in self.templates:
            check_learned(template, memory_tokens, soft_prompt_tokens)
        slots = self.pooling.slots
        if slots is not None and not (slots and set(slots) <= set(range(memory_tokens))):
            raise ValueError(f"pooling.slots={slots}; choose one or more from 0 to {memory_tokens - 1}")

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str | list[str]) -> str | list[str]:
        for pattern in [template] if isinstance(template, str) else template:
            split_pattern(pattern)
        return template

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        has_memory = all("memory" in pattern.tail for pattern in self.patterns)
        has_echo = all(pattern.between is not None for pattern in self.patterns)
        if self.pooling.over == "memory" and not has_memory:
            raise ValueError(
                f"pooling.over='memory' with template={self.template!r}; pooling over memory needs memory_tokens of 1 "
                "or more and {memory} at the end of the template"
            )
        if self.pooling.over == "echo" and not has_echo:
            raise ValueError(f"pooling.over='echo' with template={self.template!r}; put {{echo}} after {{text}}")
        if self.memory_ratio is not None and not has_memory:
            raise ValueError(
                f"memory_ratio={self.memory_ratio:g} without memory tokens; it says how many of them a text gets: set "
                "memory_tokens to the most, and put {memory} at the end of the template"
            )
        if self.memory_ratio is not None and any(pattern.between is not None for pattern in self.patterns):
            raise ValueError(
                f"memory_ratio={self.memory_ratio:g} with template={self.template!r}; it goes without {{echo}}"
            )
        if self.demonstrations and (len(self.patterns) > 1 or "{instruction}" in self.patterns[0].after):
            raise ValueError(
                f"demonstrations with template={self.template!r}; demonstrations come before the text, each with its "
                "instruction: give one template, with {instruction} before {text}"
            )
        if self.default_prompt_name is not None and self.default_prompt_name not in dict(self.prompts):
            names = ", ".join(sorted(dict(self.prompts)))
            raise ValueError(f"default_prompt_name={self.default_prompt_name!r}; choose from {names}")
        return self


def plain(value: Any) -> Any:
    """Return a setting's value as JSON has it, copied."""
    if isinstance(value, Pooling | Demonstrations):
        return value.as_dict()
    return value.copy() if isinstance(value, dict | list) else value
