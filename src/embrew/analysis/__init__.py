"""Analyse an encoder's vectors: dimensional collapse, alignment and uniformity, scores by layers and dimensions."""

from embrew.analysis.dev_uniformity import DevSetsWithUniformity, add_uniformity
from embrew.analysis.efficiency import Curve, Moment, pareto, read_curve
from embrew.analysis.input_texts import Texts, read_texts
from embrew.analysis.memory import clusters, effective_tokens, memory_similarity, pool_over, summarize
from embrew.analysis.sink import Sink, sink_of
from embrew.analysis.spectrum import Spectrum, spectrum_of
from embrew.analysis.surface import Cell, Surface
from embrew.analysis.surface_scores import surface_of
from embrew.analysis.truncation import Truncation, truncation_of
from embrew.analysis.uniformity import AlignmentUniformity, alignment_uniformity, positive_pairs
from embrew.analysis.vectors import unnormalised, vector_chunks

__all__ = [
    "AlignmentUniformity",
    "Cell",
    "Curve",
    "DevSetsWithUniformity",
    "Moment",
    "Sink",
    "Spectrum",
    "Surface",
    "Texts",
    "Truncation",
    "add_uniformity",
    "alignment_uniformity",
    "clusters",
    "effective_tokens",
    "memory_similarity",
    "pareto",
    "pool_over",
    "positive_pairs",
    "read_curve",
    "read_texts",
    "sink_of",
    "spectrum_of",
    "summarize",
    "surface_of",
    "truncation_of",
    "unnormalised",
    "vector_chunks",
]
