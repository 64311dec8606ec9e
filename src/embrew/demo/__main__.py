"""`python -m embrew.demo`."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console

from embrew import demo
from embrew.cli.console import log_to_terminal
from embrew.demo.run import run
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
    parser.add_argument("--fresh", action="store_true", help="remove what an earlier run left in the folder")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the recipe")
    arguments = parser.parse_args()
    set_threads()
    log_to_terminal()
    if arguments.fresh:
        shutil.rmtree(arguments.output, ignore_errors=True)
    began = time.perf_counter()
    run(arguments.output, arguments.recipe, tuple(arguments.overrides))
    Console().print(f"\n{(time.perf_counter() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
