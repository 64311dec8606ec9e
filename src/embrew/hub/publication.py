"""What of a folder is published: its listed files, unchanged and verified, and what is known of base and data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embrew.files.checksums import CARD, NAME, read_checksums
from embrew.files.formats import ENCODER, EXPORT
from embrew.files.reading import read_json
from embrew.inspection import inspect
from embrew.storage.card import data_names
from embrew.storage.opening import RECORD, final_stage
from embrew.storage.parts import CONTEXTS, check_folder

TEXT = (".json", ".md", ".yaml", ".txt", ".jinja")
TOKENIZER = ("tokenizer", "vocab", "merges", "special_tokens", "added_tokens")


@dataclass(frozen=True)
class Publication:
    """A folder that may be published.

    Attributes:
        folder: of the encoder or the export.
        files: by name in the repository; without the card.
        left_out: names of files in the folder that are not published.
        card: content of `README.md`.
        base: name of the base model.
        data: names of the data sets it was trained on; None: not known.
    """

    folder: Path
    files: Mapping[str, Path]
    left_out: tuple[str, ...]
    card: str
    base: str
    data: tuple[str, ...] | None

    @property
    def size(self) -> int:
        """Bytes of all files, without the card."""
        return sum(path.stat().st_size for path in self.files.values())


def publication(folder: str | Path) -> Publication:
    """Return what to publish of an encoder's folder, an export, or a training run (its last stage).

    Only files that `checksums.json` lists are published, and `README.md`: no checkpoints, optimizer states or data.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: it is another kind of folder; it has no checksums, or was not verified when it was written; or a
            file names a path of this machine.
        Damaged: files are missing, were added, or have changed since it was written.
    """
    path = final_stage(Path(folder))
    kind = next((kind for kind in (ENCODER, EXPORT) if (path / kind.file).is_file()), None)
    if kind is None:
        raise ValueError(
            f"{path} holds {_kind(path)}; push takes the folder of a trained encoder, of a training run (its last "
            "stage), or an export"
        )
    parts = [path, *sorted(each.parent for each in path.glob(f"{CONTEXTS}/*/{NAME}"))]
    files = {name: file for part in parts for name, file in _listed(path, part)}
    values = read_json(
        path / kind.file, keys=("base", "steps", "checks") if kind is ENCODER else ("encoder", "checks"), kind=kind
    )
    if values["checks"]["verify"] == "off":
        raise ValueError(f"{path} was written without verification; {_again(path)}")
    card = (path / CARD).read_text(encoding="utf-8") if (path / CARD).is_file() else ""
    _check_paths(path, files, card)
    kept = {*files, CARD}
    others = (file.relative_to(path).as_posix() for file in sorted(path.rglob("*")) if file.is_file())
    if kind is ENCODER:
        base, data = values["base"]["name"], _data_of(path, values)
    else:
        base, data = values["encoder"]["base"]["name"], values.get("exported_from", {}).get("data")
    left_out = tuple(name for name in others if name not in kept)
    return Publication(path, files, left_out, card, base, None if data is None else tuple(data))


def _kind(path: Path) -> str:
    """Return what a folder holds, for the error."""
    found = inspect(path)
    return f"{found.kind} ({found.summary})" if found.kind != "folder" else "nothing that embrew wrote"


def _listed(root: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield names and paths of a folder's listed files and of its checksums, once they are compared."""
    listed = read_checksums(folder)
    if listed is None:
        raise ValueError(f"{folder} has no {NAME}, so damage to its files is not detected; {_again(root)}")
    check_folder(folder)
    for name in (*listed, NAME):
        yield (folder / name).relative_to(root).as_posix(), folder / name


def _again(folder: Path) -> str:
    """Return how a folder is written again, with checksums and verified."""
    if (folder / ENCODER.file).is_file():
        saved = f"Encoder.from_pretrained({str(folder)!r}).save_pretrained('NEW', verify='full')"
        return f"save it again: {saved} in Python, or `embrew merge {folder} NEW`, which merges its adapters"
    return "export it again: `embrew export MODEL NEW`"


def _data_of(folder: Path, values: Mapping[str, Any]) -> list[str] | None:
    """Return names of the data sets that an encoder was trained on; None: it does not say."""
    record = read_json(folder / RECORD, keys=("data",)) if (folder / RECORD).is_file() else None
    return data_names(record, steps=values["steps"])


def _check_paths(folder: Path, files: Mapping[str, Path], card: str) -> None:
    """Raise if a text file that is published names a folder of this machine."""
    places = {str(Path.home()), str(folder.resolve()), str(folder.resolve().parent)} - {"/"}
    here = re.compile(r"(?<![\w.])(?:" + "|".join(map(re.escape, sorted(places, reverse=True))) + r")/[^\s\"'`,)]*")
    for path in files.values():
        if path.suffix in TEXT and not path.name.startswith(TOKENIZER):
            _check_text(path, path.read_text(encoding="utf-8", errors="replace"), here)
    _check_text(folder / CARD, card, here)


def _check_text(path: Path, text: str, here: re.Pattern[str]) -> None:
    found = here.search(text)
    if found is not None:
        raise ValueError(f"{path} names a path of this machine, {found[0]!r}, which would be published; remove it")
