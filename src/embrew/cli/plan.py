"""`embrew plan`: memory, time and disk of training or encoding, before it begins."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from embrew.cli import completion
from embrew.cli.arguments import AsJson, Model, Overrides
from embrew.cli.console import out, print_json

if TYPE_CHECKING:
    from embrew.planning.encoding import EncodingPlan
    from embrew.planning.plan import RecipePlan
    from embrew.planning.stage import StagePlan

TRAIN = "train"


class OrTrain(TyperGroup):
    """A command group whose first argument may be left out: `plan RECIPE` is `plan train RECIPE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `train` first, unless a command or --help is there."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = [TRAIN, *args]
        return super().parse_args(ctx, args)


class Gpu(StrEnum):
    """Device that is planned for."""

    H200 = "h200"
    H100 = "h100"
    A100_80 = "a100-80"
    A100_40 = "a100-40"
    L40S = "l40s"
    RTX_4090 = "4090"
    CPU = "cpu"


GpuName = Annotated[Gpu, typer.Option("--gpu", help="Device to plan for; cpu = this machine.")]
GpuCount = Annotated[int, typer.Option("--gpus", min=1, help="Number of such devices.")]
Utilization = Annotated[
    float,
    typer.Option("--utilization", min=0.01, max=1.0, help="Share of a device's peak FLOP/s that is reached."),
]
app = typer.Typer(cls=OrTrain, no_args_is_help=True)


@app.command(TRAIN)
def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", autocompletion=completion.recipes, help="A shipped recipe's name or a YAML file."
        ),
    ],
    overrides: Overrides = None,
    gpu: GpuName = Gpu.H100,
    gpus: GpuCount = 1,
    utilization: Utilization = 0.4,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            min=1,
            help="Tokens of each text of a stage whose data is not here; by default as many as its limits allow.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan the training of a recipe: embrew plan RECIPE."""
    from embrew import assembly
    from embrew.planning.plan import plan_recipe

    loaded = assembly.load_recipe(recipe, overrides or ())
    plan = plan_recipe(loaded, gpu=gpu.value, processes=gpus, utilization=utilization, tokens=tokens)
    console = out()
    console.print(Text(f"{recipe} on {loaded.encoder.model}, {_devices(plan.device.name, gpus)}"), soft_wrap=True)
    console.print(_table(plan))
    for note in [*plan.notes, *_assumed(plan)]:
        console.print(Text(f"note: {note}"), soft_wrap=True)
    for stage in plan.stages:
        if stage.changes:
            console.print(Text(f"{stage.name} does not fit; any of these helps, or several together:"))
            for change in stage.changes:
                console.print(Text(f"    {change}"), soft_wrap=True)
    print_json(plan.as_dict())


@app.command("encode")
def encode(
    model: Model,
    texts: Annotated[float, typer.Option("--texts", min=1, help="Number of texts, for example 1e9.")],
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Mean number of tokens of a text.")] = 180,
    gpu: GpuName = Gpu.H100,
    gpus: GpuCount = 1,
    utilization: Utilization = 0.4,
    truncate_dim: Annotated[
        int | None, typer.Option(min=1, help="Dimensions of truncated vectors; a quarter of all by default.")
    ] = None,
    shard_rows: Annotated[int, typer.Option(min=1, help="Texts per shard, as of embrew encode.")] = 32_768,
    as_json: AsJson = False,
) -> None:
    """Plan the encoding of a corpus: hours, bytes, shards."""
    from embrew.planning.encoding import plan_encoding

    plan = plan_encoding(
        model,
        texts=texts,
        tokens=tokens,
        gpu=gpu.value,
        devices=gpus,
        utilization=utilization,
        truncate_dim=truncate_dim,
        shard_rows=shard_rows,
    )
    _show_encoding(plan)
    print_json(plan.as_dict())


def _table(plan: RecipePlan) -> Table:
    """Return what the stages take, one column per stage."""
    table = Table(box=None, pad_edge=False)
    table.add_column("GB on each device, at the fullest moment of a step", style="bold")
    for stage in plan.stages:
        table.add_column(stage.name, justify="right")

    def row(name: str, shown: Callable[[StagePlan], str]) -> None:
        table.add_row(f"  {name}", *map(shown, plan.stages))

    for name in ("weights", "gradients", "optimizer", "activations", "process", "peak"):
        row(name, lambda stage, name=name: _gb(stage.bytes[name]))  # type: ignore[misc]
    row(f"fits {_gb(plan.device.memory)}", lambda stage: "yes" if stage.fits else "no")
    row("micro-batch", lambda stage: _micro_batch(stage, stage.chunk or stage.rows))
    row("largest that fits", lambda stage: _micro_batch(stage, stage.most))
    row("activation checkpointing", lambda stage: "on" if stage.recompute else "off")
    table.add_row("All devices together")
    row("parameters, millions", lambda stage: f"{stage.shape.parameters / 1e6:,.1f}")
    row("trained, millions", lambda stage: f"{stage.shape.trained / 1e6:,.1f}")
    row("tokens per step", lambda stage: f"{stage.tokens:,}")
    row("TFLOP per step", lambda stage: _short(stage.flop / 1e12))
    row("seconds per step", lambda stage: _short(stage.seconds))
    row("steps", lambda stage: "?" if stage.steps is None else f"{stage.steps:,}")
    row("hours", lambda stage: "?" if stage.hours is None else _short(stage.hours))
    row("GB on disk", lambda stage: _gb(stage.disk))
    return table


def _assumed(plan: RecipePlan) -> list[str]:
    """Return what the figures rest on."""
    found = [f"computed, not measured; hours at {plan.utilization:.0%} of the peak FLOP/s of {plan.device.name}"]
    made = [stage.name for stage in plan.stages if not stage.measured]
    if made:
        found.append(
            f"{', '.join(made)}: the data is not here; all texts are as long as --tokens or the limits allow, pairs "
            "have one negative, unless columns names none"
        )
    if any(stage.steps is None for stage in plan.stages):
        found.append("?: the number of steps depends on the rows of the data; set training.max_steps")
    sharded = [stage.name for stage in plan.stages if stage.sharded]
    if sharded:
        found.append(f"{', '.join(sharded)}: sharded weights (FSDP2)")
    return found


def _show_encoding(plan: EncodingPlan) -> None:
    console = out()
    title = (
        f"{plan.texts:,} texts of {plan.tokens} tokens with {plan.model}, {_devices(plan.device.name, plan.devices)}"
    )
    console.print(Text(title), soft_wrap=True)
    hours = f"{plan.seconds / 3600:,.3g} hours at {plan.utilization:.0%} of the peak FLOP/s"
    console.print(Text(f"{hours}; {plan.flop / 1e9:,.3g} GFLOP per text; {plan.parameters:,} parameters"))
    table = Table(title="GB on disk, with ids", title_justify="left", box=None)
    table.add_column("dimensions", justify="right")
    for name in next(iter(plan.bytes.values())):
        table.add_column(name, justify="right")
    for dimensions, sizes in plan.bytes.items():
        table.add_row(str(dimensions), *(_gb(size) for size in sizes.values()))
    console.print(table)
    lost = f"a lost worker costs at most one shard: {plan.lost_seconds:,.3g} s of one device"
    console.print(Text(f"{plan.shards:,} shards of {plan.shard_rows:,} texts; {lost}"))
    if not plan.own_config:
        console.print(Text("note: the model's config.json is not on this machine: its shape is from embrew's table"))
    console.print(Text("note: computed, not measured"))


def _micro_batch(stage: StagePlan, size: int) -> str:
    """Return a size in rows; with gradient caching, that of a chunk."""
    unit = "" if stage.chunk is None else " tokens" if stage.in_tokens else " texts"
    return f"{size:,}{unit}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _devices(name: str, count: int) -> str:
    return f"{count} × {name}" if count > 1 else name


def _gb(size: float) -> str:
    return f"{size / 1e9:,.1f}" if size >= 1e9 else f"{size / 1e9:.2f}"
