"""`embrew context`: prompts with demonstrations, stored with a model and used by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from embrew.cli import completion
from embrew.cli.arguments import Count, read_numbers
from embrew.cli.console import Record, loading, print_line, print_table
from embrew.cli.options import command

if TYPE_CHECKING:
    from embrew.analysis.demonstrations import CountChoice
    from embrew.encoder import Encoder
    from embrew.model.contexts import Context
    from embrew.settings.encoder import Demonstration

app = typer.Typer(no_args_is_help=True)
KnownName = Annotated[str, typer.Argument(autocompletion=completion.contexts)]


@app.callback()
def _group() -> None:
    """Prompts with demonstrations."""


def _checked(model: Path) -> Path:
    """Return the folder of an encoder, or of a run's last stage; raise unless it can be opened."""
    from embrew.storage.loading import final_stage, read_settings

    folder = final_stage(model)
    read_settings(folder)
    return folder


@command(app, quiet=True)
def add(
    model: Path,
    name: str,
    *,
    instruction: str | None = None,
    demos: str | None = None,
    passage_instruction: str | None = None,
    choose: str | None = None,
    dev: list[str] | None = None,
    dev_from_train: Count = None,
    overwrite: bool = False,
) -> Record:
    """Embed the demonstrations of a task and store them with the model as a context.

    Args:
        model: Folder of a trained encoder or of a training run.
        name: Name of the context; encode(…, prompt_name=NAME) uses it.
        instruction: Instruction before queries; by default that of the file of demonstrations.
        demos (FILE): File of demonstrations with columns query and response: JSON Lines, JSON, CSV or Parquet.
        passage_instruction: Instruction before the demonstrations' passages; by default the document prompt.
        choose (0..8): Numbers of demonstrations to try; the number with the best score on --dev is kept.
        dev (DIR): Data folder with a dev split, for --choose. Repeatable.
        dev_from_train (N): Evaluate --choose on N training rows of each --dev folder, not on its dev split.
        overwrite: Replace an existing context of this name.
    """
    loading(model)
    from embrew.encoder import Encoder
    from embrew.model.contexts import Context
    from embrew.storage.parts import CONTEXTS, check_name, write_context

    folder = _checked(model)
    check_name(name)
    if (folder / CONTEXTS / name).exists() and not overwrite:
        raise FileExistsError(f"{folder} has a context {name} already; choose another name, or --overwrite")
    instruction, pairs = read_context(instruction, demos)
    if (choose is None) != (not dev):
        raise ValueError(
            "--choose (numbers of demonstrations to try) and --dev (data to try them on) must be given together"
        )
    if dev_from_train is not None and not dev:
        raise ValueError("--dev-from-train splits rows off the training rows of --dev; give --choose and --dev as well")
    encoder = Encoder.from_pretrained(folder)
    context, choice = Context(instruction, pairs, passage_instruction), None
    if choose is not None:
        choice = _choose(encoder, context, choose, dev or [], dev_from_train)
        pairs = pairs[: choice.chosen]
        context = Context(instruction, pairs, passage_instruction)
    prepared = encoder.add_context(name, context)
    write_context(folder, name, prepared, overwrite=overwrite)
    counts = {"demonstrations": len(pairs), "positions": len(prepared.row.ids)}
    print_line(
        (name, "bold"),
        f": {counts['demonstrations']} demonstrations in {counts['positions']} positions before the instruction; "
        f'encode(texts, prompt_name="{name}")',
    )
    return {"context": name, **counts, **({} if choice is None else {"choice": vars(choice)})}


def _choose(encoder: Encoder, context: Context, choose: str, dev: list[str], from_train: int | None) -> CountChoice:
    """Choose the number of demonstrations on dev splits and print all scores."""
    from embrew.analysis.demonstrations import choose_demonstrations

    choice = choose_demonstrations(encoder, context, read_numbers(choose), dev, from_train=from_train)
    columns = {"dev": choice.dev, **({"test": choice.test} if choice.test else {})}
    notes = {0: "all off", max(choice.dev): "all on"}
    rows: list[Sequence[str | Text]] = []
    for count in choice.dev:
        scores = (f"{100 * column[count]:.2f}" if count in column else "" for column in columns.values())
        remarks = [*([notes[count]] if count in notes else []), *(["chosen on dev"] if count == choice.chosen else [])]
        rows.append((Text(str(count), "bold"), *scores, ", ".join(remarks)))
    print_table(["demonstrations", *columns, ""], rows)
    for column, sets in (("dev", choice.dev_sets), ("test", choice.test_sets)):
        for name in sets:
            print_line(f"{column}: {name}")
    return choice


def read_context(instruction: str | None, demos: str | None) -> tuple[str, tuple[Demonstration, ...]]:
    """Return instruction and demonstrations of the two options."""
    if demos is None:
        if instruction is None:
            raise ValueError("nothing to add; give --instruction, --demos FILE, or both")
        return instruction, ()
    from embrew.data.demonstrations import read_demonstrations

    pairs, file_instruction = read_demonstrations(demos)
    instruction = file_instruction if instruction is None else instruction
    if instruction is None:
        raise ValueError(f"{demos} has no instruction; give --instruction (it may be empty)")
    return instruction, pairs


@command(app, "list")
def show(model: Path) -> Record:
    """List the contexts of a model.

    Args:
        model: Folder of a trained encoder or of a training run.
    """
    from embrew.storage.parts import read_contexts

    entries = [
        {
            "context": name,
            "demonstrations": len(prepared.context.demonstrations),
            "positions": len(prepared.row.ids),
            "instruction": prepared.context.instruction,
        }
        for name, prepared in read_contexts(_checked(model)).items()
    ]
    if entries:
        rows = [(*map(str, list(entry.values())[:3]), repr(entry["instruction"])) for entry in entries]
        print_table(
            entries[0], rows, left=("context", "instruction"), bold=["context"], wraps=["context", "instruction"]
        )
    else:
        print_line("no contexts")
    return {"contexts": entries}


@command(app)
def remove(model: Path, name: KnownName) -> None:
    """Remove a context from a model.

    Args:
        model: Folder of a trained encoder or of a training run.
        name: Name of the context.
    """
    from embrew.storage.parts import remove_context

    remove_context(_checked(model), name)
    print_line("removed ", (name, "bold"))
