"""What the files that embrew writes say of themselves: format numbers, and versions of packages."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

KEY = "format"
GAP = "gap"  # the share of the gap closed of a compression stage, in run.json and among the scores of an evaluation
GAP_OTHER = f"{GAP}_other"  # that of another text's memory, among the scores
GUARD = "guard/"  # prefix of guard sets among the scores in run.json; "guard" is their mean, "dev" that of dev sets


class OtherFormat(ValueError):
    """A file of a format that this embrew does not read."""


@dataclass(frozen=True)
class Format:
    """The format of one kind of file.

    Attributes:
        what: what the file belongs to, for the error.
        file: name of the file that holds the number under `format`.
        number: the only number that is written and read.
        sealed: the file holds the sha256 of the rest of it (`files/checksums.py`).
    """

    what: str
    file: str
    number: int = 2
    sealed: bool = False

    def check(self, values: dict[str, Any], where: object) -> None:
        """Raise unless a file has the number that is read.

        Args:
            values: its content.
            where: the file, for the error.

        Raises:
            OtherFormat: it has another number, or none.
        """
        number = values.get(KEY)
        if number != self.number:
            what = "without a format number" if number is None else f"of format {number!r}"
            raise OtherFormat(
                f"{where}: {self.what} {what}; this embrew reads format {self.number}; make it again with this "
                "version, or open it with the embrew that wrote it"
            )


CHECKSUMS = Format("checksums", "checksums.json")
ENCODER = Format("an encoder", "embrew.json", 5)
CONTEXT = Format("a context of an encoder", "context.json")
RUN = Format("a training run", "run.json", sealed=True)
STAGE = Format("a stage of a training run", "stage.json", 3)  # also of its checkpoints
EXPORT = Format("an export", "parity.json")
TEACHER = Format("a teacher's vectors", "teacher.json", sealed=True)
OPENVINO = Format("an export for OpenVINO", "openvino/encoder.json")  # within an export, and not a kind of folder
VECTORS = Format("vectors", "vectors.json", 3)
INDEX = Format("a search index", "manifest.json", 5)
RESULT = Format("a result", "TASK.SPLIT.run.json")
SWEEP = Format("a sweep", "sweep.json", sealed=True)
PATHS = Format("paths of results", "paths.json")  # within results, and not a kind of folder
REPORT = Format("files of a report", "comparison.json", sealed=True)
ADAPTED = Format("data of an adaptation", "manifest.json", 7)
FORMATS = {name.lower(): value for name, value in list(globals().items()) if isinstance(value, Format)}
PACKAGES = ("embrew", "torch", "transformers", "sentence-transformers")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str | None]:
    """Return the versions of Python and of packages, by default those that vectors depend on; None: not installed."""
    by_package: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_package[package] = None
    return by_package
