"""`embrew plan`: memory, time and disk of training or encoding, before it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Column, Table

from embrew.cli.arguments import AsJson, Count, Overrides, RecipeName
from embrew.cli.console import out, print_json, print_line

if TYPE_CHECKING:
    from embrew.planning.plan import RecipePlan
    from embrew.planning.stage import StagePlan

TOKENS = 180  # of a text that is encoded


Gpu = Literal["h200", "h100", "a100-80", "a100-40", "l40s", "4090", "a10", "l4", "3060", "cpu"]


def plan(
    name: RecipeName,
    overrides: Overrides = None,
    *,
    gpu: Gpu = "h100",
    gpus: Annotated[int, typer.Option(min=1)] = 1,
    utilization: Annotated[float, typer.Option(min=0.01, max=1.0)] = 0.4,
    tokens: Count = None,
    texts: Annotated[float | None, typer.Option(min=1)] = None,
    truncate_dim: Count = None,
    as_json: AsJson = False,
) -> None:
    """Plan the training of a recipe; with --texts, encoding a corpus.

    Args:
        name: A shipped recipe's name or a YAML file; with --texts also a model's folder or id.
        gpu: Device to plan for; cpu = this machine.
        gpus: Number of such devices.
        utilization: Share of a device's peak FLOP/s that is reached.
        tokens: Tokens of each text of a stage whose data is not here; by default as many as its limits allow. With
            --texts: mean number of tokens, by default 180.
        texts: Plan the encoding of this number of texts, for example 1e9.
        truncate_dim: With --texts: dimensions of truncated vectors; a quarter of all by default.
    """
    if texts is None:
        if truncate_dim is not None:
            raise ValueError("--truncate-dim is of the encoding of a corpus; give --texts, too")
        from embrew.planning.plan import plan_recipe
        from embrew.recipe import build

        recipe = build.load_recipe(name, overrides or ())
        planned = plan_recipe(recipe, gpu=gpu, processes=gpus, utilization=utilization, tokens=tokens)
        _show_training(f"{name} on {recipe.encoder.model}", planned)
        print_json(planned.as_dict())
        return
    from embrew.planning.encoding import plan_encoding

    if overrides:
        raise ValueError(
            f"{overrides[0]}: the encoding of a corpus has no settings; leave it out, or leave out --texts"
        )
    document = plan_encoding(
        name,
        texts=texts,
        tokens=tokens or TOKENS,
        gpu=gpu,
        devices=gpus,
        utilization=utilization,
        truncate_dim=truncate_dim,
    )
    _show_encoding(document)
    print_json(document)


def _show_training(title: str, planned: RecipePlan) -> None:
    print_line(f"{title}, {_devices(planned.device.name, planned.processes)}")
    out().print(_table(planned))
    for note in [*planned.notes, *_assumed(planned)]:
        print_line(f"note: {note}")
    for stage in planned.stages:
        if stage.changes:
            print_line(f"{stage.name} does not fit; any of these helps, or several together:")
            for change in stage.changes:
                print_line(f"    {change}")


def _table(plan: RecipePlan) -> Table:
    """Return what the stages take, one column per stage."""
    stages = [Column(stage.name, justify="right") for stage in plan.stages]
    first = Column("GB on each device, at the fullest moment of a step", style="bold")
    table = Table(first, *stages, box=None, pad_edge=False)

    def row(name: str, cell: Callable[[StagePlan], str]) -> None:
        table.add_row(f"  {name}", *map(cell, plan.stages))

    for name in ("weights", "gradients", "optimizer", "activations", "process", "peak"):
        table.add_row(f"  {name}", *(_gb(stage.bytes[name]) for stage in plan.stages))
    row(f"fits {_gb(plan.device.memory)}", lambda stage: "yes" if stage.fits else "no")
    row("micro-batch", lambda stage: f"{stage.chunk or stage.rows:,}{_unit(stage)}")
    row("largest that fits", lambda stage: f"{stage.most:,}{_unit(stage)}")
    row("activation checkpointing", lambda stage: "on" if stage.recompute else "off")
    table.add_row("All devices together")
    row("parameters, millions", lambda stage: f"{stage.parameters / 1e6:,.1f}")
    row("trained, millions", lambda stage: f"{stage.trained / 1e6:,.1f}")
    row("tokens per step", lambda stage: f"{stage.tokens:,}")
    row("TFLOP per step", lambda stage: _short(stage.flop / 1e12))
    row("seconds per step", lambda stage: _short(stage.seconds))
    row("steps", lambda stage: "?" if stage.steps is None else f"{stage.steps:,}")
    row("hours", lambda stage: "?" if stage.hours is None else _short(stage.hours))
    row("GB on disk", lambda stage: _gb(stage.bytes["disk"]))
    return table


def _unit(stage: StagePlan) -> str:
    return "" if stage.chunk is None else " tokens" if stage.in_tokens else " texts"


def _assumed(plan: RecipePlan) -> list[str]:
    """Return what the figures rest on."""
    notes = [f"computed, not measured; hours at {plan.utilization:.0%} of the peak FLOP/s of {plan.device.name}"]
    assumed = [stage.name for stage in plan.stages if not stage.measured]
    if assumed:
        notes.append(
            f"{', '.join(assumed)}: the data is not here; all texts are as long as --tokens or the limits allow, pairs "
            "have one negative, unless columns names none"
        )
    if any(stage.steps is None for stage in plan.stages):
        notes.append("?: the number of steps depends on the rows of the data; set training.max_steps")
    sharded = [stage.name for stage in plan.stages if stage.sharded]
    if sharded:
        notes.append(f"{', '.join(sharded)}: sharded weights (FSDP2)")
    return notes


def _show_encoding(plan: dict[str, Any]) -> None:
    texts = f"{plan['texts']:,} texts of {plan['tokens']} tokens with {plan['model']}"
    print_line(f"{texts}, {_devices(plan['device'], plan['devices'])}")
    hours = f"{plan['hours']:,.3g} hours at {plan['utilization']:.0%} of the peak FLOP/s"
    print_line(f"{hours}; {plan['flop_per_text'] / 1e9:,.3g} GFLOP per text; {plan['parameters']:,} parameters")
    table = Table(title="GB on disk, with ids", title_justify="left", box=None)
    for name in ("dimensions", "float32", "int8", "binary"):
        table.add_column(name, justify="right")
    for dimensions, sizes in plan["bytes"].items():
        table.add_row(str(dimensions), *map(_gb, sizes.values()))
    out().print(table)
    lost = f"a lost worker costs at most one shard: {plan['lost_worker_seconds']:,.3g} s of one device"
    print_line(f"{plan['shards']:,} shards of {plan['shard_rows']:,} texts; {lost}")
    if not plan["own_config"]:
        print_line("note: the model's config.json is not on this machine: its shape is from embrew's table")
    print_line("note: computed, not measured")


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _devices(name: str, count: int) -> str:
    return f"{count} × {name}" if count > 1 else name


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f}" if size >= 1e9 else f"{size / 1e9:.2f}"
