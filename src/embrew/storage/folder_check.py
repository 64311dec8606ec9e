"""Compare a folder that embrew wrote with its checksums, before transformers or anything else parses its files."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path, PurePosixPath

from embrew.files.checksums import NAME, Damaged, check_files
from embrew.files.formats import ENCODER, EXPORT, Format
from embrew.files.reading import BrokenFile, read_json

logger = logging.getLogger(__name__)

BASE = "base"  # a base without a public name, in an encoder's folder
LOOKED_UP = frozenset(
    {
        # these make it a folder of another kind
        *("embrew.json", "run.json"),
        # models: another configuration, an adapter on the weights, a single file in place of shards
        *("config.json", "generation_config.json", "adapter_config.json"),
        *("model.safetensors", "model.safetensors.index.json", "memory.safetensors"),
        # tokenizers: more tokens, other special tokens
        *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "added_tokens.json", "special_tokens_map.json"),
        # Sentence-Transformers: a processor in place of the tokenizer
        *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    }
)
"""Names that embrew, transformers and Sentence-Transformers look for in a folder, and that change what they open."""

_said: set[Path] = set()
_lock = threading.Lock()


def check_folder(folder: Path, *, large: bool = True) -> bool:
    """Compare the files of an encoder, a context or an export with its checksums; warn once if it has none.

    Args:
        folder: what is about to be opened.
        large: also the files of 16 MiB or more, which a process reads once.

    Returns:
        Whether they were compared.

    Raises:
        OtherFormat: it has another format number than this embrew reads, or none.
        Damaged: a file has changed, is missing or was added.
    """
    check_number(folder, ENCODER if (folder / ENCODER.file).is_file() else EXPORT)
    try:
        verified = check_files(folder, read=LOOKED_UP, large=large)
    except Damaged as error:
        shared = [name for name in error.changed if _is_shared(folder, name)]
        raise shared_weights(folder, shared) if shared else error from None
    if not verified:
        _say_once(folder)
    return verified


def check_number(folder: Path, kind: Format) -> None:
    """Raise if a file of a folder has another format number than this embrew reads; damage is for `check_folder`."""
    with suppress(OSError, BrokenFile):
        read_json(folder / kind.file, kind=kind)


def shared_weights(folder: Path, names: list[str]) -> Damaged:
    """Return the error for weights of a base that were changed through another name of the same file."""
    first = folder / names[0]
    return Damaged(
        f"{', '.join(str(folder / name) for name in names)} changed after {folder} was saved: it is a hard link, one "
        "file with the weights of the model that this encoder was trained on, and that model was edited in place. To "
        f"repair it, delete {first}, then copy the original weights there; to keep the edited model, save it "
        "to another folder first",
        changed=names,
    )


def _is_shared(folder: Path, name: str) -> bool:
    path = folder / name
    return PurePosixPath(name).parts[0] == BASE and path.is_file() and path.stat().st_nlink > 1


def _say_once(folder: Path) -> None:
    place = folder.resolve()
    with _lock:
        if place in _said:
            return
        _said.add(place)
    logger.warning("%s has no %s, so damage to its files is not detected; save it again to add one", folder, NAME)
