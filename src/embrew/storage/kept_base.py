"""The base of an encoder that has no public name, kept in the encoder's folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from embrew.files.checksums import Damaged
from embrew.settings.base import Base
from embrew.storage.folder_check import BASE, shared_weights
from embrew.storage.loading import weights_sha256

SMALL = ("config.json", "generation_config.json", "model.safetensors.index.json")
TOKENIZER = (
    "tokenizer",
    "vocab",
    "merges",
    "special_tokens_map.json",
    "added_tokens.json",
    "spiece.model",
    "spm.model",
)


def keep_base(base: Base, source: Path | None, target: Path, *, code: bool = False) -> None:
    """Copy a base into an encoder's folder. Its weights are hard links where possible, so that they cost no space.

    A program that writes a new file in place of the old one (`save_pretrained`) leaves the link as it was. One that
    writes into the file (`cp`, `open(path, "r+b")`) changes both; the encoder's checksums notice that.

    Args:
        base: what the encoder was made of.
        source: its folder.
        target: where to.
        code: also keep the model's own code.

    Raises:
        ValueError: the folder is not known, or its weights are no longer those that were opened.
    """
    if source is None:
        raise ValueError(f"base {base.name} is a local model, and the encoder does not know its folder")
    target.mkdir()
    for path in sorted(path for path in source.iterdir() if path.is_file()):
        if path.suffix == ".safetensors":
            _link(path, target / path.name)
        elif path.name in SMALL or path.name.startswith(TOKENIZER) or (code and path.suffix == ".py"):
            shutil.copyfile(path, target / path.name)
    if base.sha256 is not None and weights_sha256(target) != base.sha256:
        raise ValueError(
            f"the weights in {source} changed after the encoder was opened, and its adapter means nothing on others; "
            "put the original weights back there and save again"
        )


def check_kept_base(base: Base, folder: Path) -> None:
    """Compare the weights of a base in an encoder's folder that has no checksums with what `embrew.json` says.

    Raises:
        Damaged: they are others; says whether they are shared with another model.
    """
    kept = folder / BASE
    if base.sha256 is None or weights_sha256(kept) == base.sha256:
        return
    names = [f"{BASE}/{path.name}" for path in sorted(kept.glob("*.safetensors")) if path.stat().st_nlink > 1]
    if names:
        raise shared_weights(folder, names)
    raise Damaged(
        f"{kept} holds other weights than the encoder was trained on (sha256 {base.sha256[:12]}…); its adapter means "
        "nothing on them: copy the folder again from where it came from"
    )


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, target)
