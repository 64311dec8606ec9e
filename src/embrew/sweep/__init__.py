"""Train and evaluate several settings of one recipe, and write all results to one table."""

from embrew.sweep.rows import Row, Sweep, list_sweeps, read_sweep
from embrew.sweep.run import Trained, run_sweep

__all__ = ["Row", "Sweep", "Trained", "list_sweeps", "read_sweep", "run_sweep"]
