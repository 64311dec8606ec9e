"""embrew: open causal LMs turned into text-embedding models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from embrew.peft_import import defer_bitsandbytes

if TYPE_CHECKING:
    from embrew.adapting import adapt
    from embrew.adapting.questions import write_questions
    from embrew.analysis.memory import effective_tokens, memory_similarity, pool_over
    from embrew.centering import center
    from embrew.corpus import encode_corpus, query_options, read_vectors, texts_of, update_corpus
    from embrew.data import Document
    from embrew.encoder import Encoder
    from embrew.evaluation import evaluate
    from embrew.export.exporting import export_encoder
    from embrew.losses import info_nce
    from embrew.merging import average
    from embrew.model.contexts import Context
    from embrew.recipe import Recipe
    from embrew.resident import Resident
    from embrew.search import SearchIndex
    from embrew.settings.encoder import Demonstration, Demonstrations, Pooling
    from embrew.training.stages import train

_MODULES = {
    "Context": "embrew.model.contexts",
    "Demonstration": "embrew.settings.encoder",
    "Demonstrations": "embrew.settings.encoder",
    "Document": "embrew.data",
    "Encoder": "embrew.encoder",
    "Pooling": "embrew.settings.encoder",
    "Recipe": "embrew.recipe",
    "Resident": "embrew.resident",
    "SearchIndex": "embrew.search",
    "adapt": "embrew.adapting",
    "average": "embrew.merging",
    "center": "embrew.centering",
    "effective_tokens": "embrew.analysis.memory",
    "encode_corpus": "embrew.corpus",
    "evaluate": "embrew.evaluation",
    "export_encoder": "embrew.export.exporting",
    "info_nce": "embrew.losses",
    "memory_similarity": "embrew.analysis.memory",
    "pool_over": "embrew.analysis.memory",
    "query_options": "embrew.corpus",
    "read_vectors": "embrew.corpus",
    "texts_of": "embrew.corpus",
    "train": "embrew.training.stages",
    "update_corpus": "embrew.corpus",
    "write_questions": "embrew.adapting.questions",
}
__all__ = [
    "Context",
    "Demonstration",
    "Demonstrations",
    "Document",
    "Encoder",
    "Pooling",
    "Recipe",
    "Resident",
    "SearchIndex",
    "adapt",
    "average",
    "center",
    "effective_tokens",
    "encode_corpus",
    "evaluate",
    "export_encoder",
    "info_nce",
    "memory_similarity",
    "pool_over",
    "query_options",
    "read_vectors",
    "texts_of",
    "train",
    "update_corpus",
    "write_questions",
]

defer_bitsandbytes()


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import embrew` and the command line start fast."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'embrew' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return __all__
