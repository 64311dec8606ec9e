"""Open a model for serving: its text side and its computing side, verified."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import torch

from embrew.encoder import Encoder
from embrew.files.formats import EXPORT
from embrew.opening import open_model
from embrew.runtimes.reference import compare_with_reference
from embrew.serving.asked import Asked, Engine, Read, Reader
from embrew.serving.engine import EncoderEngine
from embrew.serving.reading import EncoderReader
from embrew.serving.settings import Settings
from embrew.serving.stock import StockEngine, StockReader
from embrew.text_encoder.hashes import tokenizer_sha256

logger = logging.getLogger(__name__)
KNOWN = "a text that every model can embed"
ON_CPU, ON_GPU = 2048, 16_384  # tokens per batch


class Served(NamedTuple):
    """An opened model.

    Attributes:
        reader: its text side.
        engine: its computing side.
        batch_tokens: padded tokens per forward pass.
        known: a text that the engine has computed.
    """

    reader: Reader
    engine: Engine
    batch_tokens: int
    known: Read


def open_served(settings: Settings, device: str | None = None) -> Served:
    """Open a model, compare an export with its `parity.json`, and compute a text.

    Raises:
        FileNotFoundError: no such folder, recipe or model.
        ValueError: a damaged folder, other vectors than those of the export, an unknown default prompt or device, int8
            ranges of another model.
    """
    if device is not None:
        _use(device)
    model = open_model(settings.model, dtype=settings.dtype, backend=settings.backend, pooling=settings.pooling)
    if device is not None:
        model.to(torch.device(device))
    tokens = settings.batch_tokens or (ON_CPU if model.device.type == "cpu" else ON_GPU)
    reader: Reader
    engine: Engine
    if isinstance(model, Encoder):
        model.eval()
        reader = EncoderReader(model, default_prompt_name=settings.default_prompt_name)
        engine = EncoderEngine(model, batch_tokens=tokens, prefix_bytes=settings.prefix_bytes)
    else:
        _verify(model, Path(settings.model))
        reader = StockReader(model, default_prompt_name=settings.default_prompt_name)
        engine = StockEngine(model)
    of = settings.ranges_of
    if of is not None and (of["model_hash"], of["tokenizer_sha256"]) != (
        reader.about["model_sha"],
        tokenizer_sha256(model),
    ):
        raise ValueError(
            "the int8 ranges are of vectors of another model, tokenizer or dtype; encode a corpus with this one"
        )
    known = reader.read([KNOWN], Asked())
    engine.compute(known.key, known.rows)
    return Served(reader, engine, tokens, known)


def _use(name: str) -> None:
    """Make a CUDA device the one that kernels run on; refuse a device that is not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device={name!r}; write it as cpu or cuda:0") from None
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ValueError(f"device={name!r}; PyTorch finds {count} CUDA devices on this machine")
        torch.cuda.set_device(device)


def _verify(model: torch.nn.Module, folder: Path) -> None:
    """Compare an export for Sentence-Transformers with its `parity.json`; say where there is none."""
    if not (folder / EXPORT.file).is_file():
        logger.warning("%s has no %s: its vectors are not verified", folder, EXPORT.file)
        return
    exact = next(model.parameters()).dtype == torch.float32
    compare_with_reference(model, folder, exact=exact, what="Sentence-Transformers")
