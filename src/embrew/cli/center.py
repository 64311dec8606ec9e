"""`embrew center`: subtract a mean and principal components from an encoder's vectors."""

from __future__ import annotations

from typing import Annotated

import typer

from embrew.cli.arguments import Model, ModelPooling, Output, Verify
from embrew.cli.console import loading, print_line


def center(
    model: Model,
    *,
    texts: str,
    output: Output,
    components: Annotated[int, typer.Option(min=0)] = 0,
    pooling: ModelPooling = None,
    overwrite: bool = False,
    verify: Verify = "fast",
) -> None:
    """Subtract the mean of texts from the vectors of an encoder.

    With --components, their first principal components too. The result is a model of the same kind: a folder of embrew,
    or a Sentence-Transformers model with a layer more.

    Args:
        texts (FILE): File or folder of training texts, never of evaluated ones: rows with text, pairs (both sides,
            each with its prompt), sentence pairs, or a corpus.
        output (DIR): Folder to write.
        components (K): Number of principal components to subtract, too; 0 = the mean alone.
        overwrite: Replace DIR if it exists.
    """
    loading(model)
    from embrew.centering import center as write

    write(model, texts, output, components=components, pooling=pooling, overwrite=overwrite, verify=verify)
    print_line((str(output), "bold"), f": evaluate it with embrew evaluate {output}")
