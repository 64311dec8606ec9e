"""The plan of a recipe: every stage on a device, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from embrew import build
from embrew.planning.devices import Device, device
from embrew.planning.encoders import Parts, plan_encoder
from embrew.planning.rows import MADE, declared_rows, stage_rows
from embrew.planning.run import StageRun
from embrew.planning.stage import SAMPLED, UTILIZATION, Stage, StagePlan
from embrew.planning.taken import taken_by_process
from embrew.recipe import Recipe


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
    build.check_recipe(recipe)
    place, parts = device(gpu).shared(processes), Parts.of(recipe)
    notes = []
    if not parts.own_config:
        notes.append(
            f"config.json of {recipe.encoder.model} is not on this machine: its shape is from embrew's own table"
        )
    if not parts.own_tokenizer:
        notes.append("its tokenizer is not on this machine: nano's counts the tokens of templates and texts")
    notes += _not_planned(recipe)
    plans = []
    for index, settings in enumerate(recipe.stages):
        objective = build.objective(settings.objective)
        planned = plan_encoder(recipe, index, objective, parts, place.kind)
        rows, order, measured = stage_rows(recipe, index, objective, planned.encoder, tokens, processes)
        count = len(rows) if measured else declared_rows(settings)
        run = StageRun.of(recipe, index, count=count, processes=processes, kind=place.kind, order=order)
        stage = Stage(
            planned.encoder,
            objective,
            rows,
            order,
            run,
            place,
            taken=taken_by_process() if place.kind == "cpu" else None,
            spared=planned.spared,
            widest=planned.widest,
            sampled=SAMPLED if measured else MADE,
        )
        plans.append(stage.plan(utilization=utilization, measured=measured))
    return RecipePlan(plans, place, processes, utilization, notes)


def _not_planned(recipe: Recipe) -> list[str]:
    """Return notes of settings that change memory and time, and that a plan does not follow."""
    notes = []
    kernel = recipe.encoder.attn_implementation
    if kernel not in (None, "sdpa"):
        notes.append(
            f"encoder.attn_implementation={kernel} is not counted: attention is planned as sdpa computes it"
            + ("; eager keeps all attention weights, and takes more" if kernel == "eager" else "")
        )
    compiled = [stage.name for stage in recipe.stages if stage.training.get("torch_compile")]
    if compiled:
        notes.append(f"{', '.join(compiled)}: torch_compile is not counted; compiled layers take other memory and time")
    return notes
