"""Train and evaluate several settings of one recipe, and write all results to one table."""

from embrew.sweep.rows import Sweep, SweepRow, list_sweeps, read_sweep
from embrew.sweep.run import TrainedRow, run_sweep

__all__ = ["Sweep", "SweepRow", "TrainedRow", "list_sweeps", "read_sweep", "run_sweep"]
