"""A recipe: an encoder and the stages that train it, as plain checked data. Importing this needs no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from embrew.modeling.demonstrations import Compress, Demonstrations, Format
from embrew.modeling.pattern import split_pattern
from embrew.overrides import apply_overrides, dump_yaml, line_of, parse_yaml
from embrew.recipe_errors import KeyPath, dotted, explain
from embrew.shipped import list_shipped, read_shipped

LAUNCH = "launch/"  # accelerate's configurations, in a folder beside the recipes


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class PoolingConfig(_Config):
    """How token states become one vector."""

    mode: Literal["cls", "last", "mean", "weighted_mean", "concat"]
    over: Literal["all", "text", "echo", "memory"] = "all"
    latents: Annotated[int, Field(gt=0)] | None = None
    heads: Annotated[int, Field(gt=0)] | None = None
    head_width: Annotated[int, Field(gt=0)] | None = None


class PromptsConfig(_Config):
    """What fills `{instruction}` for queries and for documents."""

    query: str = ""
    document: str = ""


class MaxLengthConfig(_Config):
    """Limits in tokens, everything included."""

    query: Annotated[int, Field(gt=0)] = 512
    document: Annotated[int, Field(gt=0)] = 512


class DemonstrationsConfig(_Config):
    """How demonstrations of a task stand in a prompt; see `modeling.demonstrations`."""

    format: Format = "pair"
    compress: Compress = "pair"
    every: Annotated[int, Field(gt=0)] | None = None
    learnable: Annotated[int, Field(gt=0)] | None = None
    normalize: bool = False
    between: str = "\n"
    end: str = "\n\n"
    text_tokens: Annotated[int, Field(gt=0)] = 256
    budget: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check_together(self) -> DemonstrationsConfig:
        Demonstrations(**self.model_dump())
        return self


class EncoderConfig(_Config):
    """What turns a text into a vector: a language model or encoder, a template, attention and pooling."""

    model: str
    revision: str | None = None
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attn_implementation: str | None = None
    template: str | Annotated[list[str], Field(min_length=1)] = "{instruction}{text}"
    preparation: Literal["none", "sentence"] = "none"
    memory_tokens: Annotated[int, Field(ge=0)] = 0
    memory_ratio: Annotated[float, Field(gt=0)] | None = None
    memory_init: Literal["vocab", "noise", "mean"] = "vocab"
    soft_prompt_tokens: Annotated[int, Field(gt=0)] | None = None
    attention: Literal["causal", "bidirectional", "memory_causal"] = "causal"
    pooling: PoolingConfig
    prompts: PromptsConfig = PromptsConfig()
    default_prompt_name: Literal["query", "document"] | None = None
    max_length: MaxLengthConfig = MaxLengthConfig()
    normalize: bool = True
    demonstrations: DemonstrationsConfig | None = None
    lora: dict[str, Any] | None = None
    train_embeddings: Literal["memory", "full"] = "memory"
    trust_remote_code: bool = False

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str | list[str]) -> str | list[str]:
        for pattern in [template] if isinstance(template, str) else template:
            split_pattern(pattern)
        return template

    @property
    def templates(self) -> list[str]:
        """`template` as a list, whether one is given or several."""
        return [self.template] if isinstance(self.template, str) else self.template

    @model_validator(mode="after")
    def _check_together(self) -> EncoderConfig:
        patterns = [split_pattern(template) for template in self.templates]
        has_memory = all("memory" in pattern.tail for pattern in patterns)
        if self.pooling.over == "memory" and not (has_memory and self.memory_tokens):
            raise ValueError(
                f"pooling.over='memory' with memory_tokens={self.memory_tokens} and template={self.template!r}; "
                "pooling over memory needs memory_tokens of 1 or more and {memory} at the end of the template"
            )
        if self.pooling.mode == "concat" and self.pooling.over != "memory":
            raise ValueError(f"pooling.mode=concat over {self.pooling.over!r}; it is for memory tokens: over: memory")
        if has_memory != bool(self.memory_tokens):
            raise ValueError(
                f"template={self.template!r} and memory_tokens={self.memory_tokens} do not go together; "
                "a template with {memory} needs memory_tokens of 1 or more, one without needs 0"
            )
        if self.memory_ratio is not None and not has_memory:
            raise ValueError(
                f"memory_ratio={self.memory_ratio:g} without memory tokens; it says how many of them a text gets: set "
                "memory_tokens to the most, and put {memory} at the end of the template"
            )
        if all(pattern.soft_prompt for pattern in patterns) != bool(self.soft_prompt_tokens):
            raise ValueError(
                f"template={self.template!r} and soft_prompt_tokens={self.soft_prompt_tokens} do not go together; "
                "a template with {soft_prompt} needs 1 or more, one without needs none"
            )
        if self.attention == "memory_causal" and not has_memory:
            raise ValueError(
                "attention='memory_causal' with memory_tokens=0; it orders memory tokens among themselves, "
                "so give memory_tokens and {memory}, or choose causal or bidirectional"
            )
        if self.pooling.over == "echo" and any(pattern.between is None for pattern in patterns):
            raise ValueError(f"pooling.over='echo' with template={self.template!r}; put {{echo}} after {{text}}")
        if self.demonstrations and (len(patterns) > 1 or "{instruction}" in patterns[0].after):
            raise ValueError(
                f"encoder.demonstrations with template={self.template!r}; demonstrations stand before the text, each "
                "with its instruction: give one template, with {instruction} before {text}"
            )
        if not any(pattern.has_instruction for pattern in patterns) and (self.prompts.query or self.prompts.document):
            raise ValueError(f"prompts are set, but template={self.template!r} has no {{instruction}} to put them in")
        return self


class DataConfig(_Config):
    """One data set: where it lies, which rows, and which column is what."""

    path: str | list[str]
    name: str | None = None
    split: str = "train"
    revision: str | None = None
    columns: dict[str, str] = {}
    where: dict[str, bool | int | float | str] = {}
    sentences: bool = False
    instruction: str | None = None
    instruct: Literal["query", "both"] = "query"
    weight: Annotated[float, Field(gt=0)] | None = None
    ratio: Annotated[float, Field(gt=0, le=1)] | None = None
    min_chars: Annotated[int, Field(ge=0)] | None = None
    max_chars: Annotated[int, Field(gt=0)] | None = None
    max_tokens: Annotated[int, Field(gt=0)] | None = None
    max_rows: Annotated[int, Field(gt=0)] | None = None
    shuffle_seed: Annotated[int, Field(ge=0)] | None = None


class BatchConfig(_Config):
    """The batch of a contrastive stage: `size` counts all processes together.

    With a `mini_batch_…`, gradients are cached: memory is that of so many texts, or padded tokens, at a time.
    """

    size: Annotated[int, Field(gt=0)]
    mini_batch_size: Annotated[int, Field(gt=0)] | None = None
    mini_batch_num_tokens: Annotated[int, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> BatchConfig:
        if self.mini_batch_size and self.mini_batch_num_tokens:
            raise ValueError("give mini_batch_size or mini_batch_num_tokens, not both")
        return self


class MixConfig(_Config):
    """How a stage draws from several data sets; without weights, in proportion to (ratio × size)^temperature."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    batches: Literal["one", "mixed"] = "one"


Datasets = Annotated[
    Annotated[DataConfig, Tag("one data set")] | Annotated[list[DataConfig], Tag("several"), Field(min_length=1)],
    Discriminator(lambda value: "several" if isinstance(value, (list, tuple)) else "one data set"),
]


class StageConfig(_Config):
    """One round of training: an objective, its data and `transformers.TrainingArguments` under their own names.

    With `attention` the encoder reads so from this stage on, whatever it did before.
    """

    name: str
    objective: dict[str, Any]
    data: Datasets
    training: dict[str, Any] = {}
    batch: BatchConfig | None = None
    mix: MixConfig | None = None
    adapter: Literal["continue", "merge"] = "continue"
    attention: Literal["causal", "bidirectional", "memory_causal"] | None = None
    train_memory: bool = True

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", name) or name.endswith("."):
            raise ValueError(
                f"{name!r} names a folder: start with a letter, then letters, digits, '-', '_' or '.' (not at the end)"
            )
        return name

    @field_validator("objective")
    @classmethod
    def _check_objective(cls, objective: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(objective.get("type"), str):
            raise ValueError(f"type={objective.get('type')!r}; give an objective's name, for example type: contrastive")
        return objective

    @model_validator(mode="after")
    def _check_mix(self) -> StageConfig:
        weighted = [config for config in self.datasets if config.weight is not None]
        if weighted and len(weighted) < len(self.datasets):
            raise ValueError(f"{len(weighted)} of {len(self.datasets)} data sets have a weight; give all, or none")
        rated = any(config.ratio is not None for config in self.datasets)
        if (weighted or rated or self.mix) and len(self.datasets) < 2:
            raise ValueError("weight, ratio and mix go with several data sets; there is one")
        if weighted and rated:
            raise ValueError("give weights (shares whatever the sizes), or ratios (shares of the sizes), not both")
        if weighted and self.mix and self.mix.temperature != 1.0:
            raise ValueError("give weights, or mix.temperature, not both")
        return self

    @property
    def datasets(self) -> list[DataConfig]:
        """`data` as a list, whether one data set is given or several."""
        return self.data if isinstance(self.data, list) else [self.data]


class UniformityConfig(_Config):
    """On what alignment and uniformity are taken: pairs with scores (those above `above` are positives), or positives.

    Attributes:
        path: a data folder or file, such as an STS set, or held-out rows of what is trained on.
        split: of a folder; by default dev, else test, else train.
        columns: as in a stage's data.
        above: scores above this are positives.
        max_texts: a sample of so many different texts, for uniformity, and of so many positives.
    """

    path: str
    split: str | None = None
    columns: dict[str, str] = {}
    above: float = 4.0
    max_texts: Annotated[int, Field(ge=2)] = 1000


class EvaluationConfig(_Config):
    """What is scored before, between and after the stages; with `every` or `at`, also within them.

    Attributes:
        dev: data folders or files of the domain that is trained for.
        guard: of other domains, which must not get worse.
        metric: the score by which the best step of a stage is chosen: `dev`, the mean, or one dev set's name.
        every: steps between two evaluations within a stage; below 1, a part of the stage. The best step is kept.
        at: `log`: score after 1, 2, 4, 8, … steps and the last; or after so many samples. The last step is kept.
        patience: end a stage after so many evaluations without a better `metric`.
        stages: those that `every` or `at` holds for; by default all.
        uniformity: score alignment and uniformity (Wang & Isola) too; nothing is chosen by them.
        batch_tokens: padded tokens a batch.
    """

    dev: Annotated[list[str], Field(min_length=1)]
    guard: list[str] = []
    metric: str = "dev"
    every: Annotated[int | float, Field(gt=0)] | None = None
    at: Literal["log"] | Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)] | None = None
    patience: Annotated[int, Field(gt=0)] | None = None
    stages: Annotated[list[str], Field(min_length=1)] | None = None
    uniformity: UniformityConfig | None = None
    batch_tokens: Annotated[int, Field(gt=0)] = 8192

    @model_validator(mode="after")
    def _check_every(self) -> EvaluationConfig:
        if self.every is not None and self.at is not None:
            raise ValueError("every keeps the best step, at draws a curve to the last; give one of them")
        chosen = self.patience is not None or self.metric != "dev" or (self.stages is not None and self.at is None)
        if self.every is None and chosen:
            raise ValueError("metric, patience and stages choose among evaluations within a stage; give every as well")
        if self.every is not None and self.every >= 1 and not float(self.every).is_integer():
            raise ValueError(f"every={self.every}; give whole steps, or a number below 1 for a part of the stage")
        return self


class Recipe(_Config):
    """An encoder plus a list of stages. No stages: a training-free baseline.

    >>> Recipe.load("llm2comp/nano", ["stages.compress.training.max_steps=2"]).stages[0].training["max_steps"]
    2
    """

    encoder: EncoderConfig
    stages: list[StageConfig] = []
    evaluation: EvaluationConfig | None = None
    seed: Annotated[int, Field(ge=0)] = 42

    @field_validator("stages")
    @classmethod
    def _check_names(cls, stages: list[StageConfig]) -> list[StageConfig]:
        names = [stage.name.lower() for stage in stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{names.count(name)} stages are named {name!r}; each names its own folder")
        return stages

    @model_validator(mode="after")
    def _check_one_template(self) -> Recipe:
        if self.stages and len(self.encoder.templates) > 1:
            raise ValueError(f"encoder.template has {len(self.encoder.templates)} templates; stages train one")
        return self

    @model_validator(mode="after")
    def _check_watched(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        for name in (self.evaluation and self.evaluation.stages) or []:
            if name not in names:
                raise ValueError(f"evaluation.stages names {name!r}; the stages are {', '.join(names) or 'none'}")
        return self

    def watched(self, index: int) -> EvaluationConfig | None:
        """The evaluation that goes on within stage `index`, or None where it is not evaluated before its end."""
        found = self.evaluation
        if found is None or (found.every is None and found.at is None):
            return None
        return found if found.stages is None or self.stages[index].name in found.stages else None

    @classmethod
    def load(cls, name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """A shipped recipe by name (`llm2comp/nano`), or a YAML file, with `key.path=value` overrides.

        Raises:
            FileNotFoundError: no such recipe or file.
            ValueError: not YAML, an unknown key, or a value that is not allowed.
        """
        text, source = read_recipe(name_or_path)
        values = parse_yaml(text, source=source)
        if not isinstance(values, dict):
            raise ValueError(f"{source}: a recipe is a mapping with the keys {', '.join(cls.model_fields)}")
        return cls.from_values(apply_overrides(values, overrides), source=source, text=text, overrides=overrides)

    @classmethod
    def from_values(
        cls, values: Mapping[str, Any], *, source: str = "recipe", text: str = "", overrides: Sequence[str] = ()
    ) -> Recipe:
        """A recipe from plain values. `text` and `overrides` are what they came from, for the words of an error."""
        set_by = {tuple(override.partition("=")[0].split(".")): override for override in overrides}

        def place(path: KeyPath) -> str:
            keys = [str(key) for key in path]
            names = [values["stages"][path[1]].get("name") if path[:1] == ("stages",) and len(path) > 1 else None]
            for setter, override in set_by.items():
                plain = [keys[1] if i == 1 and key == names[0] else key for i, key in enumerate(setter)]
                if keys[: len(plain)] == plain or plain[: len(keys)] == keys:
                    return f"override {override!r}: "
            line = line_of(text, path) if text else None
            return f"{source}:{line}: " if line else f"{source}: "

        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(explain(error, cls, values, place=place)) from None

    def resolved(self, index: int | None = None) -> dict[str, Any]:
        """All values with defaults filled in; with `index`, only what decides the outcome of that stage."""
        values = self.model_dump(mode="json")
        return values if index is None else _deciding(values, index)

    def stage_hash(self, index: int) -> str:
        """sha256 of all that decides the outcome of stage `index`: encoder, stages up to it, and the seed.

        Where a best step is chosen within a stage, so do the dev sets and how it is chosen.
        """
        text = json.dumps(_canonical(self.resolved(index)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def differing_keys(self, other_resolved: Mapping[str, Any], index: int | None = None) -> list[str]:
        """Paths of the keys whose values differ from another recipe's `resolved()`.

        With `index`, only what decides the outcome of that stage is compared.
        """
        other = dict(other_resolved)
        if index is not None:
            other = _deciding(other, index)
        return [dotted(path) for path in _differences(_canonical(self.resolved(index)), _canonical(other))]

    def to_yaml(self) -> str:
        """The resolved recipe as YAML; `Recipe.load` reads it back to the same recipe."""
        return dump_yaml(self.model_dump(mode="json"))


def list_recipes() -> list[str]:
    """Names of the shipped recipes."""
    return [name for name in list_shipped("recipes") if not name.startswith(LAUNCH)]


def list_launches() -> list[str]:
    """Names of the configurations of accelerate's launcher that are shipped beside the recipes (`launch/fsdp2`)."""
    return [name for name in list_shipped("recipes") if name.startswith(LAUNCH)]


def read_recipe(name_or_path: str | Path) -> tuple[str, str]:
    """The YAML text of a shipped recipe or of a file, and the words that say where it is from.

    Raises:
        FileNotFoundError: no such recipe or file; names the nearest.
        ValueError: it says how to launch, not what to train.
    """
    if str(name_or_path) in list_launches():
        raise ValueError(
            f"{name_or_path} says how to launch, not what to train: embrew recipe copy {name_or_path} FILE, then "
            "accelerate launch --config_file FILE -m embrew train RECIPE --output DIR"
        )
    return read_shipped("recipes", name_or_path, what="recipe", among=list_recipes())


def read_launch(name: str) -> str:
    """The YAML text of a shipped configuration of accelerate's launcher.

    Raises:
        FileNotFoundError: no such configuration.
    """
    return read_shipped("recipes", name, what="configuration", among=list_launches())[0]


def _deciding(values: Mapping[str, Any], index: int) -> dict[str, Any]:
    """What of a recipe's values decides the outcome of stage `index`."""
    stages = (values.get("stages") or [])[: index + 1]
    found = {"encoder": values.get("encoder"), "stages": stages, "seed": values.get("seed")}
    evaluation = values.get("evaluation") or {}
    names = [stage["name"] for stage in stages]
    watched = [name for name in names if name in (evaluation.get("stages") or names)]
    if evaluation.get("every") is not None and watched:
        chosen = {key: evaluation[key] for key in ("dev", "metric", "every", "patience")}
        found["evaluation"] = {**chosen, "stages": watched}
    return found


def _canonical(value: Any) -> Any:
    """The same values written one way: 1.0 and 1 are one number, and a key that is not set is not there."""
    match value:
        case dict():
            return {key: _canonical(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [_canonical(item) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _differences(ours: Any, theirs: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs: list[Any] = list(dict.fromkeys([*ours, *theirs]))
        absent = object()
        for key in pairs:
            yield from _differences(ours.get(key, absent), theirs.get(key, absent), (*path, key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _differences(one, other, (*path, i))
    elif ours != theirs or type(ours) is not type(theirs):
        yield path
