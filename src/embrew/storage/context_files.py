"""Contexts on disk, in the encoder's folder: `contexts/NAME/context.json` and `vectors.safetensors`."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from embrew.embedder import Embedder
from embrew.files import checksums
from embrew.files.checksums import write_checksums
from embrew.files.formats import CONTEXT
from embrew.files.names import MAX_NAME_BYTES
from embrew.files.reading import content_of, read_json
from embrew.files.writing import PARTIAL, atomic_folder, read_unchanged, recover_all
from embrew.model.contexts import Context, PreparedContext, prepare
from embrew.settings.demonstrations import Demonstration
from embrew.storage.folder_check import check_folder, check_number
from embrew.storage.tensor_files import read_tensors
from embrew.text.tokens import Row
from embrew.text_encoder.hashes import vectors_hash

CONTEXTS, ABOUT, VECTORS = "contexts", "context.json", "vectors.safetensors"
AGAIN = "remove the context's folder and add it again (embrew context add)"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # no files on Windows


def check_name(name: str) -> None:
    """Raise unless a name can be that of a folder, on any system, and of a prompt."""
    if not NAME.fullmatch(name) or name.endswith("."):
        raise ValueError(f"context {name[:80]!r}: a name is letters, digits, and _ . - between them")
    if DEVICE.fullmatch(name) or len(name) > MAX_NAME_BYTES:
        raise ValueError(
            f"context {name[:80]!r}: folders cannot be called so on every system; choose a name of up to "
            f"{MAX_NAME_BYTES} characters that is no device of Windows (con, nul, com1, …)"
        )


def _folder_of(folder: Path, name: str) -> Path:
    """Return the folder of a context. It is written and removed there, so a link that leads elsewhere is refused."""
    place = folder / CONTEXTS
    if place.is_symlink() or (place / name).is_symlink():
        raise ValueError(
            f"{place / name} is a link, or below one; contexts are written and removed within the model's own folder: "
            "replace the link by a copy of what it leads to"
        )
    return place / name


def write_context(folder: Path, name: str, context: PreparedContext, *, overwrite: bool = False) -> None:
    """Write one context into an encoder's folder atomically.

    Raises:
        FileExistsError: there is one of this name already, and `overwrite` is not set.
        ValueError: not a name.
    """
    check_name(name)
    target = _folder_of(folder, name)
    given = context.context
    about: dict[str, Any] = {
        "format": CONTEXT.number,
        "instruction": given.instruction,
        "passage_instruction": given.passage_instruction,
        "demonstrations": [pair._asdict() for pair in given.demonstrations],
        "ids": context.row.ids,
        "segments": context.row.segments,
        "model_hash": context.model_hash,
    }
    if target.exists() and not overwrite:
        raise FileExistsError(
            f"{folder} has a context {name} already; choose another name, or replace it (--overwrite)"
        )
    with atomic_folder(target, marker=ABOUT, overwrite=overwrite) as out:
        save_file({"vectors": context.vectors.contiguous()}, out / VECTORS)
        (out / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        write_checksums(out)  # separate, so that adding a context does not change those of the encoder


def read_contexts(folder: Path) -> dict[str, PreparedContext]:
    """Return the contexts in an encoder's folder, by name, sorted.

    Raises:
        ValueError: one is damaged, cannot be read, or has another format number.
    """
    recover_all(folder / CONTEXTS)
    found = {}
    for place in _places(folder):
        context = read_unchanged(place, ABOUT, partial(_read, place))
        if context is not None:
            found[place.name] = context
    return found


def _places(folder: Path) -> list[Path]:
    """Return folders of contexts; others, and those that are being written, are left out."""
    places = sorted((folder / CONTEXTS).iterdir()) if (folder / CONTEXTS).is_dir() else []
    files = (ABOUT, VECTORS, checksums.NAME)
    return [
        place for place in places if not place.name.startswith(".") and any((place / name).is_file() for name in files)
    ]


def _read(place: Path) -> PreparedContext | None:
    """Return one context; None if it was removed at the same time."""
    if not place.is_dir():
        return None
    check_number(place, CONTEXT)
    if (place / checksums.NAME).is_file() or (place.parent.parent / checksums.NAME).is_file():
        check_folder(place)
    about = place / ABOUT
    read = read_json(about, repair=AGAIN, kind=CONTEXT)
    vectors = read_tensors(place / VECTORS, keys=("vectors",), repair=AGAIN)["vectors"]
    with content_of(about, repair=AGAIN):
        pairs = tuple(Demonstration(**pair) for pair in read["demonstrations"])
        context = Context(read["instruction"], pairs, read["passage_instruction"])
        row = Row(list(read["ids"]), list(read["segments"]))
        return PreparedContext(context, row, vectors, read["model_hash"])


def remove_context(folder: Path, name: str) -> None:
    """Remove one context from an encoder's folder, damaged or not.

    Raises:
        FileNotFoundError: there is none of this name.
    """
    check_name(name)
    target = _folder_of(folder, name)
    if target not in _places(folder):
        names = ", ".join(place.name for place in _places(folder)) or "none"
        raise FileNotFoundError(f"{folder} has no context {name}; it has {names}")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{name}.", suffix=PARTIAL) as scratch:
        target.rename(Path(scratch) / "removed")  # gone at once, then deleted; after a kill, by the next reader
        shutil.rmtree(Path(scratch) / "removed", ignore_errors=True)
    with suppress(OSError):  # others are in it
        target.parent.rmdir()


def up_to_date(encoder: Embedder) -> dict[str, PreparedContext]:
    """Return the encoder's contexts; those of other weights or another tokenizer are computed again."""
    if not encoder.contexts:
        return {}
    own = vectors_hash(encoder)
    return {
        name: context if context.model_hash == own else replace(prepare(encoder, context.context), model_hash=own)
        for name, context in list(encoder.contexts.items())
    }


def digest(context: PreparedContext) -> str:
    """Return sha256 of a context's instruction, positions and vectors."""
    found = hashlib.sha256(json.dumps([context.context.instruction, *context.row]).encode())
    found.update(context.vectors.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def check_written(encoder: Embedder, folder: Path) -> None:
    """Raise unless a folder holds the encoder's contexts, to the bit."""
    written = read_contexts(folder)
    if written.keys() != encoder.contexts.keys():
        raise RuntimeError(f"contexts {', '.join(sorted(written.keys() ^ encoder.contexts.keys()))}: not the encoder's")
    for name, context in encoder.contexts.items():
        same = written[name].context == context.context and digest(written[name]) == digest(context)
        if not same:
            raise RuntimeError(f"context {name} was written with other values than the encoder has")
