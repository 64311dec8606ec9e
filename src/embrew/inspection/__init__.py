"""What a folder holds, from its JSON files alone: nothing is written, no model is opened, torch is not imported."""

from embrew.inspection.found import Found, Stage
from embrew.inspection.inspect import KINDS, inspect

__all__ = ["KINDS", "Found", "Stage", "inspect"]
