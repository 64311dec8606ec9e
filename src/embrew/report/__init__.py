"""Results of several models: read, compared by paired tests, and shown as tables, sentences, or one HTML page."""

from embrew.report.comparison import Model, compare_models, differing_settings, models_of, read_folder
from embrew.report.verdict import verdict

__all__ = ["Model", "compare_models", "differing_settings", "models_of", "read_folder", "verdict"]
