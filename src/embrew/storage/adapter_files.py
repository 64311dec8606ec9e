"""A LoRA on disk: peft's own two files."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from embrew.files.reading import read_json
from embrew.model.adapters import AdapterState
from embrew.storage.foreign import check_adapter
from embrew.storage.tensor_files import read_tensors

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def write_adapter(state: AdapterState, folder: Path) -> None:
    """Write both files into a new folder."""
    folder.mkdir(parents=True)
    save_file(state.tensors, folder / TENSORS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(state.config, indent=2, sort_keys=True))


def read_adapter(folder: Path) -> AdapterState:
    """Read both files.

    Raises:
        ValueError: it is no LoRA, or one whose settings name other files or modules.
    """
    config = read_json(folder / CONFIG)
    check_adapter(config, source=folder / CONFIG)
    return AdapterState(config, read_tensors(folder / TENSORS))
