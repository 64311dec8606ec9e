"""Read safetensors files; one that cannot be read is named."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from embrew.files.reading import REPAIR, content_of


def read_tensors(path: Path, *, keys: Collection[str] = (), repair: str = REPAIR) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Args:
        path: the file.
        keys: names of tensors that it has to hold.
        repair: what the user should do about a broken file.

    Raises:
        OSError: there is no such file, it is a folder, or it may not be read.
        BrokenFile: its content is truncated, damaged, or lacks a tensor.
    """
    path.open("rb").close()  # whose errors name the file, unlike safetensors'
    with content_of(path, repair=repair):
        tensors = load_file(path)
        missing = [key for key in keys if key not in tensors]
        if missing:
            raise ValueError(f"it has no tensor {', '.join(missing)}")
    return tensors
