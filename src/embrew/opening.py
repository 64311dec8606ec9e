"""Open a model by the name that a user gives."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer

from embrew.check_passport import FILE, TENSORS, Passport
from embrew.encoder import Encoder
from embrew.files import checksums
from embrew.files.writing import recover
from embrew.passport import making
from embrew.recipe import Recipe, list_recipes
from embrew.recipe.build.encoders import encoder
from embrew.recipe.build.stages import load_recipe
from embrew.runtimes.openvino import is_openvino, open_openvino
from embrew.runtimes.openvino_encoder import OpenVINOEncoder, convert_encoder, openvino
from embrew.stock import is_stock, open_stock
from embrew.storage.base_model import is_encoder, open_config, pick_dtype
from embrew.storage.loading import AS_TRAINED
from embrew.storage.parts import check_folder
from embrew.text_encoder import vectors_hash
from embrew.variants import VariantEncoder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


logger = logging.getLogger(__name__)
BACKENDS = ("torch", "openvino")


def open_model(
    name: str,
    overrides: Sequence[str] = (),
    *,
    dtype: str = "auto",
    backend: str = "torch",
    as_trained: bool = False,
    pooling: str | None = None,
) -> Encoder | OpenVINOEncoder | VariantEncoder | SentenceTransformer:
    """Open a trained folder, a Sentence-Transformers folder, an OpenVINO export, a recipe without stages, or a Hub id.

    An adapter is merged into the weights, which is faster; with `as_trained`, where rounding takes little of it. A
    language model without embedding settings is refused unless `pooling` is given.

    Args:
        name: name of the model.
        overrides: settings of a recipe.
        dtype: `float32` or `bfloat16`; `auto`: the saved dtype, or the recipe's.
        backend: `torch` or `openvino`. With the latter, an export for OpenVINO is opened, and another model is
            converted in memory and compared with the PyTorch model on a few texts; `dtype` is that of the arithmetic.
        as_trained: with `auto`, open an encoder that was trained in bfloat16 in bfloat16, where this device computes in
            it; for scores.
        pooling: pooling of a language model without embedding settings: `last`, `mean`, `weighted_mean`, `echo`
            or `prompteol`, each an untrained baseline.

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
        opened = open_model(name, overrides, dtype=in_torch, pooling=pooling)
        return on_openvino(opened, name, bfloat16=dtype == "bfloat16")
    folder = Path(name)
    if overrides and not is_recipe(name):
        raise ValueError(f"{overrides[0]!r} overrides a recipe, and {name!r} is not one")
    if is_recipe(name):
        recipe = load_recipe(name, [*overrides, *([] if dtype == "auto" else [("encoder.dtype", dtype)])])
        if recipe.stages:
            stages = ", ".join(stage.name for stage in recipe.stages)
            raise ValueError(
                f"recipe {name} has stages ({stages}); train it first: embrew train {quote(name)} --output DIR"
            )
        return encoder(recipe) if recipe.encoder.variants is None else with_variants(recipe)
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
    if is_stock(name):
        return open_stock(name, dtype=dtype)
    if pooling is not None:
        return open_bare(name, pooling, dtype=dtype)
    if is_bare(name):
        raise no_pooling(name)
    return Encoder.from_pretrained(name, dtype=dtype)  # a BERT-type encoder, read at the mean of its tokens


def with_variants(recipe: Recipe) -> VariantEncoder:
    """Return the encoder of a recipe with `encoder.variants`."""
    config, variants = recipe.encoder, recipe.encoder.variants
    assert variants is not None
    plain = encoder(recipe.model_copy(update={"encoder": config.model_copy(update={"variants": None})}))
    writes = plain
    if variants.generator is not None:
        writes = Encoder.from_pretrained(variants.generator, dtype=config.dtype, template="{text}")
    return VariantEncoder(plain, writes, variants, seed=recipe.seed)


POOLINGS = {
    "last": "baselines/last-token",
    "mean": "baselines/mean",
    "weighted_mean": "baselines/weighted-mean",
    "echo": "baselines/echo",
    "prompteol": "baselines/prompteol",
}
"""Recipes of the ways to read a bare language model, by the names that users give."""
FILES_WITH_POOLING = ("embrew.json", "run.json", "parity.json", checksums.NAME)  # files of models with a pooling


def is_recipe(name: str) -> bool:
    """Return whether a name is that of a shipped recipe, or of a YAML file."""
    return name in list_recipes() or Path(name).suffix in (".yaml", ".yml")


def is_bare(name: str) -> bool:
    """Return whether a model is a language model without embedding settings, by its files.

    A BERT-type encoder is none: it was trained to be read at all its tokens.

    Raises:
        FileNotFoundError: no such model.
        ValueError: transformers does not know its family.
    """
    if is_recipe(name):
        return False
    folder = Path(name)
    if not folder.exists():
        recover(folder)
    if any(os.path.lexists(folder / file) for file in FILES_WITH_POOLING) or is_stock(name):
        return False
    return not is_encoder(open_config(name))


def open_bare(name: str, pooling: str, *, dtype: str = "auto") -> Encoder:
    """Return a bare language model as an encoder that is read in one of the ways of `POOLINGS`."""
    recipe = Recipe.load(POOLINGS[check_pooling(pooling)])
    config = recipe.encoder.model_copy(update={"model": name, "dtype": dtype})
    return encoder(recipe.model_copy(update={"encoder": config}))


def check_pooling(pooling: str) -> str:
    """Return the name of a pooling; raise if it is not one of `POOLINGS`."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r}; choose from {', '.join(POOLINGS)}")
    return pooling


def no_pooling(name: str, why: str = "") -> ValueError:
    """Return the error for a bare language model without a pooling."""
    return ValueError(
        f"{name} is a language model without embedding settings, so it has no pooling{why}; choose one with --pooling "
        f"(in Python pooling=): {', '.join(POOLINGS)}"
    )


def on_openvino(model: Any, name: str, *, bfloat16: bool) -> OpenVINOEncoder:
    """Return an opened model, converted for OpenVINO in memory and compared on a few texts.

    Args:
        model: the model: an encoder, or a Sentence-Transformers model.
        name: folder or Hub id of the model.
        bfloat16: compute in bfloat16; also where the model's weights are in bfloat16.

    Raises:
        ValueError: OpenVINO gives other vectors; or a Sentence-Transformers model is more than a transformer, one
            pooling, and normalisation.
    """
    if isinstance(model, VariantEncoder):
        raise ValueError(f"{name} writes variants of each text, which OpenVINO does not run; use --backend torch")
    if isinstance(model, Encoder):
        return convert_encoder(model, bfloat16=bfloat16 or model.backbone.dtype == torch.bfloat16)
    bfloat16 = bfloat16 or next(model.parameters()).dtype == torch.bfloat16
    return convert_encoder(as_encoder(model, name), bfloat16=bfloat16, origin=model)


def as_encoder(model: SentenceTransformer, name: str) -> Encoder:
    """Return an encoder that reads texts as a Sentence-Transformers model does; their vectors are not compared here.

    Special tokens within a text are parsed, where the model's tokenizer does so.

    Args:
        model: the opened model: a transformer, one pooling, and perhaps normalisation.
        name: folder or Hub id of the model.

    Raises:
        ValueError: it is an export; or as `embrew.stock.read_stock`.
    """
    if (Path(name) / "parity.json").is_file():
        raise ValueError(
            f"{name} is an export for Sentence-Transformers, whose tokenizer adds the template; give the encoder that "
            "it was made of, or export that one with --for openvino"
        )
    encoder = Encoder.from_pretrained(name, dtype="float32", device="cpu")
    if not getattr(model.tokenizer, "split_special_tokens", False):
        _parse_special_tokens(encoder)
    return encoder


def passport_of(model: Any, name: str, *, int8: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the passport of an opened model, as `embrew.passport.making.make_passport`.

    Args:
        model: the opened model.
        name: folder or Hub id of the model.
        int8: servers may have weights in 8 bits.

    Raises:
        ValueError: a model whose reading of texts is not known: an export, or one with modules of other kinds.
    """
    if isinstance(model, OpenVINOEncoder | VariantEncoder):
        raise ValueError(f"{name} is an export for OpenVINO or writes variants; give the encoder that it was made of")
    encoder = model if isinstance(model, Encoder) else as_encoder(model, name)
    base = encoder.base.name if isinstance(model, Encoder) else Path(name).name
    return making.make_passport(encoder, name=base, embed=partial(making.embed_by_name, model), int8=int8)


def passport_files(model: Any, name: str) -> dict[str, bytes] | None:
    """Return the files of a model's passport: those of its folder, or new ones, which takes seconds to a minute.

    None, with a warning: it has none, and none can be written.

    Args:
        model: the opened model.
        name: folder or Hub id of the model.
    """
    folder = Path(name)
    try:
        if (folder / FILE).is_file():
            passport = Passport.read(folder)
            if (folder / "parity.json").is_file() or passport.about["model"]["hash"] == vectors_hash(model):
                return {file: (folder / file).read_bytes() for file in (FILE, TENSORS)}
        return making.passport_files(passport_of(model, name))
    except (OSError, ValueError) as error:
        logger.warning("no passport is stored beside the vectors of %s: %s", name, error)
        return None


def _parse_special_tokens(encoder: Encoder) -> None:
    """Make an encoder's tokenizer parse special tokens within texts: they are marked as ordinary added tokens."""
    tokenizer: Any = encoder.tokenizer
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = False
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(state))
    encoder.templates = encoder.make_templates(tokenizer, [])
