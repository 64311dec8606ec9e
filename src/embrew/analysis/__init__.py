"""Look inside an encoder's vectors: how many dimensions and memory tokens they use, how they are spread."""

from embrew.analysis.memory import clusters, effective_tokens, memory_similarity, pool_over, summarize
from embrew.analysis.spectrum import Spectrum, spectrum_of
from embrew.analysis.texts import Texts, read_texts
from embrew.analysis.uniformity import AlignmentUniformity, alignment_uniformity, positive_pairs
from embrew.analysis.vectors import unnormalised, vector_chunks

__all__ = [
    "AlignmentUniformity",
    "Spectrum",
    "Texts",
    "alignment_uniformity",
    "clusters",
    "effective_tokens",
    "memory_similarity",
    "pool_over",
    "positive_pairs",
    "read_texts",
    "spectrum_of",
    "summarize",
    "unnormalised",
    "vector_chunks",
]
