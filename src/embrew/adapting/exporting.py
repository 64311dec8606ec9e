"""Write the best encoder of a race: `encoder/`, and `export/` for Sentence-Transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, cast

from embrew.adapting.candidate import REPAIR, Candidate, open_stage
from embrew.adapting.outcome import RaceRow
from embrew.encoder import Encoder
from embrew.export.exporting import export_encoder
from embrew.files import formats
from embrew.files.checksums import NAME, is_intact
from embrew.files.reading import read_json
from embrew.files.writing import atomic_folder, link_or_copy
from embrew.storage.loading import SETTINGS

logger = logging.getLogger(__name__)
EXPORT, ENCODER = "export", "encoder"


def export_best(best: RaceRow, candidate: Candidate, *, export: bool) -> tuple[Path | None, bool]:
    """Write `encoder/`, the best one, and `export/`; return the first, and whether the second was written.

    A model that embrew reads only as it is stays where it is.

    Args:
        best: the best encoder.
        candidate: its model.
        export: whether `export/` is wanted.
    """
    folder, target = candidate.folder / ENCODER, candidate.folder / EXPORT
    encoder = _write_encoder(best, candidate, folder)
    if encoder is None:
        logger.warning("%s is the best as it is, and is not exported: use it where it is", best.name)
        return None, False
    if not export:
        return folder, False
    length = encoder.max_seq_length
    if _exported(target) == _description(encoder.with_settings(max_length=length)):
        logger.info("%s  already exported", target)
        return folder, True
    try:
        export_encoder(encoder, target, overwrite=target.exists(), max_length=length)
    except ValueError as error:
        logger.warning("%s is the best, and cannot be exported: %s; it is in %s", best.name, error, folder)
        return folder, False
    return folder, True


def _write_encoder(best: RaceRow, candidate: Candidate, folder: Path) -> Encoder | None:
    """Write the best encoder into a folder, and return it; None: it can only be read as it is."""
    if best.stage is not None:
        _link_files(best.stage, folder)
        return open_stage(folder)
    opened = candidate.open_as_is() if candidate.start.is_bare else candidate.open_to_train()
    encoder = cast(Encoder | None, opened)  # of a bare language model, an encoder with its best untrained pooling
    if encoder is None:
        return None
    intact = folder.is_dir() and is_intact(folder)
    if not intact or _description(Encoder.from_pretrained(folder)) != _description(encoder):
        encoder.save_pretrained(folder, overwrite=folder.exists())
    return encoder


def _exported(folder: Path) -> Any:
    """Return the description of the encoder of an intact export; None: there is none."""
    file = folder / formats.EXPORT.file
    if not file.is_file() or not is_intact(folder):
        return None
    return read_json(file, keys=("encoder",), repair=REPAIR, kind=formats.EXPORT)["encoder"]


def _link_files(stage: Path, target: Path) -> None:
    """Make the files of a trained encoder those of another folder, too: hard links, where the file system has them."""
    if (target / NAME).is_file() and (target / NAME).read_bytes() == (stage / NAME).read_bytes() and is_intact(target):
        return
    with atomic_folder(target, marker=SETTINGS, overwrite=target.exists()) as new:
        for file in stage.rglob("*"):
            if file.is_file():
                (new / file.relative_to(stage)).parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(file, new / file.relative_to(stage))


def _description(encoder: Encoder) -> Any:
    """Return an encoder's description as it is read again from JSON."""
    return json.loads(json.dumps(encoder.describe()))
