"""`embrew export`: write a folder that other runtimes open without embrew."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from embrew.cli.arguments import Model, Quiet
from embrew.cli.console import loading, out


class Target(StrEnum):
    """A runtime that an export is made for."""

    SENTENCE_TRANSFORMERS = "sentence-transformers"
    OPENVINO = "openvino"
    ONNX = "onnx"
    LLAMA_CPP = "llama.cpp"
    VLLM = "vllm"
    TEI = "tei"


class Weights(StrEnum):
    """Type of the weights."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"


class Verification(StrEnum):
    """How an export is verified."""

    FULL = "full"
    OFF = "off"


def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write.")],
    runtimes: Annotated[
        list[Target] | None,
        typer.Option("--for", help="Runtime that will read DIR, repeatable; sentence-transformers by default."),
    ] = None,
    weights: Annotated[
        Weights | None,
        typer.Option(help="Type of the weights, for runtimes that have a choice; by default fp32, llama.cpp fp16."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DIR if it exists.")] = False,
    verify: Annotated[
        Verification,
        typer.Option(
            help="Verify the export: full = open DIR in a fresh process without embrew and compare vectors, off "
            "= do not."
        ),
    ] = Verification.FULL,
    prompt_name: Annotated[
        str | None,
        typer.Option(
            help="Prompt to export where the template has the instruction after the text, so that the folder "
            "can hold one only."
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Maximum number of tokens per text, prompts and contexts included; by default the model's. "
            "Required where the model has different limits for queries and documents.",
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of layers to keep, from the first on; by default all."),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="K", help="Number of leading dimensions to keep, normalised afterwards; by default all."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Export a model as a Sentence-Transformers folder.

    SentenceTransformer(DIR) opens it without embrew and gives the same vectors.
    """
    if folder.exists() and not overwrite:
        raise FileExistsError(f"{folder} exists; give another folder, or --overwrite to replace it")
    loading(model)
    from embrew import build
    from embrew.export.exporting import export_encoder
    from embrew.modeling.encoder import Encoder

    encoder = build.open_model(model)
    if not isinstance(encoder, Encoder):
        raise ValueError(f"{model} is a Sentence-Transformers model already; there is nothing to export")
    export_encoder(
        encoder,
        folder,
        runtimes=[target.value for target in runtimes or [Target.SENTENCE_TRANSFORMERS]],
        weights=None if weights is None else weights.value,
        overwrite=overwrite,
        verify=verify.value,
        prompt_name=prompt_name,
        max_length=max_length,
        num_layers=layers,
        truncate_dim=dim,
    )
    stock = (folder / "modules.json").is_file()
    how = f'open it with SentenceTransformer("{folder}")' if stock else "its README.md says how it is opened"
    out().print(f"[bold]{escape(str(folder))}[/]: {escape(how)}")
