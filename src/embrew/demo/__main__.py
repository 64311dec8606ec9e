"""`python -m embrew.demo`."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console

from embrew import demo
from embrew.cli.console import log_to_terminal
from embrew.threads import set_threads


def main() -> None:
    """Run the demonstration from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m embrew.demo",
        description=demo.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/demo"), help="folder of all results (default: runs/demo)"
    )
    parser.add_argument("--recipe", default="llm2comp/nano", help="recipe to train (default: llm2comp/nano)")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--quick", action="store_true", help="train a quarter of the recipe's steps")
    steps.add_argument("--full", action="store_true", help="train all steps, however long that takes")
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier run left in the folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe")
    arguments = parser.parse_args()
    set_threads()
    from embrew.demo.run import run  # after the choice of threads, since it imports torch
    from embrew.demo.steps import FEWEST

    log_to_terminal()
    share = FEWEST if arguments.quick else 1.0 if arguments.full else None
    if arguments.fresh:
        shutil.rmtree(arguments.output, ignore_errors=True)
    began = time.perf_counter()
    try:
        run(arguments.output, arguments.recipe, tuple(arguments.overrides), share)
    except ValueError as error:
        raise SystemExit(f"Error: {error}") from None
    Console().print(f"\n{(time.perf_counter() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
