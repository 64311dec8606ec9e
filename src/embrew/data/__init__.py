"""Data: files and Hub data sets to canonical rows. See `load` for training rows, `read_documents` for a corpus."""

from embrew.data.beir import Document, read_documents
from embrew.data.columns import accepted_layouts
from embrew.data.datasets import describe, load, row_text
from embrew.data.reading import expand

__all__ = ["Document", "accepted_layouts", "describe", "expand", "load", "read_documents", "row_text"]
