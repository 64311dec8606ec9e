"""Data: files and Hub data sets to canonical rows. See `load` for training rows, `read_documents` for a corpus."""

from embrew.data.columns import accepted_layouts, describe
from embrew.data.datasets import load
from embrew.data.documents import Document, read_documents
from embrew.data.reading import expand
from embrew.data.row_text import row_text

__all__ = ["Document", "accepted_layouts", "describe", "expand", "load", "read_documents", "row_text"]
