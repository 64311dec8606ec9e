"""The process in which probes run that import torch: `python -m embrew.doctor.child PIPE NAME …`.

It writes a line of JSON before each probe, and one per finding. A crash of a library therefore ends this process, and
not the report.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any, TextIO

from embrew.doctor.finding import Finding, Probe, run_probe

END = "end of the process"
"""Reported after the last probe as if it were one: libraries may also crash while a process ends."""


def load(place: str) -> Probe:
    """Return a probe that imports `module:function` when it is called, so that an import that fails is its failure."""

    def probe() -> Any:
        module, _, function = place.partition(":")
        return getattr(import_module(module), function)()

    return probe


def run(probes: Mapping[str, str] | Sequence[tuple[str, str]], stream: TextIO) -> None:
    """Run probes in order and write what they find."""
    for name, place in dict(probes).items():
        write(stream, {"begin": name})
        for finding in run_probe(name, load(place)):
            write(stream, {"finding": asdict(finding)})
    write(stream, {"begin": END})


def write(stream: TextIO, value: Mapping[str, Any]) -> None:
    """Write a line and flush."""
    stream.write(json.dumps(value, default=str) + "\n")
    stream.flush()


def read(line: str) -> Finding | str:
    """Return the content of a line: a finding, or the name of the probe that begins."""
    value = json.loads(line)
    return Finding(**value["finding"]) if "finding" in value else str(value["begin"])


if __name__ == "__main__":
    pairs = [tuple(each.split("=", 1)) for each in sys.argv[2:]]
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as pipe:
        run([(name, place) for name, place in pairs], pipe)
