"""Encode a corpus to disk: shards of vectors, and a manifest of what they were made of; killed runs resume."""

from embrew.corpus.encoding import Summary, encode_corpus
from embrew.corpus.job import Job, Ranges, dequantize
from embrew.corpus.update import update_corpus
from embrew.corpus.vectors import Vectors, holds_vectors, open_index, query_options, read_vectors, texts_of

__all__ = [
    "Job",
    "Ranges",
    "Summary",
    "Vectors",
    "dequantize",
    "encode_corpus",
    "holds_vectors",
    "open_index",
    "query_options",
    "read_vectors",
    "texts_of",
    "update_corpus",
]
