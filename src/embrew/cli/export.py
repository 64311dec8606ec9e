"""`embrew export`: write a folder that other runtimes open without embrew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embrew.cli.arguments import Model, ModelPooling
from embrew.cli.console import loading, print_line
from embrew.cli.options import options_of

if TYPE_CHECKING:
    from embrew.runtimes.portable import Int8
    from embrew.text_encoder import TextEncoder


CALIBRATION_TEXTS = 300


@options_of(
    "embrew.export.exporting:export_encoder",
    "weights",
    "overwrite",
    "verify",
    "prompt_name",
    runtimes=typer.Option("--for"),
    max_length=typer.Option(min=1),
    num_layers=typer.Option("--layers", min=1),
    truncate_dim=typer.Option("--dim", min=1),
)
def export(
    model: Model,
    folder: Path,
    *,
    pooling: ModelPooling = None,
    calibrate: Path | None = None,
    min_cosine: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    dev: Path | None = None,
    **options: Any,
) -> None:
    """Export a model for software that opens it without embrew.

    The vectors are the same. By default it is a folder for Sentence-Transformers.

    Args:
        folder (DIR): Folder to write.
        runtimes: Runtime that will read DIR, repeatable; sentence-transformers by default.
        weights: Type of the weights, for runtimes that have a choice; by default fp32, llama.cpp fp16.
        overwrite: Replace DIR if it exists.
        verify: Verify the export: full = open DIR in a fresh process without embrew and compare vectors, off = do not.
        max_length (N): Maximum number of tokens per text, prompts and contexts included; by default the model's.
            Required where the model has different limits for queries and documents.
        num_layers (N): Number of layers to keep, from the first on; by default all.
        truncate_dim (K): Number of leading dimensions to keep, normalised afterwards; by default all.
        calibrate (TEXTS): With --for openvino --weights int8: texts like yours, in a file or folder that encode reads;
            activations are quantised too, by the ranges of 300 of them. By default weights alone.
        min_cosine (C): With int8 for openvino: smallest mean cosine to the model's vectors; below it, nothing is
            written. By default 0.99.
        dev (DATA): With int8 for openvino: data folder, as of evaluate, that both models are scored on; its dev split
            where it has one.
    """
    if folder.exists() and not options["overwrite"]:
        raise FileExistsError(f"{folder} exists; give another folder, or --overwrite to replace it")
    int8 = _int8(calibrate, min_cosine, dev)
    loading(model)
    from embrew import opening
    from embrew.encoder import Encoder
    from embrew.export.exporting import export_encoder
    from embrew.runtimes.openvino_encoder import OpenVINOEncoder
    from embrew.runtimes.registry import RUNTIMES
    from embrew.variants import VariantEncoder

    encoder = opening.open_model(model, pooling=pooling)
    if isinstance(encoder, VariantEncoder):
        raise ValueError(f"{model} writes variants of each text, which no export does; leave encoder.variants out")
    is_graph = isinstance(encoder, OpenVINOEncoder)
    if is_graph or not isinstance(encoder, Encoder):
        what = "an export for OpenVINO" if is_graph else "a Sentence-Transformers model"
        raise ValueError(
            f"{model} is {what}, and an encoder of embrew is exported; give the encoder that it was "
            "made of, or run it as it is: encode, evaluate and search have --backend openvino"
        )
    try:
        export_encoder(encoder, folder, int8=int8, **options)
    except RuntimeError as error:  # a runtime gives other vectors, which a user has to read, and not a traceback
        raise ValueError(str(error)) from error
    parity = json.loads((folder / "parity.json").read_text(encoding="utf-8"))
    print_line((str(folder), "bold"), "; its README.md says more")
    for name in dict.fromkeys(options.get("runtimes", ["sentence-transformers"])):
        print_line(f"{name}: {RUNTIMES[name].opening(folder, parity)}")


def _int8(calibrate: Path | None, min_cosine: float | None, dev: Path | None) -> Int8 | None:
    """Return the settings of int8 weights; None where no option of theirs is given."""
    if calibrate is None and min_cosine is None and dev is None:
        return None
    from embrew.corpus.rows import sample_texts
    from embrew.runtimes.portable import Int8

    return Int8(
        texts=() if calibrate is None else sample_texts(calibrate, CALIBRATION_TEXTS),
        min_cosine=Int8.min_cosine if min_cosine is None else min_cosine,
        score=None if dev is None else _scores_on(dev),
    )


def _scores_on(dev: Path) -> Callable[[TextEncoder], dict[str, float]]:
    """Return a function that scores an encoder on a data folder, on its dev split where it has one."""
    from embrew.data.reading import DEV_SPLITS
    from embrew.evaluation import KINDS, evaluate, find_task
    from embrew.evaluation.rows import split_names

    names = split_names(dev) if dev.is_dir() else []
    task = find_task(dev, split=next((name for name in DEV_SPLITS if name in names), None))

    def scores(encoder: TextEncoder) -> dict[str, float]:
        results = evaluate(encoder, [task])
        return {f"{each.task} {each.split}, {KINDS[each.kind].metric}": each.main_score for each in results}

    return scores
