"""Merge an encoder's adapters into its base: full weights that need neither base nor peft."""

from __future__ import annotations

import logging
from pathlib import Path

from embrew.encoder import Encoder
from embrew.files.writing import check_free
from embrew.storage.loading import SETTINGS, read_settings, trained_folder
from embrew.storage.saving import check_same, reference_vectors

logger = logging.getLogger(__name__)


def merge_encoder(
    source: str | Path, target: str | Path, *, dtype: str = "auto", overwrite: bool = False, verify: str = "full"
) -> Encoder:
    """Write a trained encoder with its adapters merged into the weights.

    All are added in float32, whatever they were trained in; then the sum is rounded to `dtype`. Of a quantised base,
    the dequantised weights are taken, since training saw these; this needs bitsandbytes. The vectors of the merged
    encoder are compared with those of the one that carries its adapter, on the quantised base if it has one.

    Args:
        source: a folder written by training or `save_pretrained`.
        target: folder to write; must not exist, unless `overwrite`.
        dtype: dtype of the weights written: `float32`, `bfloat16`, or `auto`, that of the saved encoder.
        overwrite: replace an existing encoder folder.
        verify: as of `Encoder.save_pretrained`.

    Returns:
        The merged encoder.

    Raises:
        FileNotFoundError: `source` is not an encoder's folder.
        FileExistsError: `target` exists.
        ValueError: there is no adapter to merge, or bitsandbytes is not installed and the base is quantised.
        RuntimeError: the merged weights give other vectors.
    """
    folder, out = trained_folder(source), Path(target)
    settings = read_settings(folder)
    if not settings["adapters"]:
        kind = "full weights already" if settings["full_weights"] else "its base's weights and no adapter"
        raise ValueError(f"{source} has {kind}; there is nothing to merge")
    if folder.resolve() == out.resolve():
        raise ValueError(f"{target} is the encoder itself; give another folder")
    check_free(out, marker=SETTINGS, overwrite=overwrite)
    expected = reference_vectors(
        Encoder.from_pretrained(folder, dtype="float32", merge_adapter=False)
    )  # freed before the next one is opened
    encoder = Encoder.from_pretrained(folder, dtype=dtype, merge_adapter=True)
    encoder.backbone.dequantize()
    what = "the merged weights give other vectors than the adapters"
    difference = check_same(reference_vectors(encoder), expected, encoder.backbone.dtype, what=what)
    logger.info("merged adapters: %d; largest difference between vectors: %.1e", settings["adapters"], difference)
    encoder.chain = []
    encoder.arithmetic = None  # how much of the adapter rounding would take is not known any more
    encoder.backbone.train_all()
    encoder.save_pretrained(out, overwrite=overwrite, verify=verify)
    return encoder
