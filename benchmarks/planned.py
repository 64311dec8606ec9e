"""What the scripts that run a plan (a YAML file of rows) have in common."""

from __future__ import annotations

import argparse
import os
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from harness import RESULTS


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A command line that names a plan and a folder of results."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser


def parser_of_rows(doc: str | None) -> argparse.ArgumentParser:
    """A command line whose rows are trained, kept and run in parts."""
    parser = parser_of(doc)
    parser.add_argument("--only", help="a pattern of `ROW, seed N`: run these, write no table")
    parser.add_argument("--finished", action="store_true", help="run nothing; write the table of what is there")
    parser.add_argument("--work", type=Path, default=Path("runs/evidence"))
    return parser


def read_plan(path: Path, keys: Sequence[str], row_keys: Sequence[str]) -> dict[str, Any]:
    """A plan.

    Raises:
        SystemExit: it has other keys.
    """
    plan: dict[str, Any] = yaml.safe_load(path.read_text())
    unknown = [key for key in plan if key not in keys]
    unknown += [f"{key} of a row" for entry in plan.get("rows", []) for key in entry if key not in row_keys]
    if unknown:
        raise SystemExit(f"{path}: unknown keys {', '.join(sorted(set(unknown)))}; known: {', '.join(keys)}")
    return plan


def check_found(found: Sequence[Any], plan: Path) -> None:
    """Raise SystemExit where a table would have no row."""
    if not found:
        raise SystemExit(f"{plan}: nothing of it is finished; run it without --finished")


def file_name(words: str) -> str:
    """Words as the name of a folder."""
    return re.sub(r"[^A-Za-z0-9]+", "-", words).rstrip("-")


def expand(setting: str) -> str:
    """A setting with environment variables filled in."""
    for name in re.findall(r"\$(\w+)", setting):
        if name not in os.environ:
            raise SystemExit(f"{setting}: the environment variable {name} is not set")
    return os.path.expandvars(setting)


def started_from(entry: Mapping[str, Any]) -> Path | None:
    """The trained encoder that a row's first stage starts from, if it says one."""
    return Path(expand(entry["from"])) if "from" in entry else None


def cell(numbers: Sequence[float], *, digits: int = 1) -> str:
    """A mean, with the standard deviation of several seeds; `none` where one of them is missing (NaN)."""
    if not numbers:
        return ""
    if any(number != number for number in numbers):
        return "none"
    mean = f"{statistics.fmean(numbers):.{digits}f}"
    return mean if len(numbers) < 2 else f"{mean} ± {statistics.stdev(numbers):.{digits}f}"
