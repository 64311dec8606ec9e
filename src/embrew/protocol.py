"""What evaluation and search need of an encoder: `embrew.Encoder` and `SentenceTransformer` both have it."""

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

GUARD = "guard/"
"""Before a guard set's name among scores; `guard` is the mean of them, as `dev` is that of the dev sets."""

SPECIAL = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")


@runtime_checkable
class TextEncoder(Protocol):
    """Sentence-Transformers' three ways to turn texts into vectors, and its prompts."""

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts put before the input, by name; `query` and `document` are used by themselves."""

    def encode(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of texts, `(texts, dimensions)`."""

    def encode_query(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of texts that ask."""

    def encode_document(self, inputs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        """Vectors of texts that are searched."""


def encode_options(
    encoder: TextEncoder, *, batch_tokens: int | None = None, show_progress_bar: bool = False
) -> dict[str, Any]:
    """Keywords for the encode methods; `batch_tokens` only where the encoder knows it."""
    options: dict[str, Any] = {"show_progress_bar": show_progress_bar, "convert_to_numpy": True}
    if batch_tokens is not None and "batch_tokens" in inspect.signature(encoder.encode).parameters:
        options["batch_tokens"] = batch_tokens
    return options


def checked_vectors(vectors: Any, *, what: str, texts: Sequence[str] | None = None) -> np.ndarray:
    """Vectors as float32; one that has no direction is an error, not a score.

    Where `texts` are given, the vector of an empty one may be zero: an encoder that pools over the text alone has
    nothing to pool there, and corpora hold empty documents.
    """
    array: np.ndarray = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(array, axis=-1)
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


def unit_vectors(vectors: Any, *, what: str, texts: Sequence[str] | None = None) -> np.ndarray:
    """Vectors as float32 of length 1; a zero vector that `texts` excuses stays zero, its cosine with anything is 0."""
    array = checked_vectors(vectors, what=what, texts=texts)
    norms = np.linalg.norm(array, axis=-1, keepdims=True)
    unit: np.ndarray = array / np.where(norms > 0, norms, 1)
    return unit


def resolved_prompts(encoder: TextEncoder) -> dict[str, str]:
    """The text put before plain texts, queries and documents, looked up as Sentence-Transformers does."""
    prompts = dict(encoder.prompts or {})
    default_name = getattr(encoder, "default_prompt_name", None)
    default = prompts.get(default_name, "") if default_name else ""
    document = next((prompts[name] for name in ("document", "passage", "corpus") if name in prompts), default)
    return {"text": default, "query": prompts.get("query", default), "document": document}


def model_hash(encoder: TextEncoder) -> str:
    """SHA-256 of what defines the vectors: the encoder's own `weights_hash()`, or weights, modules and prompts."""
    own = getattr(encoder, "weights_hash", None)
    if callable(own):
        return str(own())
    digest = hashlib.sha256()
    modules = (
        [type(module).__name__ for module in encoder] if hasattr(encoder, "__iter__") else [type(encoder).__name__]
    )
    digest.update(repr((modules, resolved_prompts(encoder), getattr(encoder, "max_seq_length", None))).encode())
    state = encoder.state_dict() if hasattr(encoder, "state_dict") else {}
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(_bytes()).numpy().data)
    return digest.hexdigest()


def tokenizer_sha256(encoder: Any) -> str | None:
    """SHA-256 of all that makes ids of a text: vocabulary, merges, normaliser, pre-tokeniser, post-processor.

    Without the truncation and padding that calls leave behind in a tokenizer. Of a tokenizer written in Python, its
    class, vocabulary, switches and numbers. None: the encoder shows no tokenizer. It takes up to a second with large
    vocabularies; call it once per run.
    """
    tokenizer: Any = getattr(encoder, "tokenizer", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        parts = json.loads(backend.to_str())
        kept = {name: part for name, part in parts.items() if name not in ("truncation", "padding")}
    elif hasattr(tokenizer, "get_vocab"):
        given = getattr(tokenizer, "init_kwargs", {}).items()
        settings = {name: value for name, value in given if isinstance(value, bool | int)}  # no paths of a machine
        kept = {"type": type(tokenizer).__name__, "vocab": tokenizer.get_vocab(), "settings": settings}
    else:
        return None
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def vectors_hash(encoder: TextEncoder) -> str:
    """SHA-256 of what decides the vectors of texts: `model_hash`, the tokenizer, and which ids are special tokens."""
    tokenizer = getattr(encoder, "tokenizer", None)
    special = {name: getattr(tokenizer, f"{name}_token_id", None) for name in SPECIAL}
    parts = [model_hash(encoder), tokenizer_sha256(encoder), special]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _bytes() -> Any:
    import torch

    return torch.uint8
