"""The plan of a recipe: every stage on a device, before anything is loaded; a line of it before a stage begins."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from embrew.data.fingerprints import set_aside
from embrew.data.mixing import MixedOrder
from embrew.data.reading import expand
from embrew.distributed import world_size
from embrew.encoder import Encoder
from embrew.methods import Objective
from embrew.model.backbone import Backbone
from embrew.planning.devices import Device, Gpu, device, device_here
from embrew.planning.shapes import config_of, shape_of_stage, tokenizer_of
from embrew.planning.stage import UTILIZATION, StagePlan, passes_of, plan_stage, rows_of
from embrew.recipe import DataConfig, Recipe, build
from embrew.settings.base import Base
from embrew.storage.base_model import is_encoder

logger = logging.getLogger(__name__)
WIDTH = 8  # width of the tiny model that is opened where only lengths are needed
MAX_SAMPLE = 512  # maximum number of rows that are tokenised
WORD, OTHER_WORD = "word ", "text "  # one token each in most vocabularies, and equally long
SECOND_SENTENCE = ". Word word"  # llama2vec needs two sentences
GENERATED_ROWS = 64  # equally long, but different, or none could be a demonstration for another
DIGITS = GENERATED_ROWS.bit_length() - 1  # words that make the texts of generated rows different


@dataclass(frozen=True)
class RecipePlan:
    """The plan of a recipe's stages.

    Attributes:
        stages: plans of the stages, in order.
        device: device of each process.
        processes: number of processes, one per device.
        utilization: assumed share of a device's peak FLOP/s that training reaches.
        notes: assumptions of the plan.
    """

    stages: list[StagePlan]
    device: Device
    processes: int
    utilization: float
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        settings = {"device": self.device.name, "devices": self.processes, "utilization": self.utilization}
        return {**settings, "notes": self.notes, "stages": [asdict(stage) for stage in self.stages]}


def plan_recipe(
    recipe: Recipe,
    *,
    gpu: Gpu = "h100",
    processes: int = 1,
    utilization: float = UTILIZATION,
    tokens: int | None = None,
) -> RecipePlan:
    """Return the plan of a recipe; no weights are read, and no network is used.

    Args:
        recipe: recipe with stages.
        gpu: name of a device; see `devices`.
        processes: number of such devices.
        utilization: share of a device's peak FLOP/s that training reaches.
        tokens: number of tokens of each text, where a stage's data is not here; None: as many as the limits allow.

    Raises:
        FileNotFoundError: the model's configuration is not at hand.
        ValueError: a recipe without stages, an unknown device, a batch that the devices do not divide or that the rows
            of a stage do not fill.
    """
    if not recipe.stages:
        raise ValueError("the recipe has no stages, so there is nothing to train and to plan")
    build.check_recipe(recipe)
    planned_device = device(gpu, processes)
    (config, own_config), (tokenizer, own_tokenizer) = config_of(recipe), tokenizer_of(recipe)
    name, notes = recipe.encoder.model, []
    if not own_config:
        notes.append(f"config.json of {name} is not on this machine: its shape is from embrew's own table")
    if not own_tokenizer:
        notes.append("its tokenizer is not on this machine: nano's counts the tokens of templates and texts")
    if recipe.encoder.attn_implementation not in (None, "sdpa"):
        notes.append(f"encoder.attn_implementation={recipe.encoder.attn_implementation} is planned as sdpa")
    encoder = _tiny_encoder(recipe, config, tokenizer)
    plans = []
    for index, settings in enumerate(recipe.stages):
        objective = build.objective(settings.objective)
        rows, order, measured = stage_rows(recipe, index, objective, encoder, tokens, processes)
        limits = [config.max_rows for config in settings.datasets]
        max_rows = None if None in limits else sum(limit or 0 for limit in limits)
        sample = rows.shuffle(seed=recipe.seed) if measured else rows
        sample = objective.precompute(sample.select(range(min(len(sample), MAX_SAMPLE))), encoder)
        passes = passes_of(objective, encoder, sample.to_list(), rows_of(recipe, index, processes), recipe.seed)
        plans.append(
            plan_stage(
                recipe,
                index,
                shape_of_stage(recipe, index, config, planned_device.kind),
                passes,
                planned_device,
                count=len(rows) if measured else max_rows,
                processes=processes,
                measured=measured,
                order=order,
                utilization=utilization,
            )
        )
    return RecipePlan(plans, planned_device, processes, utilization, notes)


def _tiny_encoder(recipe: Recipe, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Encoder:
    """Return an encoder with the recipe's texts, templates and tokenizer on a tiny model of random weights."""
    sizes: dict[str, Any] = dict.fromkeys(("hidden_size", "intermediate_size"), WIDTH)
    sizes |= dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1)
    sizes |= {
        "vocab_size": max(config.vocab_size, len(tokenizer)),
        "max_position_embeddings": 1 << 16,
        "pad_token_id": 0,
    }
    model: Any = BertModel(BertConfig(**sizes)) if is_encoder(config) else LlamaForCausalLM(LlamaConfig(**sizes))
    backbone = Backbone(model)
    settings = recipe.encoder
    if settings.memory_tokens:
        backbone.add_memory(settings.memory_tokens)
    if settings.soft_prompt_tokens:
        backbone.add_soft_prompt(settings.soft_prompt_tokens)
    return Encoder(backbone, tokenizer, Base("hub", settings.model), settings.settings)


def stage_rows(
    recipe: Recipe, index: int, objective: Objective, encoder: Encoder, tokens: int | None = None, processes: int = 1
) -> tuple[Dataset, MixedOrder | None, bool]:
    """Return rows, their order, and whether they are those of the stage's data."""
    stage = recipe.stages[index]
    if not all(_is_here(config) for config in stage.datasets):
        config = next(filter(_has_negatives, stage.datasets), stage.datasets[0])
        rows = [_longest(config, objective, encoder, tokens, number) for number in range(GENERATED_ROWS)]
        return objective.prepare(Dataset.from_list(rows), encoder), None, False
    parts = [
        objective.prepare(
            build.short_rows(build.rows(config, objective, max_rows=config.max_rows), config, encoder), encoder
        )
        for config in stage.datasets
    ]
    parts, _ = set_aside(parts, objective.held_out)
    order = build.order(stage, [len(part) for part in parts], objective, seed=recipe.seed, processes=processes)
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts), order, True


def _is_here(config: DataConfig) -> bool:
    try:
        return all(Path(expand(path)).exists() for path in config.paths)
    except (ValueError, FileNotFoundError):  # a variable that is not set
        return False


def _has_negatives(config: DataConfig) -> bool:
    """Whether pairs are taken to have negatives: not if `columns` names query and positive alone."""
    return not {"query", "positive"} <= set(config.columns) or "negatives" in config.columns


def _longest(
    config: DataConfig, objective: Objective, encoder: Encoder, tokens: int | None, number: int
) -> dict[str, Any]:
    """Return row `number`, whose texts are as long as the limits allow, or have `tokens`; pairs have one negative."""
    first = "".join(OTHER_WORD if number >> digit & 1 else WORD for digit in range(DIGITS))

    def text(side: str) -> str:
        limits = [encoder.max_length[side], tokens, config.max_tokens and config.max_tokens - 1]
        count = min(limit for limit in limits if limit is not None)
        return (first + WORD * count)[: len(WORD) * count][: config.max_chars]

    query, document = text("query"), text("document")
    if objective.rows_kind == "text":
        return {"text": document[: -len(SECOND_SENTENCE)].rstrip() + SECOND_SENTENCE}
    if objective.rows_kind == "scored":
        return {"sentence1": query, "sentence2": document, "score": 1.0}
    negatives = [document] if _has_negatives(config) else []
    return {"query": query, "positive": document, "negatives": negatives, "instruction": config.instruction}


def announce(
    recipe: Recipe,
    index: int,
    encoder: Encoder,
    objective: Objective,
    rows: Dataset,
    order: MixedOrder | None,
    sharded: bool,
) -> None:
    """Log a line of plan before stage `index` begins, as `training.train` calls it; an error is logged, not raised."""
    name, processes = recipe.stages[index].name, world_size()
    try:
        current_device = device_here(encoder.device, processes)
        shape = shape_of_stage(recipe, index, encoder.backbone.inner.config, encoder.device.type)
        sample = rows.shuffle(seed=recipe.seed).select(range(min(len(rows), MAX_SAMPLE))).to_list()
        passes = passes_of(objective, encoder, sample, rows_of(recipe, index, processes), recipe.seed)
        plan = plan_stage(
            recipe, index, shape, passes, current_device, count=len(rows), processes=processes, measured=True,
            order=order, sharded=sharded, loaded=True,
        )  # fmt: skip
    except Exception as error:  # training must not fail because of its plan
        logger.warning("%s  no plan of its memory and time (%s: %s)", name, type(error).__name__, error)
        return
    time = f", about {3600 * plan.hours:,.0f} s at {UTILIZATION:.0%} of the peak FLOP/s" if plan.hours else ""
    memory = f"{plan.bytes['peak'] / 1e9:.2f} GB of {plan.bytes['device'] / 1e9:.1f} GB on {current_device.name}"
    verdict = "fits" if plan.fits else "DOES NOT FIT: see embrew plan"
    steps = f"{plan.steps:,} step{'' if plan.steps == 1 else 's'} of about {plan.tokens:,} tokens"
    logger.info("%s  plan: %s%s; peak about %s: %s", name, steps, time, memory, verdict)
