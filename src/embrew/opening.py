"""Open a model by the name that a user gives."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from embrew.assembly.encoders import encoder
from embrew.assembly.objectives import load_recipe
from embrew.assembly.stock import open_stock
from embrew.assembly.untrained import check_pooling, is_bare, is_recipe, no_pooling, on_hub, open_bare
from embrew.encoder import Encoder
from embrew.files import checksums
from embrew.files.writing import recover
from embrew.runtimes.encoder import RuntimeEncoder
from embrew.runtimes.folder import is_openvino, open_openvino
from embrew.runtimes.library import openvino
from embrew.runtimes.on_openvino import on_openvino
from embrew.storage.folder_check import check_folder
from embrew.storage.loading import ASSETS, pick_dtype
from embrew.storage.opening import AS_TRAINED

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

BACKENDS = ("torch", "openvino")


def open_model(
    name: str,
    overrides: Sequence[str] = (),
    *,
    dtype: str = "auto",
    backend: str = "torch",
    as_trained: bool = False,
    pooling: str | None = None,
) -> Encoder | RuntimeEncoder | SentenceTransformer:
    """Open a trained folder, a Sentence-Transformers folder, an OpenVINO export, a recipe without stages, or a Hub id.

    An adapter is merged into the weights, which is faster; with `as_trained`, where rounding takes little of it. A
    language model without embedding settings is refused unless `pooling` is given.

    Args:
        name: what to open.
        overrides: settings of a recipe.
        dtype: `float32` or `bfloat16`; `auto`: the saved dtype, or the recipe's.
        backend: `torch` or `openvino`. With the latter, an export for OpenVINO is opened, and another model is
            converted in memory and compared with the PyTorch model on a few texts; `dtype` is that of the arithmetic.
        as_trained: with `auto`, open an encoder that was trained in bfloat16 in bfloat16, where this device computes in
            it; for scores.
        pooling: how to read a language model without embedding settings: `last`, `mean`, `weighted_mean` or
            `prompteol`, each an untrained baseline.

    Raises:
        FileNotFoundError: no such folder, recipe or model.
        ValueError: a damaged folder; a recipe that must be trained first; overrides without a recipe; a language model
            without a pooling, or a pooling for a model that has one; a dtype that this device only emulates; OpenVINO
            is not installed, cannot run the model, or gives other vectors.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}; choose from {', '.join(BACKENDS)}")
    if pooling is not None and not is_bare(name):
        raise ValueError(f"pooling={check_pooling(pooling)!r}, but {name} has a pooling of its own; leave it out")
    if backend == "openvino" and not is_openvino(Path(name)):
        openvino()
        if dtype != "auto":
            pick_dtype(dtype, torch.device("cpu"))
        in_torch = "auto" if dtype == "auto" else "float32"
        model: Any = open_model(name, overrides, dtype=in_torch, pooling=pooling)
        return on_openvino(model, name, bfloat16=dtype == "bfloat16")
    folder = Path(name)
    if overrides and not is_recipe(name):
        raise ValueError(f"{overrides[0]!r} overrides a recipe, and {name!r} is not one")
    if is_recipe(name):
        recipe = load_recipe(name, [*overrides, *([] if dtype == "auto" else [f"encoder.dtype={dtype}"])])
        if recipe.stages:
            stages = ", ".join(stage.name for stage in recipe.stages)
            raise ValueError(f"recipe {name} has stages ({stages}); train it first: embrew train {name} --output DIR")
        return encoder(recipe)
    if not folder.exists():
        recover(folder)
    ours = (folder / checksums.NAME).is_file() or (folder / "parity.json").is_file()
    if ours and not os.path.lexists(folder / "embrew.json"):
        check_folder(folder)
    if is_openvino(folder) and (backend == "openvino" or not os.path.lexists(folder / "modules.json")):
        return open_openvino(folder, dtype=dtype)
    if any(os.path.lexists(folder / file) for file in ("embrew.json", "run.json")):
        if as_trained and dtype == "auto":
            return Encoder.from_pretrained(folder, dtype=AS_TRAINED)
        return Encoder.from_pretrained(folder, dtype=dtype, merge_adapter=True)
    shipped_or_here = name in ASSETS or folder.exists()  # not looked up on the Hub
    if os.path.lexists(folder / "modules.json") or (not shipped_or_here and on_hub(name, "modules.json")):
        return open_stock(name, dtype=dtype)
    if pooling is not None:
        return open_bare(name, pooling, dtype=dtype)
    if is_bare(name):
        raise no_pooling(name)
    return Encoder.from_pretrained(name, dtype=dtype)  # a BERT-type encoder, read at the mean of its tokens
