"""The GPU drill: `make gpu-drill`, or `python benchmarks/gpu_drill.py [NAME ...] [--minutes 9]` without installing.

Runs everything that only a GPU can show, item by item, and writes `results/gpu-drill.json` and `.md` after each. A
second call continues: items that ended under the present code are left out. Without a GPU, or with `--pretend`, all
items run on the CPU with tiny shapes, so that each line has run once; results then go to `runs/gpu-drill-pretended`.

Returns 0 if all items passed or were skipped and no gate was missed, 1 if not, 2 if the machine lacks something, 3 if
items are left to run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "benchmarks"), str(TOP / "src"), str(TOP)]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TOP / "src"), os.environ.get("PYTHONPATH"))))
os.environ.setdefault("OMP_NUM_THREADS", "8")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from drill import child, preflight, report  # noqa: E402
from drill.gates import gates  # noqa: E402
from drill.items import TRAININGS, items  # noqa: E402
from drill.record import NAME, Record, code_hash  # noqa: E402
from drill.schedule import Item, command_of, in_process, run_items  # noqa: E402

PRETENDED = f"{NAME}-pretended"


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description="Run everything that only a GPU can show; continue an earlier call.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="items to run; all by default")
    parser.add_argument("--minutes", type=float, default=9.0, help="of this call; no item is begun that may not fit")
    parser.add_argument("--pretend", action="store_true", help="on the CPU, with tiny shapes; automatic without a GPU")
    parser.add_argument("--again", action="store_true", help="run the items that are named even if they were run")
    parser.add_argument("--keep", action="store_true", help="count results of earlier code, where they did not fail")
    parser.add_argument("--list", action="store_true", help="list the items and their state, and stop")
    parser.add_argument("--preflight", action="store_true", help="examine the machine, write what it has, and stop")
    parser.add_argument("--output", type=Path, help="folder of the report; benchmarks/results by default")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)  # NAME FILE: the process of one item
    return parser.parse_args()


def main() -> int:
    """Run the command."""
    given = arguments()
    known = items()
    if given.child:
        name, answer = given.child
        child.run(next(item for item in known if item.name == name), Path(answer), pretended=given.pretend)
        return 0
    unknown = sorted({*given.names} - {item.name for item in known})
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; choose from {', '.join(item.name for item in known)}")
    found = preflight.examine(TOP / "runs")
    print(*preflight.lines(found), sep="\n", flush=True)
    pretended = given.pretend or found["pretended"]
    folder = given.output or (TOP / "runs" / PRETENDED if pretended else Path(__file__).parent / "results")
    if given.preflight:
        return write_preflight(found, folder)
    if found["missing"]:
        print("The drill needs what is missing above; CONTRIBUTING.md says how to bring it to a machine "
              "without internet.")  # fmt: skip
        return 2
    if pretended:
        print("No GPU is used: a pretended device with tiny shapes; no figure is a measurement.", flush=True)
    record = Record(folder / f"{NAME}.json", code=code_hash(), pretended=pretended, keeps=given.keep)
    record.preflight = found
    return drill(given, known, record)


def write_preflight(found: dict[str, object], folder: Path) -> int:
    """Write what the machine has, for `scripts/offline_wheels.py`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{NAME}-preflight.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print(path)
    return 2 if found["missing"] else 0


def drill(given: argparse.Namespace, known: list[Item], record: Record) -> int:
    """Run items, with a report after each."""
    chosen = [item for item in known if not given.names or item.name in given.names]
    rules = gates(TRAININGS)
    if given.list:
        for item in chosen:
            print(f"{item.name:28}{report.status(record, item):10}{item.title}")
        return 0
    if given.again:
        record.forget([item.name for item in chosen])
    options = ["--pretend"] if record.pretended else []
    work = TOP / "runs" / (PRETENDED if record.pretended else NAME)

    def start(item: Item, limit: float) -> dict[str, object]:
        return in_process(item, limit, command=command_of(item.name, *options), log=work / f"{item.name}.log", say=say)

    def write_report() -> None:
        record.path.with_suffix(".md").write_text(report.page(known, record, rules))

    signal.signal(signal.SIGTERM, stop)
    record.write()
    write_report()
    run_items(chosen, record, start, seconds=60 * given.minutes, changed=write_report, say=say)
    rows = [rule.row(record.items, pretended=record.pretended) for rule in rules]
    for row in rows:
        print(f"{row['gate']} {row['what']}: {row['shown'] or '-'} ({row['required']}) {row['verdict']} {row['why']}")
    print(record.path.with_suffix(".md"))
    return code_of([report.status(record, item) for item in chosen], [row["verdict"] for row in rows])


def code_of(statuses: list[str], verdicts: list[str]) -> int:
    """Return the exit status."""
    if "failed" in statuses or "miss" in verdicts:
        return 1
    return 0 if all(status in ("passed", "skipped") for status in statuses) else 3


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def stop(*_: object) -> NoReturn:
    """End as by Ctrl-C, so that the item that runs is noted as stopped and its process ends."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
