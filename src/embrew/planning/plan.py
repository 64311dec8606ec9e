"""The plan of a recipe: every stage on a device, before anything is loaded; a line of it before a stage begins."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from embrew import assembly
from embrew.data.mixing import MixedOrder
from embrew.distributed import world_size
from embrew.encoder import Encoder
from embrew.methods import Objective
from embrew.model.backbone import Backbone
from embrew.planning.architectures import config_of, tokenizer_of
from embrew.planning.devices import Device, device, device_here
from embrew.planning.rows import declared_rows, stage_rows
from embrew.planning.shapes import Shape, shape_of_stage
from embrew.planning.stage import UTILIZATION, StagePlan, passes_of, plan_stage, rows_of
from embrew.recipe import Recipe
from embrew.settings.base import Base
from embrew.storage.base_model import is_encoder

logger = logging.getLogger(__name__)
WIDTH = 8  # of the model that stands in where only lengths are needed


@dataclass(frozen=True)
class RecipePlan:
    """The plan of a recipe's stages.

    Attributes:
        stages: in order.
        device: each of the devices.
        processes: their number.
        utilization: share of a device's arithmetic that training is taken to reach.
        notes: what the plan had to assume.
    """

    stages: list[StagePlan]
    device: Device
    processes: int
    utilization: float
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        settings = {"device": self.device.name, "devices": self.processes, "utilization": self.utilization}
        return {**settings, "notes": self.notes, "stages": [stage.as_dict() for stage in self.stages]}


def plan_recipe(
    recipe: Recipe,
    *,
    gpu: str = "h100",
    processes: int = 1,
    utilization: float = UTILIZATION,
    tokens: int | None = None,
) -> RecipePlan:
    """Return the plan of a recipe; no weights are read, and no network is used.

    Args:
        recipe: with stages.
        gpu: name of a device; see `devices`.
        processes: number of such devices.
        utilization: share of the largest number of operations per second that training reaches.
        tokens: of each text, where a stage's data is not here; None: as many as the limits allow.

    Raises:
        FileNotFoundError: the model's configuration is not at hand.
        ValueError: a recipe without stages, an unknown device, a batch that the devices do not divide or that the rows
            of a stage do not fill.
    """
    if not recipe.stages:
        raise ValueError("the recipe has no stages, so there is nothing to train and to plan")
    assembly.check_recipe(recipe)
    place = device(gpu).shared(processes)
    (config, own_config), (tokenizer, own_tokenizer) = config_of(recipe), tokenizer_of(recipe)
    name, notes = recipe.encoder.model, []
    if not own_config:
        notes.append(f"config.json of {name} is not on this machine: its shape is from embrew's own table")
    if not own_tokenizer:
        notes.append("its tokenizer is not on this machine: nano's counts the tokens of templates and texts")
    if recipe.encoder.attn_implementation not in (None, "sdpa"):
        notes.append(f"encoder.attn_implementation={recipe.encoder.attn_implementation} is planned as sdpa")
    encoder = _stand_in(recipe, config, tokenizer)
    plans = []
    for index, settings in enumerate(recipe.stages):
        objective = assembly.objective(settings.objective)
        rows, order, measured = stage_rows(recipe, index, objective, encoder, tokens, processes)
        some = rows.shuffle(seed=recipe.seed) if measured else rows
        some = objective.precompute(some.select(range(min(len(some), 512))), encoder)
        passes = passes_of(objective, encoder, some.to_list(), rows_of(recipe, index, processes), recipe.seed)
        plans.append(
            plan_stage(
                recipe,
                index,
                shape_of_stage(recipe, index, config, place.kind),
                passes,
                place,
                count=len(rows) if measured else declared_rows(settings),
                processes=processes,
                measured=measured,
                order=order,
                utilization=utilization,
            )
        )
    return RecipePlan(plans, place, processes, utilization, notes)


def _stand_in(recipe: Recipe, config: Any, tokenizer: Any) -> Encoder:
    """Return an encoder with the recipe's texts, templates and tokenizer on a tiny model of random weights."""
    sizes: dict[str, Any] = {
        "vocab_size": max(config.vocab_size, len(tokenizer)),
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
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


class Announcer:
    """Logs a line of plan before each stage, as `training.train` calls it; an error is logged, not raised.

    Args:
        recipe: that is trained.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __call__(
        self, index: int, encoder: Encoder, objective: Objective, rows: Dataset, order: MixedOrder | None, sharded: bool
    ) -> None:
        """Log a line about stage `index`; or why there is none."""
        recipe, name = self.recipe, self.recipe.stages[index].name
        try:
            processes = world_size()
            place = device_here(encoder.device).shared(processes)
            copied = [] if encoder.backbone.frozen_copy is None else list(encoder.backbone.frozen_copy.parameters())
            more = sum(p.numel() for p in encoder.backbone.learned.values() if p.requires_grad)
            shape = Shape.of_model(
                encoder.backbone.model,
                encoder.backbone.inner.config,
                more=more,
                copied=sum(p.numel() for p in copied),
                copied_bytes=sum(p.nbytes for p in copied),
            )
            some = rows.shuffle(seed=recipe.seed).select(range(min(len(rows), 512))).to_list()
            passes = passes_of(objective, encoder, some, rows_of(recipe, index, processes), recipe.seed)
            plan = plan_stage(
                recipe, index, shape, passes, place, count=len(rows), processes=processes, measured=True,
                order=order, sharded=sharded, loaded=True,
            )  # fmt: skip
        except Exception as error:  # a plan helps, and must not keep anyone from training
            logger.warning("%s  no plan of its memory and time (%s: %s)", name, type(error).__name__, error)
            logger.debug("no plan of %s", name, exc_info=True)
            return
        verdict = "fits" if plan.fits else "DOES NOT FIT: see embrew plan"
        hours = plan.hours
        known = hours is not None and not math.isnan(hours)
        taking = f", about {_duration(3600 * hours)} at {UTILIZATION:.0%} of the peak FLOP/s" if known and hours else ""
        steps = "1 step" if plan.steps == 1 else f"{plan.steps:,} steps"
        logger.info(
            "%s  plan: %s of about %s tokens%s; peak about %.2f GB of %.1f GB on %s: %s",
            name, steps, f"{plan.tokens:,}", taking, plan.bytes["peak"] / 1e9, plan.free / 1e9, place.name, verdict,
        )  # fmt: skip


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
