"""From configuration to objects: the only place that sees both."""

from __future__ import annotations

import difflib
import importlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from pydantic import TypeAdapter, ValidationError
from transformers import TrainingArguments

from embrew.data import datasets as data
from embrew.data import describe
from embrew.data.mixing import MixedOrder, shares
from embrew.distributed import world_size
from embrew.modeling.demonstrations import Demonstrations
from embrew.modeling.encoder import Encoder
from embrew.modeling.loading import ASSETS, pick_device, pick_dtype
from embrew.modeling.pooling import Pooling
from embrew.objectives import OBJECTIVES, EmbeddingObjective, Objective
from embrew.objectives.compression import text_ids
from embrew.recipe import DataConfig, Recipe, StageConfig, list_recipes

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
DEFAULTS: dict[str, Any] = {
    "logging_steps": 0.1,
    "save_steps": 0.2,
    "report_to": "none",
    "disable_tqdm": True,
    "ddp_find_unused_parameters": False,
}
OURS = (
    "dataloader_persistent_workers",
    "output_dir",
    "seed",
    "data_seed",
    "remove_unused_columns",
    "label_names",
    "save_total_limit",
    "eval_strategy",
    "eval_steps",
    "eval_on_start",
    "metric_for_best_model",
    "greater_is_better",
    "load_best_model_at_end",
)
BY_THE_LAUNCHER = ("fsdp", "fsdp_config", "deepspeed", "parallelism_config")


def encoder(recipe: Recipe, *, device: Any = None) -> Encoder:
    """The untrained encoder of a recipe; with its LoRA attached where the recipe has stages."""
    config = recipe.encoder
    built = Encoder.from_pretrained(
        config.model,
        revision=config.revision,
        dtype=config.dtype,
        device=device,
        attn_implementation=config.attn_implementation,
        memory_tokens=config.memory_tokens,
        memory_init=config.memory_init,
        soft_prompt_tokens=config.soft_prompt_tokens or 0,
        trust_remote_code=config.trust_remote_code,
        seed=recipe.seed,
        template=config.template,
        preparation=config.preparation,
        memory_ratio=config.memory_ratio,
        attention=config.attention,
        pooling=Pooling(**config.pooling.model_dump()),
        prompts=config.prompts.model_dump(),
        default_prompt_name=config.default_prompt_name,
        max_length=config.max_length.model_dump(),
        normalize=config.normalize,
        demonstrations=config.demonstrations and Demonstrations(**config.demonstrations.model_dump()),
    )
    if recipe.stages:
        make_trainable(built, recipe)
    built.recipe = recipe.to_yaml()
    return built


def check_same_encoder(recipe: Recipe, opened: Encoder, source: Path) -> None:
    """Raise where a trained encoder that a recipe is to go on from reads texts in another way than the recipe says."""
    config = recipe.encoder
    asked: dict[str, Any] = {
        "default_prompt_name": config.default_prompt_name,
        "template": config.template,
        "preparation": config.preparation,
        "memory_ratio": config.memory_ratio,
        "attention": config.attention,
        "pooling": config.pooling.model_dump(exclude_none=True),
        "prompts": config.prompts.model_dump(),
        "max_length": config.max_length.model_dump(),
        "normalize": config.normalize,
        "demonstrations": config.demonstrations and Demonstrations(**config.demonstrations.model_dump()).as_dict(),
    }
    unset = {"preparation": "none", "memory_ratio": None, "default_prompt_name": None, "demonstrations": None}
    has = {**unset, **opened.settings()}
    pairs = {
        **{key: (value, has[key]) for key, value in asked.items()},
        "memory_tokens": (config.memory_tokens, len(opened.backbone.memory_ids)),
        "soft_prompt_tokens": (config.soft_prompt_tokens or 0, len(opened.backbone.soft_prompt_ids)),
    }
    differing = [f"encoder.{key}={ours!r}, there {theirs!r}" for key, (ours, theirs) in pairs.items() if ours != theirs]
    if differing:
        raise ValueError(f"{source} is another encoder than the recipe's: {'; '.join(differing)}; let them agree")


def make_trainable(built: Encoder, recipe: Recipe, *, stage: int = 0) -> None:
    """Attach a fresh LoRA, or open every weight for full fine-tuning where the recipe has none.

    `train_embeddings: full` holds for stages that train the memory tokens as well (the paper's first).
    """
    if recipe.encoder.lora is None:
        built.backbone.train_all()
        built.chain = []  # what was merged is part of the weights that are saved now
    else:
        full = recipe.encoder.train_embeddings == "full" and recipe.stages[stage].train_memory
        built.backbone.add_lora(recipe.encoder.lora, train_embeddings=full)


def objective(settings: Mapping[str, Any]) -> Objective:
    """An objective from its recipe block, by name or as `package.module:Class`.

    Raises:
        ValueError: unknown type, unknown setting, or a value that does not fit.
    """
    settings = dict(settings)
    name = settings.pop("type")
    if ":" in name:
        module, _, attribute = name.partition(":")
        kind = getattr(importlib.import_module(module), attribute)
    elif name in OBJECTIVES:
        kind = OBJECTIVES[name]
    else:
        raise ValueError(f"objective type={name!r}; choose from {', '.join(OBJECTIVES)}{_nearest(name, OBJECTIVES)}")
    names = [field.name for field in fields(kind)]
    if "scale" in settings and "temperature" in names:
        settings["temperature"] = _from_scale(settings, name)
    _known(settings, names, f"objective {name}")
    if isinstance(settings.get("base"), Mapping):
        settings["base"] = objective(settings["base"])
        if not isinstance(settings["base"], EmbeddingObjective):
            raise ValueError(f"objective {name}: base looks at more than embeddings; it cannot be nested")
    try:
        return TypeAdapter(kind).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"objective {name}: {key}={first['input']!r}: {first['msg']}") from None


def _from_scale(settings: dict[str, Any], name: str) -> float:
    """1 / scale, as Sentence-Transformers and LLM2Vec say a temperature; it is taken out of the settings."""
    scale = settings.pop("scale")
    if "temperature" in settings:
        raise ValueError(f"objective {name}: scale is 1 / temperature; give one of them")
    if not isinstance(scale, int | float) or scale <= 0:
        raise ValueError(f"objective {name}: scale={scale!r}; give a number above 0, such as 20 (temperature 0.05)")
    return 1.0 / scale


def training_arguments(
    stage: StageConfig, built: Objective, output_dir: Path, *, seed: int, every: float | None = None
) -> TrainingArguments:
    """The stage's `transformers.TrainingArguments`; with `every`, it is evaluated at so many steps and at its end.

    Raises:
        ValueError: a key that it does not have, one that embrew sets itself, or a global batch that does not divide.
    """
    given = dict(stage.training)
    _known(given, [field.name for field in fields(TrainingArguments)], f"stage {stage.name}: training")
    for key in OURS:
        if key in given:
            hint = "; evaluation.every, metric and patience are for this" if "eval" in key or "best" in key else ""
            raise ValueError(f"stage {stage.name}: training.{key} is set by embrew; leave it out{hint}")
    for key in BY_THE_LAUNCHER:
        if key in given:
            raise ValueError(
                f"stage {stage.name}: training.{key}: how weights are spread is said to the launcher (embrew recipe "
                "copy launch/fsdp2 or launch/zero2, then accelerate launch --config_file FILE); leave it out"
            )
    if given.get("auto_find_batch_size"):
        raise ValueError(
            f"stage {stage.name}: training.auto_find_batch_size would change the experiment; give a batch that fits, "
            "for a contrastive stage by batch.mini_batch_num_tokens"
        )
    if stage.batch is not None:
        if not isinstance(built, EmbeddingObjective):
            raise ValueError(
                f"stage {stage.name}: batch.size is the joint batch of a contrastive objective; "
                f"{type(built).__name__.lower()} takes training.per_device_train_batch_size"
            )
        if "per_device_train_batch_size" in given:
            raise ValueError(f"stage {stage.name}: give batch.size or training.per_device_train_batch_size, not both")
        if stage.batch.size % world_size():
            raise ValueError(
                f"stage {stage.name}: batch.size={stage.batch.size} over {world_size()} processes; it must divide"
            )
        given["per_device_train_batch_size"] = stage.batch.size // world_size()
    given.setdefault("dataloader_drop_last", isinstance(built, EmbeddingObjective))
    if every is not None:
        given |= {"eval_strategy": "steps", "eval_steps": every}
    try:
        return TrainingArguments(
            output_dir=str(output_dir),
            seed=seed,
            data_seed=seed,
            remove_unused_columns=False,
            label_names=[],
            **{**DEFAULTS, **_for_this_machine(), **given},
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"stage {stage.name}: training: {error}") from None


def _for_this_machine() -> dict[str, Any]:
    """On a machine without an accelerator: processes that meet over gloo, and no pinned memory."""
    if torch.accelerator.is_available():
        return {}
    return {"use_cpu": True, "dataloader_pin_memory": False} | ({"ddp_backend": "gloo"} if world_size() > 1 else {})


def check_stage(recipe: Recipe, index: int) -> None:
    """Validate a stage's objective and training keys without loading anything.

    Raises:
        ValueError: as `objective` and `training_arguments`.
    """
    stage = recipe.stages[index]
    training_arguments(stage, objective(stage.objective), Path(stage.name), seed=recipe.seed)


def datasets(stage: StageConfig, built: Objective, encoder: Encoder, *, keep: Path | None = None) -> list[Dataset]:
    """The rows of each of the stage's data sets, as the objective wants them; in `keep`, what it computes once."""
    parts = []
    for number, config in enumerate(stage.datasets):
        part = rows(config, built, max_rows=config.max_rows)
        understood = describe(part)
        logger.info("%s  %s", stage.name, understood["columns"])
        for example in understood["examples"]:
            logger.info("    %s", example)
        short = part if config.max_tokens is None else _short(part, config.max_tokens, encoder)
        place = None if keep is None else keep / str(number)
        parts.append(built.precompute(built.prepare(short, encoder), encoder, place))
    return parts


def order(stage: StageConfig, sizes: Sequence[int], built: Objective, *, seed: int) -> MixedOrder | None:
    """In which order several data sets are read; None where rows are simply shuffled.

    With embeddings compared within a batch, a batch is of one data set unless the stage says otherwise: other texts
    would be negatives that are too easy.
    """
    batches = stage.mix.batches if stage.mix else "one" if isinstance(built, EmbeddingObjective) else "mixed"
    weights = [config.weight for config in stage.datasets if config.weight is not None]
    ratios = [1.0 if config.ratio is None else config.ratio for config in stage.datasets]
    temperature = stage.mix.temperature if stage.mix else 1.0
    if len(sizes) < 2 or (batches == "mixed" and not weights and temperature == 1.0 and set(ratios) == {1.0}):
        return None
    batch = (
        stage.batch.size if stage.batch else int(stage.training.get("per_device_train_batch_size", 8)) * world_size()
    )
    counted = [ratio * size for ratio, size in zip(ratios, sizes, strict=True)]
    probabilities = shares(counted, weights=weights or None, temperature=temperature)
    logger.info("%s  shares of the data sets: %s", stage.name, ", ".join(f"{share:.1%}" for share in probabilities))
    return MixedOrder(sizes, probabilities, block=batch if batches == "one" else 1, seed=seed)


def rows(config: DataConfig, built: Objective, *, max_rows: int | None) -> Dataset:
    """The canonical rows of one data set, before any filter that needs a tokenizer."""
    return data.load(
        config.path,
        kind=built.rows_kind,
        name=config.name,
        split=config.split,
        revision=config.revision,
        columns=config.columns,
        instruction=config.instruction,
        instruct=config.instruct,
        where=config.where,
        sentences=config.sentences,
        min_chars=config.min_chars,
        max_chars=config.max_chars,
        max_rows=max_rows,
        shuffle_seed=config.shuffle_seed,
    )


def _short(part: Dataset, max_tokens: int, encoder: Encoder) -> Dataset:
    keep = set(range(len(part)))
    for column in ("text", "query", "positive"):
        if column in part.column_names:
            lengths = [len(ids) for ids in text_ids(list(part[column]), encoder)]
            keep &= {i for i, length in enumerate(lengths) if length <= max_tokens}
    if not keep:
        raise ValueError(f"none of {len(part)} rows has at most max_tokens={max_tokens}; widen the limit")
    return part.select(sorted(keep))


def open_model(name: str, overrides: Sequence[str] = (), *, dtype: str = "auto") -> Encoder | SentenceTransformer:
    """What a user names: a trained folder, a Sentence-Transformers folder, a recipe without stages, or a Hub id.

    It is opened to embed: an adapter is added to the weights, which is faster. A bare causal LM is opened with
    last-token pooling.

    Args:
        name: what to open.
        overrides: settings of a recipe.
        dtype: `float32` or `bfloat16`; `auto` is what the model was saved in, or the recipe says.

    Raises:
        FileNotFoundError: nothing of that name.
        ValueError: a recipe that must be trained first; overrides for something that is not a recipe; a dtype that
            this device only emulates.
    """
    folder = Path(name)
    is_recipe = name in list_recipes() or folder.suffix in (".yaml", ".yml")
    if overrides and not is_recipe:
        raise ValueError(f"{overrides[0]!r} overrides a recipe, and {name!r} is not one")
    if is_recipe:
        recipe = Recipe.load(name, [*overrides, *([] if dtype == "auto" else [f"encoder.dtype={dtype}"])])
        if recipe.stages:
            stages = ", ".join(stage.name for stage in recipe.stages)
            raise ValueError(f"recipe {name} has stages ({stages}); train it first: embrew train {name} --output DIR")
        return encoder(recipe)
    if (folder / "embrew.json").is_file() or (folder / "run.json").is_file():
        return Encoder.from_pretrained(folder, dtype=dtype, merge_adapter=True)
    on_hub = name not in ASSETS and not folder.exists()  # what comes with the package is asked of nobody
    if (folder / "modules.json").is_file() or (on_hub and _on_hub(name, "modules.json")):
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(
            name, model_kwargs={} if dtype == "auto" else {"dtype": pick_dtype(dtype, pick_device(None))}
        )
    return Encoder.from_pretrained(name, dtype=dtype)


def _on_hub(name: str, filename: str) -> bool:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        hf_hub_download(name, filename)
    except (HFValidationError, HfHubHTTPError, OSError):
        return False
    return True


def _known(given: Iterable[str], allowed: Sequence[str], where: str) -> None:
    for key in given:
        if key not in allowed:
            raise ValueError(f"{where} has no key {key!r}{_nearest(key, allowed)}; it has {', '.join(allowed)}")


def _nearest(name: str, allowed: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(allowed), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
