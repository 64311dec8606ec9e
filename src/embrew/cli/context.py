"""`embrew context`: prompts with demonstrations, stored with a model and used by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.text import Text

from embrew.cli import completion
from embrew.cli.arguments import AsJson, Quiet, read_numbers
from embrew.cli.console import loading, out, plain_table, print_json, say

if TYPE_CHECKING:
    from embrew.encoder import Encoder
    from embrew.evaluation.demonstration_count import Choice
    from embrew.model.contexts import Context
    from embrew.settings.encoder import Demonstration

app = typer.Typer(no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained encoder or of a training run.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context; encode(…, prompt_name=NAME) uses it.")]
KnownName = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=completion.contexts, help="Name of the context.")
]

Instruction = Annotated[
    str | None, typer.Option(help="Instruction before queries; by default that of the file of demonstrations.")
]
Demos = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="File of demonstrations with columns query and response: JSON Lines, JSON, CSV or Parquet."
    ),
]
PassageInstruction = Annotated[
    str | None, typer.Option(help="Instruction before the demonstrations' passages; by default the document prompt.")
]
Choose = Annotated[
    str | None,
    typer.Option(
        metavar="0..8", help="Numbers of demonstrations to try; the number with the best score on --dev is kept."
    ),
]
Dev = Annotated[
    list[str] | None,
    typer.Option("--dev", metavar="DIR", help="Data folder with a dev split, for --choose. Repeatable."),
]
DevFromTrain = Annotated[
    int | None,
    typer.Option(
        "--dev-from-train",
        min=1,
        metavar="N",
        help="Evaluate --choose on N training rows of each --dev folder, not on its dev split.",
    ),
]


@app.callback()
def _group() -> None:
    """Prompts with demonstrations."""


def _checked(model: Path) -> Path:
    """Return the folder of an encoder, or of a run's last stage; raise unless it can be opened."""
    from embrew.storage.loading import final_stage, read_settings

    folder = final_stage(model)
    read_settings(folder)
    return folder


@app.command()
def add(
    model: Folder,
    name: Name,
    instruction: Instruction = None,
    demos: Demos = None,
    passage_instruction: PassageInstruction = None,
    choose: Choose = None,
    dev: Dev = None,
    dev_from_train: DevFromTrain = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing context of this name.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Embed the demonstrations of a task and store them with the model as a context."""
    loading(model)
    from embrew.encoder import Encoder
    from embrew.model.contexts import Context
    from embrew.storage.parts import CONTEXTS, check_name, write_context

    folder = _checked(model)
    check_name(name)
    if (folder / CONTEXTS / name).exists() and not overwrite:
        raise FileExistsError(f"{folder} has a context {name} already; choose another name, or --overwrite")
    words, pairs = read_context(instruction, demos)
    if (choose is None) != (not dev):
        raise ValueError(
            "--choose (numbers of demonstrations to try) and --dev (data to try them on) must be given together"
        )
    if dev_from_train is not None and not dev:
        raise ValueError("--dev-from-train splits rows off the training rows of --dev; give --choose and --dev as well")
    encoder = Encoder.from_pretrained(folder)
    context, choice = Context(words, pairs, passage_instruction), None
    if choose is not None:
        choice = _choose(encoder, context, choose, dev or [], dev_from_train)
        pairs = pairs[: choice.chosen]
        context = Context(words, pairs, passage_instruction)
    prepared = encoder.add_context(name, context)
    write_context(folder, name, prepared, overwrite=overwrite)
    out().print(
        f"[bold]{escape(name)}[/]: {len(pairs)} demonstrations in {len(prepared.row.ids)} positions before the "
        f'instruction; encode(texts, prompt_name="{escape(name)}")'
    )
    chosen = {} if choice is None else {"choice": vars(choice)}
    print_json({"context": name, "demonstrations": len(pairs), "positions": len(prepared.row.ids), **chosen})


def _choose(encoder: Encoder, context: Context, choose: str, dev: list[str], from_train: int | None) -> Choice:
    """Choose the number of demonstrations on dev splits and print all scores."""
    from embrew.evaluation.demonstration_count import choose_demonstrations

    choice = choose_demonstrations(encoder, context, read_numbers(choose), dev, from_train=from_train)
    columns = {"dev": choice.dev, **({"test": choice.test} if choice.test else {})}
    shown = plain_table(["demonstrations", *columns, ""])
    for count in choice.dev:
        scores = (f"{100 * column[count]:.2f}" if count in column else "" for column in columns.values())
        notes = {0: "all off", max(choice.dev): "all on"}
        remarks = [*([notes[count]] if count in notes else []), *(["chosen on dev"] if count == choice.chosen else [])]
        shown.add_row(Text(str(count), style="bold"), *scores, ", ".join(remarks))
    out().print(shown)
    for column, sets in (("dev", choice.dev_sets), ("test", choice.test_sets)):
        for name in sets:
            say(f"{column}: {name}")
    return choice


def read_context(instruction: str | None, demos: str | None) -> tuple[str, tuple[Demonstration, ...]]:
    """Return instruction and demonstrations of the two options."""
    if demos is None:
        if instruction is None:
            raise ValueError("nothing to add; give --instruction, --demos FILE, or both")
        return instruction, ()
    from embrew.cli.demonstrations import read_demonstrations

    pairs, own = read_demonstrations(demos)
    words = own if instruction is None else instruction
    if words is None:
        raise ValueError(f"{demos} has no instruction; give --instruction (it may be empty)")
    return words, pairs


@app.command("list")
def show(model: Folder, as_json: AsJson = False) -> None:
    """List the contexts of a model."""
    from embrew.storage.parts import read_contexts

    folder = _checked(model)
    shown = plain_table(["context", "demonstrations", "positions", "instruction"], left=("context", "instruction"))
    entries = []
    for name, prepared in read_contexts(folder).items():
        context, positions = prepared.context, len(prepared.row.ids)
        entries.append(
            {
                "context": name,
                "demonstrations": len(context.demonstrations),
                "positions": positions,
                "instruction": context.instruction,
            }
        )
        counts = str(len(context.demonstrations)), str(positions)
        shown.add_row(Text(name, style="bold"), *counts, Text(repr(context.instruction)))
    out().print(shown if shown.row_count else "no contexts")
    print_json({"contexts": entries})


@app.command()
def remove(model: Folder, name: KnownName) -> None:
    """Remove a context from a model."""
    from embrew.storage.parts import remove_context

    remove_context(_checked(model), name)
    out().print(f"removed [bold]{escape(name)}[/]")
