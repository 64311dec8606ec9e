"""An encoder in an export for OpenVINO: `openvino/` and the tokenizer at the folder's root."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import PreTrainedTokenizerBase

from embrew.files.formats import OPENVINO
from embrew.files.reading import content_of, read_json
from embrew.files.writing import write_json
from embrew.model.contexts import Context, PreparedContext
from embrew.runtimes.encoder import Origin, RuntimeEncoder, Shape, in_vocabulary
from embrew.runtimes.openvino import Program
from embrew.runtimes.reference import compare_with_reference
from embrew.settings.encoder import EncoderSettings
from embrew.storage.base_model import computes, pick_dtype
from embrew.storage.parts import check_folder, open_tokenizer
from embrew.text.template import Template
from embrew.text.tokens import Row

GRAPH = "openvino/openvino_model.xml"
CPU = torch.device("cpu")


def is_openvino(folder: Path) -> bool:
    """Return whether a folder is an export for OpenVINO."""
    return os.path.lexists(folder / OPENVINO.file)


def write_encoder(
    folder: Path,
    shape: Shape,
    template: Template,
    settings: EncoderSettings,
    origin: Origin,
    contexts: dict[str, tuple[PreparedContext, list[int]]],
) -> None:
    """Write what `open_openvino` reads in addition to the graph and the tokenizer.

    Args:
        folder: the export.
        shape: of the model, with the ids of learned tokens in the exported tokenizer.
        template: with the tokenizer that the encoder has, whose own special tokens are written.
        settings: of the encoder, with both of its length limits.
        origin: the encoder.
        contexts: by name, with the ids of their positions in the exported tokenizer.
    """
    limit = None if shape.max_positions == float("inf") else shape.max_positions
    values = {
        "format": OPENVINO.number,
        "settings": settings.as_dict(),
        "shape": {**asdict(shape), "max_positions": limit},
        "first_ids": template.bos_ids,
        "last_ids": template.sep_ids,
        "contexts": {
            name: {"instruction": context.context.instruction, "ids": ids, "segments": context.row.segments}
            for name, (context, ids) in contexts.items()
        },
        "origin": asdict(origin),
    }
    write_json(folder / OPENVINO.file, values)


def open_openvino(folder: Path, *, dtype: str = "auto") -> RuntimeEncoder:
    """Open an export for OpenVINO, and compare it with the vectors in its `parity.json`.

    Args:
        folder: the export; its files are compared with its checksums first.
        dtype: of the arithmetic, `float32` or `bfloat16`; `auto`: bfloat16 for weights in bf16 or int8 if this CPU
            computes in it, otherwise float32.

    Raises:
        ValueError: a damaged folder; bfloat16, and this CPU only emulates it; or OpenVINO gives other vectors here
            than those in `parity.json`.
    """
    check_folder(folder)
    encoder = read_encoder(folder, dtype=dtype)
    exact = encoder.origin.weights == "fp32" and not encoder.in_bfloat16
    compare_with_reference(encoder, folder, exact=exact, what="OpenVINO")
    return encoder


def read_encoder(folder: Path, *, dtype: str = "auto") -> RuntimeEncoder:
    """Read the encoder of a folder that may not be finished: without checksums and `parity.json`."""
    path = folder / OPENVINO.file
    read = read_json(path, kind=OPENVINO)
    with content_of(path):
        origin = Origin(**read["origin"])
        sizes = read["shape"]
        shape = Shape(**{**sizes, "max_positions": sizes["max_positions"] or float("inf")})
        settings = EncoderSettings.from_dict(read["settings"])
        contexts = {name: _context(values) for name, values in read["contexts"].items()}
        first, last = list(read["first_ids"]), list(read["last_ids"])
    return RuntimeEncoder(
        Program(folder / GRAPH, bfloat16=_bfloat16(dtype, origin.weights)),
        shape,
        _plain(open_tokenizer(folder), first, last),
        settings,
        origin,
        contexts=contexts,
    )


def _bfloat16(dtype: str, weights: str) -> bool:
    """Return whether to compute in bfloat16."""
    if dtype == "auto":
        return weights in ("bf16", "int8") and computes(torch.bfloat16, CPU)
    return pick_dtype(dtype, CPU) == torch.bfloat16


def _context(values: dict[str, Any]) -> PreparedContext:
    row = Row(list(values["ids"]), list(values["segments"]))
    return in_vocabulary(PreparedContext(Context(values["instruction"]), row, torch.zeros(0, 0)), row.ids)


def _plain(tokenizer: PreTrainedTokenizerBase, first: list[int], last: list[int]) -> PreTrainedTokenizerBase:
    """Return the exported tokenizer with the special tokens of the encoder's own; the template adds the others."""
    pieces = {"first": first, "last": last}
    single = " ".join([*(["first"] if first else []), "$A", *(["last"] if last else [])])
    special: Any = [
        {"id": name, "ids": ids, "tokens": tokenizer.convert_ids_to_tokens(ids)} for name, ids in pieces.items() if ids
    ]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return tokenizer
