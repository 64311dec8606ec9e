"""Format numbers of the files that embrew writes, and errors for numbers that it does not read.

`docs/reference/formats.md` has the policy: when a number is raised, and what older and newer versions do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)
KEY = "format"
GAP = "gap"  # the share of the gap closed of a compression stage, in run.json and among the scores of an evaluation
GAP_OTHER = f"{GAP}_other"  # that of another text's memory, among the scores
GUARD = "guard/"  # prefix of guard sets among the scores in run.json; "guard" is their mean, "dev" that of dev sets
_said: set[tuple[str, str]] = set()


class OtherFormat(ValueError):
    """A file of a format that this embrew does not read."""


@dataclass(frozen=True)
class Format:
    """Format numbers of one kind of file.

    Attributes:
        file: name of the file that holds the number under `format`.
        reads: numbers that this embrew reads, ascending. A file without a number has format 1.
        again: what the user has to do if the number is below those that are read.
    """

    file: str
    reads: tuple[int, ...] = (1,)
    again: str = "make it again with this embrew"

    @property
    def newest(self) -> int:
        """The number that is written, unless a lower one is enough for the file."""
        return self.reads[-1]

    def check(self, values: Any, where: object) -> int:
        """Return the format number of a file that was read.

        Args:
            values: its content.
            where: the file, for the error.

        Raises:
            OtherFormat: a newer embrew wrote it, or one so old that it is no longer read; or it is no JSON object, or
                has a number that embrew never wrote.
        """
        number = values.get(KEY, 1) if isinstance(values, dict) else None
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            what = f"its format is {number!r}" if isinstance(values, dict) else "it holds no JSON object"
            raise OtherFormat(f"{where} is damaged: {what}; copy it again from where it came from")
        if number in self.reads:
            return number
        reads = f"format{'s' if len(self.reads) > 1 else ''} {' and '.join(map(str, self.reads))}"
        if number > self.newest:
            raise OtherFormat(f"{where} has format {number}; this embrew reads {reads}; update embrew")
        raise OtherFormat(f"{where} has format {number}, of an earlier embrew; this embrew reads {reads}; {self.again}")


CHECKSUMS = Format("checksums.json")
ENCODER = Format("embrew.json", (1, 2, 3, 4))
"""2: words after the text are joined with it; 3: the base is quantised; 4: memory_ratio counts the text alone."""
CONTEXT = Format("context.json")
RUN = Format("run.json")
STAGE = Format("stage.json", (1, 2))  # also of the checkpoints; 2: data by content, paths by name in the hash
EXPORT = Format("parity.json")
OPENVINO = Format("openvino/encoder.json")  # within an export, and not a kind of folder
VECTORS = Format("vectors.json")
INDEX = Format("manifest.json", (1, 2))  # 2: queries are encoded with options; readers of 1 do not support this
RESULT = Format("TASK.SPLIT.run.json")
SWEEP = Format("sweep.json")
PATHS = Format("paths.json")  # within results, and not a kind of folder
REPORT = Format("comparison.json")
DOMAIN = Format("manifest.json", (3,), "choose another output folder, or remove this one")
FORMATS = {
    "checksums": CHECKSUMS,
    "encoder": ENCODER,
    "context": CONTEXT,
    "run": RUN,
    "stage": STAGE,
    "export": EXPORT,
    "vectors": VECTORS,
    "index": INDEX,
    "result": RESULT,
    "sweep": SWEEP,
    "report": REPORT,
    "domain": DOMAIN,
}


def say_missing(where: str | Path, what: str) -> None:
    """Log, once per folder and process, what a folder of an earlier version lacks and the consequence."""
    said = (str(where), what)
    if said not in _said:
        _said.add(said)
        logger.info("%s was written by an earlier embrew, %s", where, what)
