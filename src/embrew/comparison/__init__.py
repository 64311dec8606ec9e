"""Results of several models side by side: what can be compared, paired tests, tables and a verdict."""

from embrew.comparison.comparing import compare_models, differing_settings
from embrew.comparison.models import Model, models_of, read_folder
from embrew.comparison.verdict import verdict

__all__ = ["Model", "compare_models", "differing_settings", "models_of", "read_folder", "verdict"]
