"""What is trained of a model, planned once: the file that holds it, and its comparison with the settings of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from embrew.adapting.preparation.prepare import check_same
from embrew.files.checksums import file_sha256, sealed
from embrew.files.reading import BrokenFile, read_json
from embrew.files.writing import write_json

REPAIR = "remove the file; the same command makes it again"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained of a model, and what was measured of it before.

    Attributes:
        inputs: model, data and options that the plan depends on.
        trained: names of the recipes to train.
        minutes: time of training of each recipe.
        files: sha256 of the recipes and of mined pairs, by path in the output folder.
        as_is: name of a bare language model's best untrained pooling on dev; empty for other models.
        parameters: number of the model's weights.
        milliseconds: time to encode a text.
        lengths: numbers of tokens that recipes leave to queries and to documents.
        poolings: dev scores of untrained poolings, by name.
        why_untrained: reason why a model that was to be trained cannot be; empty for other models.
    """

    inputs: Mapping[str, Any]
    trained: Sequence[str]
    minutes: float
    files: Mapping[str, str]
    as_is: str = ""
    parameters: int
    milliseconds: float
    lengths: Mapping[str, int]
    poolings: Mapping[str, float] = field(default_factory=dict)
    why_untrained: str = ""

    def write(self, file: Path) -> None:
        """Write the plan, with its sha256."""
        file.parent.mkdir(exist_ok=True)
        write_json(file, sealed(vars(self)))


def read_plan(file: Path, folder: Path, *, inputs: Mapping[str, Any]) -> Plan | None:
    """Return the plan of an earlier call with the same inputs; None: there is none, or one without training.

    Args:
        file: the plan.
        folder: the output folder, which holds the files that the plan lists.
        inputs: model, data and options of this call; a model that was trained may be scored only.

    Raises:
        BrokenFile: the plan, or a file that it lists, has changed since it was written.
        FileExistsError: it has other inputs.
    """
    if not file.is_file():
        return None
    names = [entry.name for entry in fields(Plan)]
    values = read_json(file, keys=names, repair=REPAIR, sealed=True)
    plan = Plan(**{name: values[name] for name in names})
    check_same({**inputs, "trains": plan.inputs["trains"]}, plan.inputs, folder)
    if inputs["trains"] and not plan.inputs["trains"]:
        return None
    for name, sha256 in plan.files.items():
        listed = folder / name
        if not listed.is_file() or file_sha256(listed) != sha256:
            raise BrokenFile(
                f"{listed} is missing or has changed since it was written; remove {file}, and the same command "
                "plans again; for a setting of your own, give it as key.path=value and another output folder"
            )
    return plan
