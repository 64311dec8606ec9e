"""`embrew parity`: compare a runtime's vectors with those of an encoder or export."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from embrew.cli.arguments import ModelPooling
from embrew.cli.console import Record, loading, print_json, print_line, print_table
from embrew.cli.options import options_of

if TYPE_CHECKING:
    from embrew.parity.compare import ParityResult


@options_of(
    "embrew.parity.compare:compare",
    "kind",
    "model",
    "min_cosine",
    timeout=typer.Option(metavar="SECONDS", min=0.001),
    max_length=typer.Option(min=1),
)
def parity(a: str, *, against: str, pooling: ModelPooling = None, **options: Any) -> Record:
    """Compare a runtime's vectors with a model's; say why they differ.

    The key of a server is read from the environment variable EMBREW_API_KEY. The exit code is 0 if the vectors are
    equal, 1 if they are not, and 2 if they cannot be compared.

    Args:
        a: Encoder (folder, Hub id or recipe), or folder of an export with parity.json.
        against (B): What to compare: a folder of Sentence-Transformers, embrew or OpenVINO, a .gguf or .onnx file, or
            the address of a server (OpenAI's API, Text Embeddings Inference, Ollama).
        kind: Kind of B; by default found by its name, or by asking the server.
        model (NAME): Model of a server; by default its only one.
        min_cosine (C): Cosine that the vector of every text has to reach; by default 0.9999 if the compared weights
            are float32, 0.999 if they have 16 bits, else 0.99.
        max_length: Limit in tokens of B, where A has different limits for queries and documents; by default that of
            the export which B is.
    """
    loading(against)
    from embrew.parity.compare import compare

    result = compare(a, against, pooling=pooling, show_progress_bar=True, **options)
    _show(result)
    if not result.equal:
        print_json(asdict(result))
        raise typer.Exit(1)
    return asdict(result)


def _show(result: ParityResult) -> None:
    """Print a comparison: one line per condition and prompt, notes, and the verdict."""
    print_line(f"{result.runtime} against {result.reference}")
    rows = []
    for line in result.conditions:
        cells = ["refused"]
        if line.mean is not None:
            cells = [f"{line.mean:.6f}", f"{line.lowest:.6f}", f"{line.difference:.1e}"]
        rows.append([line.condition, line.prompt, str(line.texts), *cells])
    left = ("texts sent", "prompt")
    print_table((*left, "texts", "mean cosine", "lowest", "difference"), rows, left=left)
    if result.token_ids["compared"]:
        print_line(f"token ids: {result.token_ids['different']} of {result.token_ids['compared']} texts differ")
    if result.assumed_weights:
        print_line(f"assumed weights: {result.assumed_weights}; every text has to reach {result.min_cosine:g}")
    for note in result.notes:
        print_line((note, "yellow"))
    print_line((result.verdict, "green" if result.equal else "bold red"))
