"""`embrew doctor`: examine a machine, test embrew on it, and collect what a bug report needs."""

from embrew.doctor.finding import Finding, Status, worst
from embrew.doctor.run import as_report, examine

__all__ = ["Finding", "Status", "as_report", "examine", "worst"]
