"""embrew: open causal LMs turned into text-embedding models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embrew.corpus import encode_corpus, read_vectors, update_corpus
    from embrew.evaluation import evaluate
    from embrew.export.sentence_transformers import export_sentence_transformer
    from embrew.modeling.encoder import Encoder
    from embrew.recipe import Recipe
    from embrew.search import SearchIndex
    from embrew.training.stages import train

_WHERE = {
    "Encoder": "embrew.modeling.encoder",
    "Recipe": "embrew.recipe",
    "SearchIndex": "embrew.search",
    "encode_corpus": "embrew.corpus",
    "evaluate": "embrew.evaluation",
    "export_sentence_transformer": "embrew.export.sentence_transformers",
    "read_vectors": "embrew.corpus",
    "train": "embrew.training.stages",
    "update_corpus": "embrew.corpus",
}
__all__ = [
    "Encoder",
    "Recipe",
    "SearchIndex",
    "encode_corpus",
    "evaluate",
    "export_sentence_transformer",
    "read_vectors",
    "train",
    "update_corpus",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `import embrew` and the CLI start fast."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'embrew' has no attribute {name!r}")
