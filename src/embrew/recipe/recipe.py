"""The recipe class: loading, overrides, hashes, comparison, paths; shipped recipes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from embrew.files.names import LOCAL_PREFIX, base_name, from_home, public_path
from embrew.recipe.encoder import EncoderConfig
from embrew.recipe.overrides import KeysOf, Override, apply_overrides, as_text, parse_override
from embrew.recipe.stage import EvaluationConfig, StageConfig
from embrew.settings.validation import Config, KeyPath, dotted, explain, quoted
from embrew.settings.yaml_files import dump_yaml, line_of, list_shipped, parse_yaml, read_shipped

Change = Callable[[str], str]
FOLDER_KEYS = ("teacher", "vectors")  # keys of objectives


def with_paths(values: Mapping[str, Any], change: Change, *, data_only: bool = False) -> dict[str, Any]:
    """Return a copy of a recipe's values, or of `deciding`'s, with `change` applied to every path.

    In objectives and training arguments, `FOLDER_KEYS` count as paths, and strings that begin with `/` or `~/` and have
    no space, as instructions have. With `data_only`, only the paths of data, dev and guard sets are changed.
    """
    changed = dict(values)
    settings = {} if data_only else {"objective": _absolute_paths, "training": _absolute_paths}
    change_by_key: dict[str, Callable[[Any, Change], Any]] = {"data": _paths, **settings}
    encoder = values.get("encoder")
    if not data_only and isinstance(encoder, Mapping):
        named = {key: change(encoder[key]) for key in ("model", "adapter") if isinstance(encoder.get(key), str)}
        changed["encoder"] = {**encoder, **named}
    if isinstance(values.get("stages"), list):
        changed["stages"] = [
            {key: change_by_key[key](value, change) if key in change_by_key else value for key, value in stage.items()}
            if isinstance(stage, Mapping)
            else stage
            for stage in values["stages"]
        ]
    if isinstance(values.get("evaluation"), Mapping):
        changed["evaluation"] = {
            key: _paths(value, change) if key in ("dev", "guard", "uniformity") else value
            for key, value in values["evaluation"].items()
        }
    if "dev_rows" in values:
        changed["dev_rows"] = _paths(values["dev_rows"], change)
    return changed


def beside(folder: Path, written: dict[str, str]) -> Change:
    """Return a change that resolves relative paths against `folder` if they exist only there.

    Args:
        folder: the recipe's folder.
        written: receives the original paths, by the resolved ones.
    """

    def change(path: str) -> str:
        if path.startswith(("/", "~", "$", LOCAL_PREFIX)) or Path(path).exists() or not (folder / path).exists():
            return path
        written[str(folder / path)] = path
        return str(folder / path)

    return change


def _paths(value: Any, change: Change) -> Any:
    """Change strings in a list, and the value of the key `path` of a mapping."""
    match value:
        case str():
            return change(value)
        case list():
            return [_paths(item, change) for item in value]
        case {"path": path}:
            return {**value, "path": _paths(path, change)}
    return value


def _absolute_paths(value: Any, change: Change) -> Any:
    match value:
        case Mapping():
            named = {key: change(item) for key, item in value.items() if key in FOLDER_KEYS and isinstance(item, str)}
            return {key: _absolute_paths(item, change) for key, item in value.items()} | named
        case list():
            return [_absolute_paths(item, change) for item in value]
        case str() if value.startswith(("/", "~/")) and " " not in value:
            return change(value)
    return value


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
    def _check_stages(self) -> Recipe:
        if self.stages and len(self.encoder.templates) > 1:
            raise ValueError(f"encoder.template has {len(self.encoder.templates)} templates; stages train one")
        if self.stages and self.encoder.variants is not None:
            raise ValueError("encoder.variants are written of texts that are encoded, not trained on; leave them out")
        quantization = self.encoder.quantization
        if self.stages and quantization is not None and self.encoder.lora is None:
            raise ValueError(
                f"encoder.quantization={quantization.type} without encoder.lora: 4-bit weights cannot be trained; give "
                "encoder.lora, which is trained on them, or leave quantization out"
            )
        names = [stage.name for stage in self.stages]
        for name in (self.evaluation and self.evaluation.stages) or []:
            if name not in names:
                raise ValueError(f"evaluation.stages names {name!r}; the stages are {', '.join(names) or 'none'}")
        return self

    def stage_evaluation(self, index: int) -> EvaluationConfig | None:
        """Return the evaluation within stage `index`; None if the stage is evaluated only at its end."""
        evaluation = self.evaluation
        if evaluation is None or (evaluation.every is None and evaluation.at is None):
            return None
        return evaluation if evaluation.stages is None or self.stages[index].name in evaluation.stages else None

    @classmethod
    def load(
        cls,
        name_or_path: str | Path,
        overrides: Sequence[Override] = (),
        *,
        keys_of: KeysOf | None = None,
        reading_of: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Recipe:
        """Load a shipped recipe by name (`llm2comp/nano`), or a YAML file, with overrides.

        `overrides`: each `key.path=value`, of which the value is read as YAML, or a key path and a value.
        `keys_of`: see `apply_overrides`; `build.load_recipe` gives it.
        `reading_of`: completes the keys of `encoder`, where the model says itself how it reads texts.

        Raises:
            FileNotFoundError: no such recipe or file.
            ValueError: invalid YAML, an unknown key, or an invalid value.
        """
        text, source = read_recipe(name_or_path)
        values = parse_yaml(text, source=source)
        if not isinstance(values, dict):
            raise ValueError(f"{source}: a recipe is a mapping with the keys {', '.join(cls.model_fields)}")
        file, written = from_home(name_or_path), dict[str, str]()
        if file.is_file():
            values = with_paths(values, beside(file.parent, written), data_only=True)
        values = apply_overrides(values, overrides, keys_of)
        if reading_of is not None and isinstance(values.get("encoder"), dict):
            values = {**values, "encoder": reading_of(values["encoder"])}
        recipe = cls.from_values(values, source=source, text=text, overrides=overrides)
        recipe._written.update(written)
        return recipe

    @classmethod
    def from_values(
        cls, values: Mapping[str, Any], *, source: str = "recipe", text: str = "", overrides: Sequence[Override] = ()
    ) -> Recipe:
        """Return a recipe from plain values; `text` and `overrides` are their origin, for line numbers in messages."""
        set_by = {tuple(parse_override(override)[0]): as_text(override) for override in overrides}

        def location(path: KeyPath) -> str:
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
            raise ValueError(explain(error, cls, values, location=location)) from None

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
        other = dict(other_resolved) if index is None else deciding(other_resolved, index)
        ours, theirs = (canonical(with_paths(values, base_name)) for values in (self.resolved(index), other))
        return [dotted(path) for path in differences(ours, theirs)]

    def to_yaml(self) -> str:
        """Return the resolved recipe as YAML, which `Recipe.load` reads back to the same recipe."""
        return dump_yaml(self.model_dump(mode="json"))


LAUNCH = "launch/"  # folder of configurations of launchers, among the recipes


def list_recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return [name for name in list_shipped("recipes") if not name.startswith(LAUNCH)]


def list_launches() -> list[str]:
    """Return the names of the shipped configurations of accelerate and of Ray Serve, such as `launch/fsdp2`."""
    return [name for name in list_shipped("recipes") if name.startswith(LAUNCH)]


def read_recipe(name_or_path: str | Path) -> tuple[str, str]:
    """Return the YAML text of a shipped recipe or of a file, and its source for messages.

    Raises:
        FileNotFoundError: no such recipe or file; the message has the nearest ones.
        ValueError: the name is a launcher configuration, not a recipe.
    """
    if str(name_or_path) in list_launches():
        raise ValueError(
            f"{name_or_path} is a launcher configuration, not a recipe: embrew recipe copy {name_or_path} FILE writes "
            "it, and says how to use it"
        )
    return read_shipped("recipes", name_or_path, what="recipe", among=list_recipes())


def deciding(values: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the values of a recipe that the outcome of stage `index` depends on."""
    stages = (values.get("stages") or [])[: index + 1]
    result = {"encoder": values.get("encoder"), "stages": stages, "seed": values.get("seed")}
    evaluation = values.get("evaluation") or {}
    names = [stage["name"] for stage in stages]
    evaluated = [name for name in names if name in (evaluation.get("stages") or names)]
    if evaluation.get("every") is not None and evaluated:
        chosen = {key: evaluation[key] for key in ("dev", "metric", "every", "patience")}
        result["evaluation"] = {**chosen, "stages": evaluated}
    reserved = [dev_set for dev_set in evaluation.get("dev") or [] if isinstance(dev_set, Mapping)]
    if reserved:  # rows that are not trained on
        result["dev_rows"] = reserved
    return result


def canonical(value: Any) -> Any:
    """Return values in canonical form: 1.0 becomes 1, and keys without a value are left out."""
    match value:
        case dict():
            return {key: canonical(item) for key, item in value.items() if item is not None}
        case list() | tuple():
            return [canonical(item) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value


def differences(ours: Any, theirs: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the key paths at which two trees of plain data differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs: list[Any] = list(dict.fromkeys([*ours, *theirs]))
        absent = object()
        for key in pairs:
            yield from differences(ours.get(key, absent), theirs.get(key, absent), (*path, key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (our_item, their_item) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(our_item, their_item, (*path, i))
    elif ours != theirs or type(ours) is not type(theirs):
        yield path
