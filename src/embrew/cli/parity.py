"""`embrew parity`: compare a runtime's vectors with those of an encoder or export."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from embrew.cli.arguments import AsJson, ModelPooling, Quiet
from embrew.cli.console import loading, out, print_json


class RuntimeKind(StrEnum):
    """A kind of runtime."""

    SENTENCE_TRANSFORMERS = "sentence-transformers"
    EMBREW = "embrew"
    OPENVINO = "openvino"
    ONNX = "onnx"
    LLAMA_CPP = "llama.cpp"
    OPENAI = "openai"
    TEI = "tei"
    OLLAMA = "ollama"


def parity(
    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="Encoder (folder, Hub id or recipe), or folder of an export with parity.json."
        ),
    ],
    against: Annotated[
        str,
        typer.Option(
            metavar="B",
            help="What to compare: a folder of Sentence-Transformers, embrew or OpenVINO, a .gguf or .onnx file, or "
            "the address of a server (OpenAI's API, Text Embeddings Inference, Ollama).",
        ),
    ],
    kind: Annotated[
        RuntimeKind | None, typer.Option(help="Kind of B; by default found by its name, or by asking the server.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model of a server; by default the first that it lists.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Seconds to wait for an answer of a server.")
    ] = 60.0,
    min_cosine: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="C",
            help="Cosine that the vector of every text has to reach; by default 0.9999 if the compared weights are "
            "float32, 0.999 if they have 16 bits, else 0.99.",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Limit in tokens of B, where A has different limits for queries and documents; by default that of "
            "the export which B is.",
        ),
    ] = None,
    pooling: ModelPooling = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare a runtime's vectors with a model's; say why they differ.

    The key of a server is read from the environment variable EMBREW_API_KEY. The exit code is 0 if the vectors are
    equal, 1 if they are not, and 2 if they cannot be compared.
    """
    loading(against)
    from embrew.parity import compare

    found = compare(
        a,
        against,
        kind=None if kind is None else kind.value,
        model=model,
        timeout=timeout,
        min_cosine=min_cosine,
        max_length=max_length,
        pooling=pooling,
        show_progress_bar=True,
    )
    out().print(Text(f"{found.runtime} against {found.reference}"), soft_wrap=True)
    table = Table()
    for column in ("texts sent", "prompt"):
        table.add_column(column)
    for column in ("texts", "mean cosine", "lowest", "difference"):
        table.add_column(column, justify="right")
    for line in found.lines:
        cells = ["refused", "", ""]
        if line.agreement is not None:
            each = line.agreement
            cells = [f"{each.mean:.6f}", f"{each.lowest:.6f}", f"{each.difference:.1e}"]
        table.add_row(line.condition, line.prompt, str(line.texts), *cells)
    out().print(table)
    if found.token_ids["compared"]:
        out().print(f"token ids: {found.token_ids['different']} of {found.token_ids['compared']} texts differ")
    if found.tolerance.weights:
        said = f"assumed weights: {found.tolerance.weights}; every text has to reach {found.tolerance.min_cosine:g}"
        out().print(Text(said), soft_wrap=True)
    for note in found.verdict.notes:
        out().print(Text(note), style="yellow", soft_wrap=True)
    out().print(Text(found.verdict.sentence), style="green" if found.verdict.equal else "bold red", soft_wrap=True)
    print_json(found.as_dict())
    if not found.verdict.equal:
        raise typer.Exit(1)
