"""Several settings of one recipe, trained and judged one after another, in one table."""

from embrew.sweep.rows import Row, Sweep, list_sweeps, read_sweep
from embrew.sweep.run import Trained, run_sweep

__all__ = ["Row", "Sweep", "Trained", "list_sweeps", "read_sweep", "run_sweep"]
