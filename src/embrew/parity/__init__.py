"""Compare a runtime's vectors with those of an encoder or export, and name the cause of a difference."""

from embrew.parity.compare import Comparison, compare

__all__ = ["Comparison", "compare"]
