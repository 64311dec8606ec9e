"""Encode a corpus to disk: shards of vectors that a killed run resumes from, and what they were made of."""

from embrew.data.versions import Changes
from embrew.encode.job import Job
from embrew.encode.local import Summary, encode_corpus
from embrew.encode.precision import Ranges, dequantize
from embrew.encode.searchable import query_options, texts_of
from embrew.encode.update import update_corpus
from embrew.encode.vectors import Vectors, holds_vectors, read_vectors

__all__ = [
    "Changes",
    "Job",
    "Ranges",
    "Summary",
    "Vectors",
    "dequantize",
    "encode_corpus",
    "holds_vectors",
    "query_options",
    "read_vectors",
    "texts_of",
    "update_corpus",
]
