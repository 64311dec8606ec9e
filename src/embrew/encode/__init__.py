"""Encode a corpus to disk: shards of vectors that a killed run goes on from, and that say what they were made of."""

from embrew.encode.job import Job
from embrew.encode.local import Summary, encode_corpus
from embrew.encode.precision import Ranges, dequantize
from embrew.encode.vectors import Vectors, read_vectors

__all__ = ["Job", "Ranges", "Summary", "Vectors", "dequantize", "encode_corpus", "read_vectors"]
