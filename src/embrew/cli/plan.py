"""`embrew plan`: memory, time and disk of training or encoding, before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from embrew.cli.arguments import Count, Overrides, RecipeName
from embrew.cli.console import Record, print_line, print_table
from embrew.cli.options import options_of

if TYPE_CHECKING:
    from embrew.planning.plan import RecipePlan
    from embrew.planning.stage import StagePlan


MEMORY = ("weights", "gradients", "optimizer", "activations", "process", "peak")


@options_of(
    "embrew.planning.plan:plan_recipe",
    "gpu",
    processes=typer.Option("--gpus", min=1),
    utilization=typer.Option(min=0.01, max=1.0),
    tokens=typer.Option(min=1),
)
def plan(
    name: RecipeName,
    overrides: Overrides = None,
    *,
    texts: Annotated[float | None, typer.Option(min=1)] = None,
    truncate_dim: Count = None,
    **options: Any,
) -> Record:
    """Plan the training of a recipe; with --texts, encoding a corpus.

    Args:
        name: A shipped recipe's name or a YAML file; with --texts also a model's folder or id.
        gpu: Device to plan for; cpu = this machine.
        processes: Number of such devices.
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
        planned = plan_recipe(recipe, **options)
        _show_training(f"{name} on {recipe.encoder.model}", planned)
        return planned.as_dict()
    from embrew.planning.encoding import plan_encoding

    if overrides:
        raise ValueError(
            f"{overrides[0]}: the encoding of a corpus has no settings; leave it out, or leave out --texts"
        )
    devices = options.pop("processes")
    document = plan_encoding(name, texts=texts, truncate_dim=truncate_dim, devices=devices, **options)
    _show_encoding(document)
    return document


def _show_training(title: str, planned: RecipePlan) -> None:
    print_line(f"{title}, {_devices(planned.device.name, planned.processes)}")
    first = "GB on each device, at the fullest moment of a step"
    stages = planned.stages
    rows = [
        *((name, *(_gb(stage.bytes[name]) for stage in stages)) for name in MEMORY),
        (f"fits {_gb(planned.device.memory)}", *("yes" if stage.fits else "no" for stage in stages)),
        ("micro-batch", *(f"{stage.chunk or stage.rows:,}{_unit(stage)}" for stage in stages)),
        ("largest that fits", *(f"{stage.most:,}{_unit(stage)}" for stage in stages)),
        ("activation checkpointing", *("on" if stage.recompute else "off" for stage in stages)),
        ("All devices together",),
        ("parameters, millions", *(f"{stage.parameters / 1e6:,.1f}" for stage in stages)),
        ("trained, millions", *(f"{stage.trained / 1e6:,.1f}" for stage in stages)),
        ("tokens per step", *(f"{stage.tokens:,}" for stage in stages)),
        ("TFLOP per step", *(_short(stage.flop / 1e12) for stage in stages)),
        ("seconds per step", *(_short(stage.seconds) for stage in stages)),
        ("steps", *("?" if stage.steps is None else f"{stage.steps:,}" for stage in stages)),
        ("hours", *("?" if stage.hours is None else _short(stage.hours) for stage in stages)),
        ("GB on disk", *(_gb(stage.bytes["disk"]) for stage in stages)),
    ]
    indented = [(row[0] if len(row) == 1 else f"  {row[0]}", *row[1:]) for row in rows]
    print_table((first, *(stage.name for stage in stages)), indented, left=[first], bold=[first], wraps=[first])
    for note in [*planned.notes, *_assumed(planned)]:
        print_line(f"note: {note}")
    for stage in stages:
        if stage.changes:
            print_line(f"{stage.name} does not fit; any of these helps, or several together:")
            for change in stage.changes:
                print_line(f"    {change}")


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


def _show_encoding(plan: Record) -> None:
    texts = f"{plan['texts']:,} texts of {plan['tokens']} tokens with {plan['model']}"
    print_line(f"{texts}, {_devices(plan['device'], plan['devices'])}")
    hours = f"{plan['hours']:,.3g} hours at {plan['utilization']:.0%} of the peak FLOP/s"
    print_line(f"{hours}; {plan['flop_per_text'] / 1e9:,.3g} GFLOP per text; {plan['parameters']:,} parameters")
    rows = [(str(dimensions), *map(_gb, sizes.values())) for dimensions, sizes in plan["bytes"].items()]
    print_table(("dimensions", "float32", "int8", "binary"), rows, title="GB on disk, with ids")
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
