"""What the folders give."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.folders.inputs import TEXTS


class Expected:
    """What the source that made the folders gives for them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def encoder(self, folder: str, *, options: dict[str, dict[str, Any]] | None = None) -> None:
        """Open an encoder's folder in this process; keep vectors and token ids."""
        from embrew.encoder import Encoder

        opened = Encoder.from_pretrained(folder, dtype="float32", device="cpu")  # which every machine computes in
        calls = {"query": {"prompt_name": "query"}, "document": {"prompt_name": "document"}, **(options or {})}
        for name, given in calls.items():
            self.arrays[f"{folder}:{name}"] = np.asarray(opened.encode(TEXTS, **given), dtype=np.float32)
        how = {"instruction": opened.prompts["query"], "max_length": opened.max_length["query"]}
        self.values[folder] = {
            "calls": calls,
            "ids": [[row.ids for row in template.rows(TEXTS, **how)] for template in opened.templates],
            "steps": opened.steps,
            "weights_hash": opened.weights_hash(),
        }
