"""The recipe class: loading, overrides, hashes, comparison."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from embrew.config.overrides import KeysOf, apply_overrides
from embrew.config.suggestions import quoted
from embrew.config.validation_errors import KeyPath, dotted, explain
from embrew.config.yaml_text import dump_yaml, line_of, parse_yaml
from embrew.files.names import base_name, public_path
from embrew.recipe.base import Config
from embrew.recipe.comparing import canonical, deciding, differences
from embrew.recipe.encoder import EncoderConfig
from embrew.recipe.evaluation import EvaluationConfig
from embrew.recipe.files import read_recipe
from embrew.recipe.paths import beside, with_data_paths, with_paths
from embrew.recipe.stage import StageConfig


class Recipe(Config):
    """An encoder and the stages that train it; without stages, a training-free baseline.

    >>> Recipe.load("llm2comp/nano", ["stages.compress.training.max_steps=2"]).stages[0].training["max_steps"]
    2
    """

    encoder: EncoderConfig
    stages: list[StageConfig] = []
    evaluation: EvaluationConfig | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    _written: dict[str, str] = PrivateAttr(
        default_factory=dict
    )  # original paths in the recipe's file, by the resolved ones

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
    def _check_quantization(self) -> Recipe:
        chosen = self.encoder.quantization
        if self.stages and chosen is not None and self.encoder.lora is None:
            raise ValueError(
                f"encoder.quantization={chosen.type} without encoder.lora: 4-bit weights cannot be trained; give "
                "encoder.lora, which is trained on them, or leave quantization out"
            )
        return self

    @model_validator(mode="after")
    def _check_evaluation_stages(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        for name in (self.evaluation and self.evaluation.stages) or []:
            if name not in names:
                raise ValueError(f"evaluation.stages names {name!r}; the stages are {', '.join(names) or 'none'}")
        return self

    def stage_evaluation(self, index: int) -> EvaluationConfig | None:
        """Return the evaluation within stage `index`; None if the stage is evaluated only at its end."""
        found = self.evaluation
        if found is None or (found.every is None and found.at is None):
            return None
        return found if found.stages is None or self.stages[index].name in found.stages else None

    @classmethod
    def load(cls, name_or_path: str | Path, overrides: Sequence[str] = (), *, keys_of: KeysOf | None = None) -> Recipe:
        """Load a shipped recipe by name (`llm2comp/nano`), or a YAML file, with `key.path=value` overrides.

        `keys_of`: see `apply_overrides`; `build.load_recipe` gives it.

        Raises:
            FileNotFoundError: no such recipe or file.
            ValueError: invalid YAML, an unknown key, or an invalid value.
        """
        text, source = read_recipe(name_or_path)
        values = parse_yaml(text, source=source)
        if not isinstance(values, dict):
            raise ValueError(f"{source}: a recipe is a mapping with the keys {', '.join(cls.model_fields)}")
        file, written = Path(name_or_path).expanduser(), dict[str, str]()
        if file.is_file():
            values = with_data_paths(values, beside(file.parent, written))
        values = apply_overrides(values, overrides, keys_of)
        recipe = cls.from_values(values, source=source, text=text, overrides=overrides)
        recipe._written.update(written)
        return recipe

    @classmethod
    def from_values(
        cls, values: Mapping[str, Any], *, source: str = "recipe", text: str = "", overrides: Sequence[str] = ()
    ) -> Recipe:
        """Return a recipe from plain values; `text` and `overrides` are their origin, for line numbers in messages."""
        set_by = {tuple(override.partition("=")[0].split(".")): override for override in overrides}

        def place(path: KeyPath) -> str:
            keys = [str(key) for key in path]
            stage = values["stages"][path[1]] if path[:1] == ("stages",) and len(path) > 1 else None
            name = stage.get("name") if isinstance(stage, Mapping) else None
            for setter, override in set_by.items():
                plain = [keys[1] if i == 1 and key == name else key for i, key in enumerate(setter)]
                if keys[: len(plain)] == plain or plain[: len(keys)] == keys:
                    return f"override {quoted(override)}: "
            line = line_of(text, path) if text else None
            return f"{source}:{line}: " if line else f"{source}: "

        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(explain(error, cls, values, place=place)) from None

    def resolved(self, index: int | None = None) -> dict[str, Any]:
        """Return all values, with defaults; with `index`, only those that the outcome of that stage depends on."""
        values = self.model_dump(mode="json")
        return values if index is None else deciding(values, index)

    def public(self) -> Recipe:
        """Return the recipe as it is saved: paths relative to its file unchanged, others by `public_path`."""

        def change(path: str) -> str:
            return self._written.get(path) or public_path(path)

        return type(self).model_validate(with_paths(self.model_dump(mode="json"), change))

    def stage_hash(self, index: int) -> str:
        """Return the sha256 of all that the outcome of stage `index` depends on: encoder, stages up to it, seed.

        If the best step of a stage is chosen, the dev sets and the choice are included. Of paths and Hub ids, only the
        last part is used; their content is compared elsewhere.
        """
        values = canonical(with_paths(self.resolved(index), base_name))
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def differing_keys(self, other_resolved: Mapping[str, Any], index: int | None = None) -> list[str]:
        """Return the key paths whose values differ from another recipe's `resolved()`; paths as in `stage_hash`.

        With `index`, only values that the outcome of that stage depends on are compared.
        """
        other = dict(other_resolved)
        if index is not None:
            other = deciding(other, index)
        ours, theirs = (canonical(with_paths(values, base_name)) for values in (self.resolved(index), other))
        return [dotted(path) for path in differences(ours, theirs)]

    def to_yaml(self) -> str:
        """Return the resolved recipe as YAML, which `Recipe.load` reads back to the same recipe."""
        return dump_yaml(self.model_dump(mode="json"))
