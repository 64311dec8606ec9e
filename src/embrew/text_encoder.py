"""The interface that evaluation and search use, of `embrew.Encoder` and `SentenceTransformer`; checks and hashes."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol, TypedDict, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from embrew.files.formats import versions


@runtime_checkable
class TextEncoder(Protocol):
    """Sentence-Transformers' three methods that embed texts, and its prompts."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Prompts (prefixes of the input) by name; `query` and `document` are applied by their methods."""

    def encode(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of texts, `(texts, dimensions)`."""

    def encode_query(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of queries."""

    def encode_document(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Return vectors of documents."""


class EncodeOptions(TypedDict, total=False):
    """Keywords for the encode methods; `batch_tokens` and `num_layers` only where the encoder has them."""

    batch_tokens: int
    convert_to_numpy: bool
    num_layers: int
    show_progress_bar: bool
    truncate_dim: int


def encode_options(
    encoder: TextEncoder, *, batch_tokens: int | None = None, show_progress_bar: bool = False
) -> EncodeOptions:
    """Return keywords for the encode methods; `batch_tokens` only if the encoder has it."""
    options: EncodeOptions = {"show_progress_bar": show_progress_bar, "convert_to_numpy": True}
    if batch_tokens is not None and "batch_tokens" in inspect.signature(encoder.encode).parameters:
        options["batch_tokens"] = batch_tokens
    return options


def fixed(encoder: TextEncoder) -> AbstractContextManager[Any]:
    """Return the encoder's `fixed()`, within which prompts are computed once for all calls; else an empty context."""
    context: Any = getattr(encoder, "fixed", nullcontext)
    return context()


def resolved_prompts(encoder: TextEncoder) -> dict[str, str]:
    """Return the prompts of plain texts, queries and documents, by Sentence-Transformers' rules."""
    prompts = dict(encoder.prompts or {})
    default_name = getattr(encoder, "default_prompt_name", None)
    default = prompts.get(default_name, "") if default_name else ""
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return {"text": default, "query": prompts.get("query", default), "document": document}


NOT_COMPUTED = {"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}
"""Entries of a model's configuration that its vectors do not depend on; weights tell their dtype."""


def model_hash(encoder: TextEncoder) -> str:
    """Return the encoder's own `weights_hash()`, or the SHA-256 of weights, modules, their settings, and prompts."""
    weights_hash = getattr(encoder, "weights_hash", None)
    if callable(weights_hash):
        return str(weights_hash())
    import torch  # here, so that reading a recipe stays quick

    digest = hashlib.sha256()
    modules = (
        [type(module).__name__ for module in encoder] if hasattr(encoder, "__iter__") else [type(encoder).__name__]
    )
    digest.update(repr((modules, resolved_prompts(encoder), getattr(encoder, "max_seq_length", None))).encode())
    if hasattr(encoder, "__iter__"):
        settings = [_settings(module) for module in encoder]
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    state = encoder.state_dict() if hasattr(encoder, "state_dict") else {}
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def space_of(encoder: TextEncoder) -> str | None:
    """Return the hash of the model whose documents an encoder's queries are compared with; None: its own."""
    space: str | None = getattr(getattr(encoder, "settings", None), "space", None)
    return space


def _settings(module: Any) -> dict[str, Any]:
    """Return what a module of Sentence-Transformers computes with, apart from weights, such as its pooling mode."""
    config = getattr(getattr(module, "auto_model", None), "config", None)
    if config is not None:
        return {name: value for name, value in config.to_diff_dict().items() if name not in NOT_COMPUTED}
    return dict(module.get_config_dict()) if hasattr(module, "get_config_dict") else {}


def tokenizer_sha256(encoder: Any) -> str | None:
    """Return the SHA-256 of a tokenizer: vocabulary, merges, normaliser, pre-tokeniser, post-processor.

    Truncation and padding are left out, since calls change them. For a tokenizer written in Python: class, vocabulary,
    and settings that are booleans or integers. None: the encoder has no tokenizer. It takes up to a second with large
    vocabularies; call it once per run. An encoder that was converted from another one has that one's
    (`tokenizer_hash`).
    """
    stored_hash = getattr(encoder, "tokenizer_hash", None)
    if stored_hash is not None:
        return str(stored_hash)
    tokenizer: Any = getattr(encoder, "tokenizer", None)
    if getattr(tokenizer, "backend_tokenizer", None) is not None:
        from embrew.identity import tokenizer_hash

        return tokenizer_hash(tokenizer)
    if not hasattr(tokenizer, "get_vocab"):
        return None
    init = getattr(tokenizer, "init_kwargs", {}).items()
    settings = {name: value for name, value in init if isinstance(value, bool | int)}  # no paths
    parts = {"type": type(tokenizer).__name__, "vocab": tokenizer.get_vocab(), "settings": settings}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def vectors_hash(encoder: TextEncoder) -> str:
    """Return the SHA-256 of `model_hash`, the tokenizer and the ids of special tokens."""
    from embrew.identity import combined_hash

    return combined_hash(model_hash(encoder), tokenizer_sha256(encoder), getattr(encoder, "tokenizer", None))


def describe_run(encoder: TextEncoder, **settings: Any) -> dict[str, Any]:
    """Return everything but the data that a score depends on: model, hashes, prompts, dtype, versions, settings."""
    describe = getattr(encoder, "describe", None)
    model = describe() if callable(describe) else _describe_sentence_transformer(encoder)
    prompts = model.get("prompts") or dict(encoder.prompts or {})
    return {
        "model": model,
        "model_hash": model_hash(encoder),
        "tokenizer_sha256": tokenizer_sha256(encoder),
        "prompts": prompts,
        "resolved_prompts": resolved_prompts(encoder),
        "template": model.get("template"),
        "dtype": model.get("dtype"),
        "truncate_dim": getattr(encoder, "truncate_dim", None),
        "settings": settings,
        "versions": versions(),
    }


def _describe_sentence_transformer(encoder: Any) -> dict[str, Any]:
    name = getattr(getattr(encoder, "model_card_data", None), "base_model", None)
    if name is None and hasattr(encoder, "__getitem__"):
        config = getattr(getattr(encoder[0], "auto_model", None), "config", None)
        name = getattr(config, "_name_or_path", None)
    parameter = next(encoder.parameters(), None) if hasattr(encoder, "parameters") else None
    return {
        "type": type(encoder).__name__,
        "name": Path(name).name if name and Path(name).is_absolute() else name,  # no path of one machine
        "modules": [type(module).__name__ for module in encoder] if hasattr(encoder, "__iter__") else [],
        "prompts": dict(encoder.prompts or {}),
        "default_prompt_name": getattr(encoder, "default_prompt_name", None),
        "max_length": getattr(encoder, "max_seq_length", None),
        "truncate_dim": getattr(encoder, "truncate_dim", None),
        "dtype": None if parameter is None else str(parameter.dtype).removeprefix("torch."),
    }


BLOCK = 8192  # vectors


def checked_vectors(vectors: ArrayLike, *, what: str, texts: Sequence[str] | None = None) -> np.ndarray:
    """Return vectors as float32.

    Args:
        vectors: `(texts, dimensions)`.
        what: name of the texts, for the message.
        texts: the texts; the vector of an empty text may be zero: an encoder that pools over the text alone has
            nothing to pool, and corpora hold empty documents.

    Raises:
        ValueError: a vector is zero or not finite, so that it has no direction.
    """
    array: np.ndarray = np.asarray(vectors, dtype=np.float32)
    norms = norms_of(array)
    bad = norms == 0
    if texts is not None:
        bad &= np.array([bool(text.strip()) for text in texts], dtype=bool)
    bad |= ~np.isfinite(norms)
    if bad.any():
        raise ValueError(
            f"{int(bad.sum())} of {len(array)} vectors of {what} are zero or not finite (the first: number "
            f"{int(bad.argmax())}); the model has diverged, or its dtype overflows: try dtype float32"
        )
    return array


def norms_of(array: np.ndarray) -> np.ndarray:
    """Lengths of vectors, `(vectors,)`; the squares are those of `BLOCK` vectors at a time."""
    blocks = [np.linalg.norm(array[start : start + BLOCK], axis=-1) for start in range(0, len(array), BLOCK)]
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)


def unit_vectors(vectors: ArrayLike, *, what: str, texts: Sequence[str] | None = None) -> np.ndarray:
    """Return vectors as float32 of length 1; a zero vector of an empty text stays zero, so its cosines are 0."""
    array = checked_vectors(vectors, what=what, texts=texts)
    norms = norms_of(array)[:, None]
    unit: np.ndarray = array / np.where(norms > 0, norms, 1)
    return unit
